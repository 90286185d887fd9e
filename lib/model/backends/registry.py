"""The table of backends, which drives the engine, the controls, the tests and the documentation.

Also covers each worker's Python environment (installed versions, their CUDA) and environment variables. Libraries for
CUDA 12 and 13 install files of the same names into the same folders (`nvidia/cudnn/lib`, …): pip sees no conflict, and
one library then loads the other's files. So each generation of CUDA has its own environment.

This module imports none of the libraries; `load_train` does, inside a worker.
"""

import importlib
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import metadata, util
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import MappingProxyType

from lib import ROOT, python_path
from lib.cache_folder import CacheUnwritable, cache_dir
from lib.formatting import listed, percent
from lib.model.backends.base import Train
from lib.model.hardware import webgpu
from lib.model.hardware.machine import multiplies_bfloat16, usable_cores
from lib.model.hardware.nvidia import cards, driver_version, nvidia_driver_answers

# The oldest Linux driver for each major CUDA version: NVIDIA, CUDA Toolkit release notes, minor version compatibility.
OLDEST_DRIVER = {12: 525, 13: 580}
# Packages that affect times on a card, in addition to the library itself, for CUDA 13 and 12; JAX has more.
COMPUTES_WITH = ("nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12")
JAX_COMPUTES_WITH = ("jax-cuda13-plugin", "jax-cuda12-plugin")
# Errors after which a process can no longer use its card, by the driver's names and messages (NVIDIA, CUDA Driver API,
# CUresult). NVML and the kernel word them differently.
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
    """An interpreter, and the folders that hold its packages.

    Args:
        python: Path of the interpreter.
        folders: Of its packages; None: the same as this program's.
    """

    python: str
    folders: tuple[str, ...] | None = None

    def installed(self, module: str) -> bool:
        return self.spec(module) is not None

    def version(self, distribution: str) -> str:
        """Version of an installed distribution; empty if it is not installed."""
        path = sys.path if self.folders is None else list(self.folders)
        return next((found.version for found in metadata.distributions(name=distribution, path=path)), "")

    @property
    def python_version(self) -> str:
        """The interpreter's version, for example 3.12.3; for another environment, the version that created it."""
        if self.folders is None:
            return platform.python_version()
        made_by = Path(self.python).parent.parent / "pyvenv.cfg"
        named = re.search(r"^version(?:_info)?\s*=\s*(\d+\.\d+\.\d+)", made_by.read_text(), re.MULTILINE)
        return named[1] if named else ""

    def spec(self, module: str) -> ModuleSpec | None:
        """Where the module would be imported from; None if it is not installed."""
        if self.folders is not None:
            return PathFinder.find_spec(module, self.folders)
        try:
            return util.find_spec(module)
        except (ModuleNotFoundError, ValueError):  # its parent package is missing, or a stand-in has no spec
            return None


HERE = Environment(sys.executable)


def environment_in(folder: str) -> Environment:
    """Return the virtual environment in a project folder; this program's own if they are the same, or none is there.

    Args:
        folder: Its name, such as `.venv-cuda12`; empty for this program's own.
    """
    home = ROOT / folder
    python = home / "bin" / "python"
    if not folder or not python.exists() or Path(sys.prefix).resolve() == home.resolve():
        return HERE
    return Environment(str(python), tuple(map(str, home.glob("lib/python3.*/site-packages"))))


def lost_card(text: str) -> str:
    """Return the part of a library's error that says the card no longer answers this process; empty if none does.

    >>> lost_card("INTERNAL: Failed to synchronize: CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error encountered")
    'CUDA_ERROR_ECC_UNCORRECTABLE'
    >>> lost_card("RESOURCE_EXHAUSTED: CUDA_ERROR_OUT_OF_MEMORY: out of memory"), lost_card("CUDA error: invalid value")
    ('', '')
    """
    found = _LOST.search(text)
    return found[0] if found else ""


