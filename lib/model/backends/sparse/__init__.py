"""Training that skips the zeros of its images: their storage, and the compiled loops over it."""
