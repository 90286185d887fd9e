"""Many trainings in one compiled program: how they are laid out, the program itself, and the loop around it."""
