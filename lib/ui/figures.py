"""What marimo closes matplotlib's figures with: imported when it is first looked for."""

from importlib import import_module
from typing import Any


def late() -> None:
    """Let marimo find it, whichever session's cell ends first.

    marimo 0.25 closes all figures at the end of each cell, from the moment at which matplotlib is being imported, with
    `marimo._output.mpl`, which is not there before matplotlib is (`_reset_matplotlib_context`). The cell of another
    session that ends in between fails in marimo: the rest of its run is left out, and no page shows that. So it is
    imported there; Python lets that thread wait for matplotlib.
    """
    import marimo._output

    def imported(name: str) -> Any:
        if name != "mpl":
            raise AttributeError(f"module 'marimo._output' has no attribute {name!r}")
        return import_module("marimo._output.mpl")

    marimo._output.__getattr__ = imported  # type: ignore[attr-defined]
