"""Many trainings: the ways to make them, and what they tell."""
