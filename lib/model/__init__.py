"""Networks and trainings, their data, the backends that train them, and the hardware."""
