"""Facts about this machine, per-process limits, and fallbacks for missing libraries."""
