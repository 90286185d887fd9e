"""The rooms of this project, low to high: docs/architecture.md."""

import os
from pathlib import Path

# Of the project: its notebooks, its recorded machines, and what workers import from.
ROOT = Path(__file__).resolve().parent.parent


def python_path() -> str:
    """`PYTHONPATH` of a process of this project: the project, then what this process was given."""
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
