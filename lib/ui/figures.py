"""Imports marimo's matplotlib support on first access."""

from importlib import import_module
from typing import Any


def late() -> None:
    """Make `marimo._output.mpl` import itself on first access.

    Once matplotlib's import has begun, marimo 0.25 closes all figures through that module at the end of each cell
    (`_reset_matplotlib_context`). But the module exists only after matplotlib is imported, so another session's cell
    that ends in between fails inside marimo: the rest of its run is dropped, and no page shows it. Importing on access
    makes that thread wait for matplotlib instead.
    """
    import marimo._output

    def imported(name: str) -> Any:
        if name != "mpl":
            raise AttributeError(f"module 'marimo._output' has no attribute {name!r}")
        return import_module("marimo._output.mpl")

    marimo._output.__getattr__ = imported  # type: ignore[attr-defined]
