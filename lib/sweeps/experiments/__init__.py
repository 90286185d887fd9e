"""The notebooks' experiments, independent of any page."""
