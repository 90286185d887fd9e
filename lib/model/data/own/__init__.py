"""Data that a reader brings: read and checked, scaled, divided, and kept by digest in the cache folder."""
