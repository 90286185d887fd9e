"""The race between libraries on this machine, and the comparison of machines."""