def _by_package(for_13: str, for_12: str, otherwise: str, environment: Environment) -> int | None:
    """By the package installed for each version; 12 if only the module `otherwise` is, built for some system's CUDA."""
    named = next((major for major, name in ((13, for_13), (12, for_12)) if environment.version(name)), None)
    return named or (12 if otherwise and environment.installed(otherwise) else None)


def _tensorflow(environment: Environment) -> int | None:
    """The CPU wheel is a separate package; cuDNN for CUDA 13, if installed, overwrites TensorFlow's own."""
    alone = environment.version("nvidia-cudnn-cu12") and not environment.version("nvidia-cudnn-cu13")
    return 12 if environment.version("tensorflow") and alone else None


def _torch(environment: Environment) -> int | None:
    """PyTorch records it in `torch/version.py`, whether installed from wheels, by conda, or with a system's CUDA."""
    found = environment.spec("torch")
    file = Path(found.origin).with_name("version.py") if found and found.origin else None
    match = re.search(r"^cuda\b.*?=\s*'(\d+)", file.read_text(), re.MULTILINE) if file and file.exists() else None
    return int(match[1]) if match else None


_jax = partial(_by_package, *JAX_COMPUTES_WITH, "")
BUILDS: dict[str, Callable[[Environment], int | None]] = {
    "jax": _jax,
    "keras-jax": _jax,
    "keras-tensorflow": _tensorflow,
    "keras-torch": _torch,
    "torch": _torch,
    "cupy": partial(_by_package, "cupy-cuda13x", "cupy-cuda12x", "cupy"),
    # One package for all versions of CUDA, so check its compiler's.
    "numba-cuda": partial(_by_package, "nvidia-nvvm", "nvidia-cuda-nvcc-cu12", "numba_cuda"),
}


def driver_problem(major: int) -> str:
    """Why the driver cannot run a library built for CUDA `major`; empty if it can, or if its version is unknown."""
    found, oldest = driver_version(), OLDEST_DRIVER.get(major, 0)
    if not found or int(found.split(".")[0]) >= oldest:
        return ""
    return (
        f"its library is built for CUDA {major}, which needs NVIDIA driver {oldest} or newer, but this one is {found}"
    )


DEVICES = ("cpu", "gpu")  # the processor, and NVIDIA's card through CUDA
ADAPTERS = tuple(webgpu.KINDS)  # WebGPU's devices, cards of any vendor
ALL_DEVICES = DEVICES + ADAPTERS
# How products of float32 matrices round their factors: not at all, to 10 bits after the point, or to 7. Sums always use
# float32. Processors with matrix units for bfloat16 also use them on request.
PRECISIONS = ("float32", "tf32", "bfloat16")
JAX_PRECISION = {"float32": "highest", "tf32": "TF32_TF32_F32", "bfloat16": "BF16_BF16_F32"}
OLDEST_WITH_TF32 = 8.0  # compute capability, Ampere; bfloat16 too (NVIDIA, CUDA C++ programming guide)


@dataclass(frozen=True)
class Trainer:
    """A trainer, as named in rows of results: a backend, or code in a browser."""

    key: str
    label: str
    color: str  # the same on every page; distinguishable without red-green vision, on light and dark


@dataclass(frozen=True)
class Backend(Trainer):
    """A library, and one way of training with it.

    Backends with the same `worker` use the same library and share a process.
    """

    worker: str
    module: str
    function: str
    needs: tuple[str, ...]  # modules that must be installed
    remedy: str
    devices: tuple[str, ...] = ("cpu",)
    precisions: tuple[str, ...] = PRECISIONS[:2]  # on a GPU that has them
    precisions_on_cpu: tuple[str, ...] = PRECISIONS[:1]  # on a processor that has them
    programs: tuple[str, ...] = ()  # one of them must be on the path
    # False: an epoch takes minutes, so only the race, which times parts of an epoch, runs it.
    whole_epochs: bool = True
    taken_apart: bool = True  # whether the anatomy of a step has experiments for it
    skips_zeros: bool = False  # its step time depends on the values of its inputs, not only on shapes
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    # Folder of the environment for its worker on a card; empty: this program's own.
    cuda_environment: str = ""
    # Whether trainings of one shape take turns. Keras' `fit` holds a copy of the images, so they run in sequence.
    side_by_side: bool = True
    # Whether several trainings share a process, one core each: their compiled code releases Python's lock.
    parallel: bool = False
    # Whether the images stay on the device; else the host sends each batch.
    holds_images: bool = False

    def offered(self, device: str) -> tuple[str, ...]:
        """Precisions that it supports on a device, if the device has them."""
        return {"cpu": self.precisions_on_cpu, "gpu": self.precisions}.get(device, PRECISIONS[:1])


