"""What a notebook asks, measures, draws and says: a file or a folder for each."""
