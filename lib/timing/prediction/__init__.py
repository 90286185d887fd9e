"""How long a training step takes on a device that was calibrated, recorded, or is known by published figures."""
