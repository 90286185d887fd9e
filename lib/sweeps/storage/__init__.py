"""Storage of curves and measurements: as rows in SQLite, and as export files."""
