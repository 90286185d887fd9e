"""The training backends, one module per library, and a table of them."""
