"""Predict a step's time on devices that are calibrated, recorded, or known by published figures."""
