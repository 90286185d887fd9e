"""A module or package per notebook: its controls, measurements, charts and sentences."""
