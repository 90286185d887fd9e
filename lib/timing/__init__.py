"""How long a training step takes, how certain that is, and why."""
