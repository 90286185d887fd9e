"""A step taken apart."""
