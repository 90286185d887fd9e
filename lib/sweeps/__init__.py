"""Sweeps of many trainings: strategies, events, storage and worker processes."""
