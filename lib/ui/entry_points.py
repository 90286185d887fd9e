"""The entry points of what is installed: read once, where marimo 0.25 reads them before each run of cells.

It looks among them for another way to run a cell, in a file for each package: a third of the time that the notebook's
process takes for a moved slider. Opening a file also lets another thread of the process go on, and with a hundred
viewers, each a thread, it is long before the one that reads has its next turn.
"""

from functools import cache

from marimo._entrypoints import registry


def read_once() -> None:
    """Let marimo have them from memory, in this process from now on; what is installed meanwhile is not among them."""
    if not hasattr(registry.entry_points, "cache_info"):
        registry.entry_points = cache(registry.entry_points)
