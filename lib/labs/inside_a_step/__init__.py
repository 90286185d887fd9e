"""Inside one training step: its parts, its profile, and six wrong ways to time it."""
