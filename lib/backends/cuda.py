"""Which CUDA version an installed library was built for, and whether the driver is new enough for it.

Both are found without importing the library.
"""

import importlib.util
import re
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from lib.hardware.nvidia_smi import driver_version

# The oldest Linux driver for each major CUDA version: NVIDIA, CUDA Toolkit release notes, minor version compatibility.
OLDEST_DRIVER = {12: 525, 13: 580}


def installed(name: str) -> bool:
    """Whether the module is there to be imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ModuleNotFoundError, ValueError):  # its parent package is missing, or a stand-in has no spec
        return False


def package_version(name: str) -> str:
    """Version of an installed distribution; empty if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _jax() -> int | None:
    return next((major for major in (13, 12) if installed(f"jax_cuda{major}_plugin")), None)


def _tensorflow() -> int | None:
    return 12 if installed("nvidia.cudnn") else None


def _torch() -> int | None:
    """PyTorch records it in `torch/version.py`, whether installed from wheels, by conda, or with a system's CUDA."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    file = Path(found.origin).with_name("version.py")
    match = re.search(r"^cuda\b.*?=\s*'(\d+)", file.read_text(), re.MULTILINE) if file.exists() else None
    return int(match[1]) if match else None


def _cupy() -> int | None:
    named = next((major for major in (13, 12) if package_version(f"cupy-cuda{major}x")), None)
    return named or (12 if installed("cupy") else None)  # built from source: it has some CUDA


BUILDS: dict[str, Callable[[], int | None]] = {
    "jax": _jax,
    "keras-jax": _jax,
    "keras-tensorflow": _tensorflow,
    "keras-torch": _torch,
    "torch": _torch,
    "cupy": _cupy,
}


def driver_problem(major: int) -> str:
    """Why the driver cannot run a library built for CUDA `major`; empty if it can, or if its version is unknown."""
    found, oldest = driver_version(), OLDEST_DRIVER.get(major, 0)
    if not found or int(found.split(".")[0]) >= oldest:
        return ""
    return (
        f"its library is built for CUDA {major}, which needs NVIDIA driver {oldest} or newer, and this one is {found}"
    )
