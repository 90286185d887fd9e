"""Where marimo is: controls, streaming into cells, the server of a class."""
