"""Trainings and measurements in processes of their own, and whose turn it is."""
