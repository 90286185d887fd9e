"""Many trainings: strategies to make them, and their events."""
