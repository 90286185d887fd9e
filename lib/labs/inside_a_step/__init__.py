"""Inside one training step: its parts, its profile, and wrong ways to time it."""
