"""Which CUDA version an installed library was built for, and whether the driver is new enough for it.

Both are found without importing the library, in the environment that its worker runs in.
"""

import re
from collections.abc import Callable

from lib.backends.environments import Environment
from lib.hardware.nvidia_smi import driver_version

# The oldest Linux driver for each major CUDA version: NVIDIA, CUDA Toolkit release notes, minor version compatibility.
OLDEST_DRIVER = {12: 525, 13: 580}
# What a time on a card depends on, beside the library itself, by the names of CUDA 13 and 12; and JAX's alone.
COMPUTES_WITH = ("nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12")
JAX_COMPUTES_WITH = ("jax-cuda13-plugin", "jax-cuda12-plugin")


def _jax(environment: Environment) -> int | None:
    return next((major for major in (13, 12) if environment.installed(f"jax_cuda{major}_plugin")), None)


def _tensorflow(environment: Environment) -> int | None:
    """Its wheel for a processor alone is another package; where cuDNN for CUDA 13 is too, that lies over its own."""
    alone = environment.version("nvidia-cudnn-cu12") and not environment.version("nvidia-cudnn-cu13")
    return 12 if environment.version("tensorflow") and alone else None


def _torch(environment: Environment) -> int | None:
    """PyTorch records it in `torch/version.py`, whether installed from wheels, by conda, or with a system's CUDA."""
    found = environment.file("torch")
    file = None if found is None else found.with_name("version.py")
    match = re.search(r"^cuda\b.*?=\s*'(\d+)", file.read_text(), re.MULTILINE) if file and file.exists() else None
    return int(match[1]) if match else None


def _cupy(environment: Environment) -> int | None:
    named = next((major for major in (13, 12) if environment.version(f"cupy-cuda{major}x")), None)
    return named or (12 if environment.installed("cupy") else None)  # built from source: it has some CUDA


BUILDS: dict[str, Callable[[Environment], int | None]] = {
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


def versions_on_a_card(environment: Environment, with_jax: bool) -> dict[str, str]:
    """Versions of the driver and of CUDA's libraries in an environment, by name; empty where one is not known."""
    names = COMPUTES_WITH + (JAX_COMPUTES_WITH if with_jax else ())
    return {"driver": driver_version()} | {name: environment.version(name) for name in names}