INSTALL_AGAIN = "run `make install` again to add it"
COMPILERS = ("g++", "clang++", "c++")
# Keras' layers rely on JAX to promote types and ranks, even if the user has disabled that.
_JAX_PROMOTES = {"JAX_NUMPY_DTYPE_PROMOTION": "standard", "JAX_NUMPY_RANK_PROMOTION": "allow"}
_TF_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "GRPC_VERBOSITY": "ERROR"}

BACKENDS: Mapping[str, Backend] = MappingProxyType(
    {
        backend.key: backend
        for backend in (
            Backend(
                "jax-epoch",
                "JAX, one call an epoch",
                "#0072b2",
                "jax",
                "with_jax",
                "train",
                ("jax", "jaxlib"),
                "pip install jax jaxlib",
                DEVICES,
                PRECISIONS,
                precisions_on_cpu=("float32", "bfloat16"),
                holds_images=True,
            ),
            Backend(
                "jax-step",
                "JAX, one call a step",
                "#3795d3",
                "jax",
                "with_jax",
                "train_by_step",
                ("jax", "jaxlib"),
                "pip install jax jaxlib",
                DEVICES,
                PRECISIONS,
            ),
            Backend(
                "jax-operation",
                "JAX, one call an operation",
                "#1f7f9c",
                "jax",
                "with_jax",
                "train_by_operation",
                ("jax", "jaxlib"),
                "pip install jax jaxlib",
                DEVICES,
                PRECISIONS,
                whole_epochs=False,
                taken_apart=False,
            ),
            Backend("numpy", "NumPy", "#009e73", "numpy", "with_numpy", "train", ("numpy",), "pip install numpy"),
            Backend(
                "numba",
                "Numba, zeros left out",
                "#c22f3d",
                "numba",
                "with_numba",
                "train",
                ("numba",),
                "pip install numba",
                skips_zeros=True,
                parallel=True,
            ),
            Backend(
                "torch",
                "PyTorch, eager",
                "#b07d00",
                "torch",
                "with_torch",
                "train",
                ("torch",),
                "make torch",
                DEVICES,
                holds_images=True,
            ),
            Backend(
                "torch-compiled",
                "PyTorch, compiled",
                "#866600",
                "torch",
                "with_torch",
                "train_compiled",
                ("torch",),
                "make torch, and install g++",
                DEVICES,
                programs=COMPILERS,
                taken_apart=False,
                holds_images=True,
            ),
            Backend(
                "cupy",
                "CuPy",
                "#4f9d2f",
                "cupy",
                "with_cupy",
                "train",
                ("cupy",),
                "make cupy",
                ("gpu",),
                taken_apart=False,
                holds_images=True,
            ),
            Backend(
                "cupy-image",
                "CuPy, image by image",
                "#6f9f50",
                "cupy",
                "with_cupy",
                "train_by_image",
                ("cupy",),
                "make cupy",
                ("gpu",),
                whole_epochs=False,
                taken_apart=False,
                holds_images=True,
            ),
            Backend(
                "numba-cuda",
                "Numba, one launch an epoch",
                "#b0587c",
                "numba-cuda",
                "with_numba_cuda",
                "train",
                ("numba", "numba_cuda"),
                INSTALL_AGAIN,
                ("gpu",),
                PRECISIONS[:1],
                taken_apart=False,
                holds_images=True,
            ),
            Backend(
                "keras-jax",
                "Keras on JAX",
                "#cc79a7",
                "keras-jax",
                "with_keras",
                "train",
                ("keras", "jax"),
                "pip install keras jax",
                DEVICES,
                environment={"KERAS_BACKEND": "jax"} | _JAX_PROMOTES,
                side_by_side=False,
            ),
            Backend(
                "keras-tensorflow",
                "Keras on TensorFlow",
                "#d55e00",
                "keras-tensorflow",
                "with_keras",
                "train",
                ("keras", "tensorflow"),
                "pip install keras tensorflow (Python 3.11 to 3.13)",
                DEVICES,
                environment={"KERAS_BACKEND": "tensorflow"} | _TF_QUIET,
                cuda_environment=".venv-cuda12",
                side_by_side=False,
            ),
            Backend(
                "keras-torch",
                "Keras on PyTorch",
                "#9467bd",
                "keras-torch",
                "with_keras",
                "train",
                ("keras", "torch"),
                "make torch",
                DEVICES,
                environment={"KERAS_BACKEND": "torch"},
                side_by_side=False,
                taken_apart=False,
            ),
            Backend(
                "webgpu-operation",
                "WebGPU, one wait an operation",
                "#a65d57",
                "webgpu",
                "with_webgpu",
                "train_by_operation",
                ("wgpu",),
                "pip install wgpu",
                ADAPTERS,
                holds_images=True,
            ),
            Backend(
                "webgpu-step",
                "WebGPU, one submission a step",
                "#c4577a",
                "webgpu",
                "with_webgpu",
                "train_by_step",
                ("wgpu",),
                "pip install wgpu",
                ADAPTERS,
                holds_images=True,
            ),
            Backend(
                "webgpu-chunk",
                "WebGPU, many steps a submission",
                "#7a67b0",
                "webgpu",
                "with_webgpu",
                "train_by_chunk",
                ("wgpu",),
                "pip install wgpu",
                ADAPTERS,
                holds_images=True,
            ),
            Backend(
                "webgpu-kernel",
                "WebGPU, many steps a kernel",
                "#5f7fc0",
                "webgpu",
                "with_webgpu",
                "train_in_one_kernel",
                ("wgpu",),
                "pip install wgpu",
                ADAPTERS,
                holds_images=True,
            ),
        )
    }
)

