"""The ways of training, and one table of them."""
