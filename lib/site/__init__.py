"""What only a class site has: the teacher's page."""