# Trainers on the processor of a reader's browser (`lib.sweeps.experiments.your_gpu`). No worker runs them, so they have
# rows only where machines are shown. On its GPU, a browser trains like the WebGPU backends.
IN_A_BROWSER: Mapping[str, Trainer] = MappingProxyType(
    {
        trainer.key: trainer
        for trainer in (
            Trainer("wasm-simd", "WebAssembly SIMD on one core", "#8a7d5a"),
            Trainer("javascript", "JavaScript on one core", "#128a8a"),
        )
    }
)
TRAINERS: Mapping[str, Trainer] = MappingProxyType({**BACKENDS, **IN_A_BROWSER})

DEFAULT = "jax-epoch"
_WHERE = {"cpu": "", "gpu": ", GPU"} | {kind: f", {words}" for kind, words in webgpu.KINDS.items()}
# Smallest share of zero inputs at which skipping them pays. MNIST's share is 81 %, where `benchmarks/epochs.py`
# requires 1.5 times the speed of JAX's compiled epoch at every batch size. Time grows with the nonzero inputs, so with
# 1.5 times as many of them, 28 %, the advantage is gone.
LEAST_ZEROS = 0.75


@dataclass(frozen=True, order=True)
class Runtime:
    """A backend on a device, which runs a training, and the precision of its products; or a trainer in a browser."""

    backend: str = DEFAULT
    device: str = "cpu"
    precision: str = PRECISIONS[0]

    def __post_init__(self) -> None:
        if self.backend not in TRAINERS:
            raise ValueError(
                f"backend: expected one of {', '.join(TRAINERS)}, got {self.backend!r}; choose one of these"
            )
        if self.device not in ALL_DEVICES:
            raise ValueError(
                f"device: expected {' or '.join(DEVICES)}, or {', '.join(ADAPTERS)} for WebGPU, got {self.device!r};"
                " choose one of these"
            )
        if self.backend in IN_A_BROWSER and self.device != "cpu":
            raise ValueError(
                f"device: expected cpu for {TRAINERS[self.backend].label}, got {self.device!r}; choose cpu"
            )
        offered = BACKENDS[self.backend].offered(self.device) if self.backend in BACKENDS else PRECISIONS[:1]
        if self.precision not in offered:
            raise ValueError(f"precision: expected {' or '.join(offered)}, got {self.precision!r}; choose one of these")

    @property
    def label(self) -> str:
        """Its display name; float32, the default for comparisons, is omitted."""
        return TRAINERS[self.backend].label + self.suffix

    @property
    def short_label(self) -> str:
        """Its display name without the device."""
        return TRAINERS[self.backend].label + self._rounded

    @property
    def suffix(self) -> str:
        """Device and precision, as appended to its backend's label; empty on a processor in float32."""
        return _WHERE[self.device] + self._rounded

    @property
    def on_gpu(self) -> bool:
        """Whether it runs on a graphics card, by CUDA or by WebGPU; false for a software adapter."""
        return self.device not in ("cpu", webgpu.SOFTWARE)

    @property
    def place(self) -> tuple[int, int, int]:
        """Sort key for lists of runtimes: by device, CPU first, then by precision, then in the order of the table."""
        return ALL_DEVICES.index(self.device), PRECISIONS.index(self.precision), list(TRAINERS).index(self.backend)

    @property
    def address(self) -> str:
        """Its name in an address: `backend/device`, and the precision unless it is float32."""
        return self._path(self.backend)

    @property
    def process(self) -> str:
        """Name of the worker process that runs it: runtimes with the same library, device and precision share one."""
        return self._path(BACKENDS[self.backend].worker)

    @property
    def subject(self) -> dict[str, str]:
        """Its fields in a record."""
        return {"backend": self.backend, "device": self.device, "precision": self.precision}

    @property
    def _rounded(self) -> str:
        precision = {"tf32": ", TF32"}.get(self.precision, f", {self.precision}")
        return precision if self.precision != PRECISIONS[0] else ""

    def _path(self, first: str) -> str:
        return "/".join((first, self.device, *([self.precision] if self.precision != PRECISIONS[0] else [])))

    @property
    def color(self) -> str:
        return TRAINERS[self.backend].color


