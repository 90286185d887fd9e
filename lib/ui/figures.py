"""What marimo draws matplotlib's figures with: loaded where no cell can end meanwhile."""


def load() -> None:
    """Load it, unless it is there.

    To be called before there is a kernel, or in the kernel's own thread where it is the only one of its process.
    marimo 0.25 closes all figures at the end of each cell, from the moment at which matplotlib is being imported, with
    a module that is not there before matplotlib is (`_reset_matplotlib_context`). A cell of whatever session that ends
    in between fails in marimo: the rest of its run is left out, and no page shows that.
    """
    import marimo._output.mpl  # noqa: F401
