"""How long a step takes, how sure that is, and what it means."""
