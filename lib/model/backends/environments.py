"""Which Python environment a worker runs in, and what is installed there, found without importing it.

Libraries for CUDA 12 and 13 bring files of the same names into the same folders (`nvidia/cudnn/lib`, …): pip sees no
conflict, and one then loads the other's. So each generation of CUDA has an environment of its own.
"""

import platform
import re
import sys
from dataclasses import dataclass
from importlib import metadata, util
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from lib import ROOT


@dataclass(frozen=True)
class Environment:
    """An interpreter, and the folders where its packages are looked for.

    Args:
        python: The interpreter's file.
        folders: Of its packages; None: this program's own, wherever it finds them.
    """

    python: str
    folders: tuple[str, ...] | None = None

    def file(self, module: str) -> Path | None:
        """Where the module would be imported from; None where it is not installed, or comes from no file."""
        found = self._spec(module)
        return Path(found.origin) if found is not None and found.origin is not None else None

    def installed(self, module: str) -> bool:
        """Whether the module is there to be imported."""
        return self._spec(module) is not None

    def version(self, distribution: str) -> str:
        """Version of an installed distribution; empty if it is not installed."""
        path = sys.path if self.folders is None else list(self.folders)
        return next((found.version for found in metadata.distributions(name=distribution, path=path)), "")

    @property
    def python_version(self) -> str:
        """Of the interpreter, for example 3.12.3; that of another is what its environment was made with."""
        if self.folders is None:
            return platform.python_version()
        made_by = Path(self.python).parent.parent / "pyvenv.cfg"
        named = re.search(r"^version(?:_info)?\s*=\s*(\d+\.\d+\.\d+)", made_by.read_text(), re.MULTILINE)
        return named[1] if named else ""

    def _spec(self, module: str) -> ModuleSpec | None:
        if self.folders is not None:
            return PathFinder.find_spec(module, self.folders)
        try:
            return util.find_spec(module)
        except (ModuleNotFoundError, ValueError):  # its parent package is missing, or a stand-in has no spec
            return None


HERE = Environment(sys.executable)


def environment_in(folder: str) -> Environment:
    """The virtual environment in a folder of this project; this program's own where there is none, or where it is that.

    Args:
        folder: Its name, such as `.venv-cuda12`; empty: none is meant.
    """
    home = ROOT / folder
    python = home / "bin" / "python"
    if not folder or not python.exists() or Path(sys.prefix).resolve() == home.resolve():
        return HERE
    return Environment(str(python), tuple(map(str, home.glob("lib/python3.*/site-packages"))))
