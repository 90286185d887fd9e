"""The project's packages; docs/architecture.md explains their layers."""

import os
import sys
from pathlib import Path

if sys.platform == "win32":
    raise ImportError(
        "expected Linux or macOS, got Windows itself; install WSL (`wsl --install`) and run the same commands in it"
    )

# The project's folder, which workers import from.
ROOT = Path(__file__).resolve().parent.parent


def python_path() -> str:
    """Return the project's folder, followed by this process's own `PYTHONPATH`."""
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