@dataclass(frozen=True)
class Unavailable:
    """Why a runtime cannot run here, and what to do about it."""

    reason: str
    remedy: str


def all_runtimes() -> list[Runtime]:
    """Every backend on each of its devices, in float32 and in the other precisions that the device has.

    WebGPU's devices are limited to the adapters found; without any, the first kind represents them all.
    """
    rounds = {
        "cpu": ("bfloat16",) if multiplies_bfloat16() else (),
        "gpu": PRECISIONS[1:] if any(card.compute_capability >= OLDEST_WITH_TF32 for card in cards()[:1]) else (),
    }
    return [
        Runtime(backend.key, device, precision)
        for device in (*DEVICES, *(_adapters() or ADAPTERS[:1]))
        for precision in (PRECISIONS[0], *rounds.get(device, ()))
        for backend in BACKENDS.values()
        if device in backend.devices and precision in backend.offered(device)
    ]


def _adapters() -> list[str]:
    return [kind for kind in ADAPTERS if kind in {adapter.kind for adapter in webgpu.adapters()}]


def unavailable(runtime: Runtime) -> Unavailable | None:
    """Why a runtime cannot run here; None if it can. Looks for modules without importing them."""
    if runtime.backend in IN_A_BROWSER or runtime.device == webgpu.BROWSER:
        return Unavailable("only a browser runs it", "open notebooks/your_gpu.py in one")
    backend = BACKENDS[runtime.backend]
    # First, because without a GPU no installation helps.
    if runtime.device == "gpu" and not nvidia_driver_answers():
        return Unavailable("no NVIDIA driver answers on this machine", "use a machine with an NVIDIA GPU")
    if runtime.device == "gpu" and not cards():
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        return Unavailable(f"CUDA_VISIBLE_DEVICES={hidden} hides every GPU", "unset it and start again")
    environment = environment_of(runtime)
    missing = [name for name in backend.needs if not _installed(environment, name)]
    if missing:
        reason = f"{', '.join(missing)} is not installed"
        if environment is HERE:
            return Unavailable(reason, backend.remedy)
        return Unavailable(f"{reason} in {backend.cuda_environment}", f"{INSTALL_AGAIN} for Python 3.11 to 3.13")
    if backend.programs and not any(shutil.which(name) for name in backend.programs):
        return Unavailable(f"it compiles with {backend.programs[0]}, which is not on the path", backend.remedy)
    if runtime.device == "cpu" and "cpu" not in backend.devices:
        return Unavailable("it runs on GPUs only, not on a CPU", "choose it on a GPU")
    if runtime.device not in backend.devices:
        return Unavailable(f"it runs on {listed(backend.devices)} only", "choose another device")
    if runtime.device in ADAPTERS:
        return _no_adapter(runtime.device)
    if runtime.device == "cpu":
        return None
    built_for = BUILDS[backend.worker](environment)
    if built_for is None:
        return Unavailable("there is a GPU, but the library is the build without CUDA", INSTALL_AGAIN)
    if problem := driver_problem(built_for):
        return Unavailable(problem, "update the driver")
    return None


