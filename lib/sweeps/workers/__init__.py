"""Worker processes for trainings and measurements, and the queue that decides whose turn it is."""
