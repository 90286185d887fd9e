"""The rooms of this project, low to high: docs/architecture.md."""

import os
import sys
from pathlib import Path

if sys.platform == "win32":
    raise ImportError(
        "expected Linux or macOS, got Windows itself; install WSL (`wsl --install`) and run the same commands in it"
    )

# Of the project: its notebooks, its recorded machines, and what workers import from.
ROOT = Path(__file__).resolve().parent.parent


def python_path() -> str:
    """`PYTHONPATH` of a process of this project: the project, then what this process was given."""
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
