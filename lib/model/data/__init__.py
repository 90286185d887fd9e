"""MNIST, verified; its offline stand-in; and data supplied by users."""
