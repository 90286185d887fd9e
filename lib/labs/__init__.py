"""A file or folder for each notebook: what it asks, measures, draws and says."""
