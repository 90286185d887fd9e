"""What is trained, on what, and by what."""
