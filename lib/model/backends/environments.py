"""Which Python environment a worker runs in, what is installed there and for which CUDA, without importing any of it.

Libraries for CUDA 12 and 13 bring files of the same names into the same folders (`nvidia/cudnn/lib`, …): pip sees no
conflict, and one then loads the other's. So each generation of CUDA has an environment of its own.
"""

import platform
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata, util
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from lib import ROOT
from lib.model.hardware.nvidia import driver_version

# The oldest Linux driver for each major CUDA version: NVIDIA, CUDA Toolkit release notes, minor version compatibility.
OLDEST_DRIVER = {12: 525, 13: 580}
# What a time on a card depends on, beside the library itself, by the names of CUDA 13 and 12; and JAX's alone.
COMPUTES_WITH = ("nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12")
NUMBA_COMPILES_WITH = {13: "nvidia-nvvm", 12: "nvidia-cuda-nvcc-cu12"}
JAX_COMPUTES_WITH = ("jax-cuda13-plugin", "jax-cuda12-plugin")
# The errors after which a process can do nothing more with its card, by the driver's names and in its words: NVIDIA,
# CUDA Driver API, CUresult. NVML and the kernel say it in their own way.
_LOST = re.compile(
    r"CUDA_ERROR_(?:DEINITIALIZED|NO_DEVICE|DEVICE_UNAVAILABLE|ECC_UNCORRECTABLE|NVLINK_UNCORRECTABLE"
    r"|ILLEGAL_ADDRESS|LAUNCH_TIMEOUT|CONTEXT_IS_DESTROYED|ASSERT|HARDWARE_STACK_ERROR|ILLEGAL_INSTRUCTION"
    r"|MISALIGNED_ADDRESS|INVALID_ADDRESS_SPACE|INVALID_PC|LAUNCH_FAILED|EXTERNAL_DEVICE|CONTAINED|UNKNOWN)\b"
    r"|(?:CUDA error|cudaError\w*): (?:no CUDA-capable device is detected"
    r"|CUDA-capable device\(s\) is/are busy or unavailable|uncorrectable (?:ECC|NVLink) error"
    r"|an illegal (?:memory access|instruction) was encountered|the launch timed out|context is destroyed"
    r"|device-side assert triggered|hardware stack error|misaligned address|operation not supported on global/shared"
    r"|invalid program counter|unspecified launch failure|unknown error)"
    r"|\b(?:GPU|device) is lost|\bdevice lost\b|fallen off the bus",
    re.IGNORECASE,
)


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


def lost_card(text: str) -> str:
    """What says in a library's error that the card no longer answers this process; empty where nothing does.

    >>> lost_card("INTERNAL: Failed to synchronize: CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error encountered")
    'CUDA_ERROR_ECC_UNCORRECTABLE'
    >>> lost_card("RESOURCE_EXHAUSTED: CUDA_ERROR_OUT_OF_MEMORY: out of memory"), lost_card("CUDA error: invalid value")
    ('', '')
    """
    found = _LOST.search(text)
    return found[0] if found else ""


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


def _numba(environment: Environment) -> int | None:
    """numba-cuda is one package for all versions of CUDA: its compiler's tells."""
    named = next((major for major, name in NUMBA_COMPILES_WITH.items() if environment.version(name)), None)
    return named or (12 if environment.installed("numba_cuda") else None)  # a system's CUDA


BUILDS: dict[str, Callable[[Environment], int | None]] = {
    "jax": _jax,
    "keras-jax": _jax,
    "keras-tensorflow": _tensorflow,
    "keras-torch": _torch,
    "torch": _torch,
    "cupy": _cupy,
    "numba-cuda": _numba,
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
