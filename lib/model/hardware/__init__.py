"""What this machine is, and what disturbs it."""
