"""A notebook's process in the editor begins as a copy of one that has imported already what every page needs.

marimo starts a new Python when a notebook's page asks for it, and the page waits for what that imports. The one that is
copied starts with the server, and imports while the browser still loads marimo's scripts. This project's own modules
are not among what it imports: who changes one and restarts the notebook has the change.
"""

import multiprocessing
import sys
from multiprocessing import forkserver
from multiprocessing.context import BaseContext

# What takes long to import of what the first notebook needs, marimo's own part of a notebook's process first.
IMPORTED = ("marimo._runtime.runtime", "pandas", "altair", "anywidget", "psutil")


def import_ahead() -> None:
    """Let marimo begin its notebooks' processes so; does nothing but on Linux, where a process can safely be copied."""
    if sys.platform != "linux":
        return
    from marimo._session.managers import kernel

    copies = multiprocessing.get_context("forkserver")
    copies.set_forkserver_preload(list(IMPORTED))
    forkserver.ensure_running()

    def context(method: str | None = None) -> BaseContext:
        return copies if method == "spawn" else multiprocessing.get_context(method)

    kernel.get_context = context
