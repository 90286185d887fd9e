"""Finished curves and measurements: as rows, in SQLite, as a file and back."""
