"""Machines on which less is installed than here: programs that are started so find no other libraries, and neither
do their workers."""

import os
from pathlib import Path

from lib import ROOT

# Python calls this before anything else.
_SITE = """
import sys
from importlib.machinery import PathFinder

class Hiding:
    @staticmethod
    def find_spec(name, path=None, target=None):
        first = name.split(".")[0]
        if path is not None or first not in {hidden!r} and (not {only!r} or first in {only!r}):
            return None
        spec = PathFinder.find_spec(name)
        if spec is not None and spec.origin and "site-packages" in spec.origin:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hiding)
"""


def hiding(folder: Path, *hidden: str, only: tuple[str, ...] = ()) -> dict[str, str]:
    """What to add to a program's environment, so that it finds none of the `hidden` libraries, or `only` these."""
    (folder / "sitecustomize.py").write_text(_SITE.format(hidden=hidden, only=only))
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
