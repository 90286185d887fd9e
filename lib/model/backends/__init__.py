"""The libraries that train, each in a module of its own, and one table of them."""