def unsuited(runtime: Runtime, zeros: float | None) -> Unavailable | None:
    """Why a runtime is a poor choice for inputs with this share of zeros; None if it suits them, or if unknown."""
    if zeros is None or zeros >= LEAST_ZEROS or not BACKENDS[runtime.backend].skips_zeros:
        return None
    return Unavailable(
        f"expected at least {percent(LEAST_ZEROS)} of the inputs to be zero, because it gains only from these, got"
        f" {percent(zeros)}",
        "choose another backend, or train on MNIST",
    )


def _no_adapter(kind: str) -> Unavailable | None:
    if kind in _adapters():
        return None
    if kind == webgpu.SOFTWARE and not webgpu.software_allowed():
        return Unavailable(webgpu.NO_GPU, f"set {webgpu.SOFTWARE_ALLOWED}=1 to run it anyway")
    others = [adapter.name for adapter in webgpu.adapters() if adapter.kind not in ADAPTERS]
    beside = f", only {', '.join(others)}, of unknown kind" if others else ""
    reason = f"WebGPU found no {webgpu.KINDS[kind]} on this machine{beside}"
    return Unavailable(reason, "install its driver (on Linux, the Vulkan driver), or use a machine that has one")


def usable_runtimes() -> list[Runtime]:
    return [runtime for runtime in all_runtimes() if unavailable(runtime) is None]


_installed = cache(Environment.installed)


def environment_of(runtime: Runtime) -> Environment:
    """Its worker's environment: this program's own on a processor, possibly another on a card."""
    return environment_in(BACKENDS[runtime.backend].cuda_environment if runtime.device == "gpu" else "")


@cache
def versions(runtime: Runtime) -> str:
    """Python's version and those of the libraries that its numbers depend on, without importing them.

    On a card, includes the driver, JAX's plug-in, cuBLAS and cuDNN, if known.
    """
    environment, needs = environment_of(runtime), BACKENDS[runtime.backend].needs
    found = {"python": environment.python_version}
    for name in ("numpy", *needs):
        packages = (name, f"{name}-cpu", f"{name}-cuda12x", f"{name}-cuda13x")
        found[name] = next(filter(None, map(environment.version, packages)), "")
    if runtime.device == "gpu":
        names = COMPUTES_WITH + (JAX_COMPUTES_WITH if "jax" in needs else ())
        found |= {"driver": driver_version()} | {name: environment.version(name) for name in names}
    elif runtime.device in ADAPTERS:
        found |= {adapter.name: adapter.driver for adapter in webgpu.adapters() if adapter.kind == runtime.device}
    return ", ".join(f"{name} {version}" for name, version in found.items() if version)


