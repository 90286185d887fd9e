"""Simulate a machine with fewer libraries: programs started this way, and their workers, cannot import the others."""

import os
from pathlib import Path

from lib import ROOT

# Python imports this module first, as sitecustomize.
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
    """Return environment variables that hide the `hidden` libraries, or all installed libraries except `only`."""
    (folder / "sitecustomize.py").write_text(_SITE.format(hidden=hidden, only=only))
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
