"""What is started from the command line."""