def load_train(key: str) -> Train:
    """Import a backend's library and return its training function; for workers and tests, not for the kernel."""
    backend = BACKENDS[key]
    return getattr(importlib.import_module(f"lib.model.backends.{backend.module}"), backend.function)


# jaxlib 0.10.2 passes reductions on a processor to a library that returns wrong sums, crashes or hangs (jax#39103,
# #39257, #40412).
XLA_WITHOUT_WRONG_SUMS = "--xla_cpu_experimental_ynn_fusion_type=-reduce"


def device_count(device: str) -> int:
    """JAX devices per worker: GPUs, or on a CPU one per core (see `worker_environment`)."""
    return usable_cores() if device == "cpu" else len(cards())


def worker_environment(runtime: Runtime, compilation_cache: str | None, threads: int | None = None) -> dict[str, str]:
    """The environment variables that a worker process needs before it imports its library.

    `threads` limits its threads; the default is one per core.
    """
    environment = dict(BACKENDS[runtime.backend].environment)
    n_threads = str(threads or usable_cores())
    environment |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), n_threads)
    environment |= dict.fromkeys(("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), n_threads) if threads else {}
    environment |= {"NPROC": n_threads} if threads else {}  # XLA reads it as the number of cores
    environment |= {"NUMBA_NUM_THREADS": n_threads}
    if "jax" in BACKENDS[runtime.backend].needs and runtime.device == "cpu":
        flags = [XLA_WITHOUT_WRONG_SUMS, *os.environ.get("XLA_FLAGS", "").split()]  # the last of two wins: the user's
        if BACKENDS[runtime.backend].worker == "jax" and not threads:
            # A stack is divided among devices, so make each core a device. A single training uses only the first, with
            # all threads.
            flags.append(f"--xla_force_host_platform_device_count={usable_cores()}")
        environment |= {"XLA_FLAGS": " ".join(dict.fromkeys(flags))}
        if runtime.precision != PRECISIONS[0]:
            environment |= {"JAX_DEFAULT_MATMUL_PRECISION": runtime.precision}  # see `product` in `with_jax`
    if runtime.device != "gpu":
        environment |= {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
    else:
        # Allocate GPU memory as needed, because several workers share the GPU.
        environment |= {
            "CUDA_VISIBLE_DEVICES": ",".join(card.uuid for card in cards()),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "JAX_PLATFORMS": "cuda,cpu",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",
            "JAX_DEFAULT_MATMUL_PRECISION": JAX_PRECISION[runtime.precision],
            "CUPY_TF32": str(int(runtime.precision == "tf32")),
        }
        # Overrides every program's setting and default in all of NVIDIA's own libraries.
        environment |= {"NVIDIA_TF32_OVERRIDE": "0"} if runtime.precision == "float32" else {}
        # TensorFlow warns why it does not use the card; the worker passes the warning on.
        environment |= {"TF_CPP_MIN_LOG_LEVEL": "1"} if "tensorflow" in BACKENDS[runtime.backend].needs else {}
    if compilation_cache is not None:
        environment |= {
            "JAX_COMPILATION_CACHE_DIR": compilation_cache,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            "NUMBA_CACHE_DIR": os.path.join(compilation_cache, "numba"),
        }
    return environment


def complete_environment(runtime: Runtime, threads: int | None = None) -> dict[str, str]:
    """A worker's environment variables: its library's, this project's path, and the cache of compiled programs.

    Args:
        runtime: The worker's runtime.
        threads: Limit; None: one per core.
    """
    try:
        compilation_cache = str(cache_dir() / "xla")
    except CacheUnwritable:
        compilation_cache = None
    return worker_environment(runtime, compilation_cache, threads) | {"PYTHONPATH": python_path()}
