"""MNIST, verified, and what stands in for it offline."""
