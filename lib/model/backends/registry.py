"""The table of backends, which drives the engine, the controls, the tests and the documentation.

This module imports none of the libraries; `load_train` does, inside a worker.
"""

import importlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType

from lib.formatting import listed, percent
from lib.model.backends.base import Train
from lib.model.backends.environments import (
    BUILDS,
    HERE,
    Environment,
    driver_problem,
    environment_in,
    versions_on_a_card,
)
from lib.model.hardware import webgpu
from lib.model.hardware.machine import multiplies_bfloat16
from lib.model.hardware.nvidia import cards, nvidia_driver_answers

DEVICES = ("cpu", "gpu")  # the processor, and NVIDIA's card by CUDA
ADAPTERS = tuple(webgpu.KINDS)  # the devices of WebGPU alone, which knows the cards of every vendor
ALL_DEVICES = DEVICES + ADAPTERS
# How the factors of a product of float32 matrices are rounded: not at all, to 10 bits after the point, or to 7. Sums
# are of float32 in each. Of processors, those with matrix units for bfloat16 are asked for it, too.
PRECISIONS = ("float32", "tf32", "bfloat16")
JAX_PRECISION = {"float32": "highest", "tf32": "TF32_TF32_F32", "bfloat16": "BF16_BF16_F32"}
OLDEST_WITH_TF32 = 8.0  # compute capability, Ampere; bfloat16 too (NVIDIA, CUDA C++ programming guide)


@dataclass(frozen=True)
class Trainer:
    """What trains, as the rows of results name it."""

    key: str
    label: str
    color: str  # the same on every page; distinguishable without red-green vision, on light and dark


@dataclass(frozen=True)
class Backend(Trainer):
    """A library, and the way in which it is asked to train.

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
    skips_zeros: bool = False  # what its step takes depends on the values of its inputs, not on shapes alone
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    # Folder of the environment that its worker on a card runs in; empty: this program's own.
    cuda_environment: str = ""
    # Whether trainings of one shape advance side by side. Keras' `fit` holds a copy of the images: one at a time.
    side_by_side: bool = True
    # Whether several train in one process, a core each: their compiled code leaves Python's lock to others.
    parallel: bool = False
    # Whether the images stay on the device; else the host sends it each batch.
    holds_images: bool = False

    def offered(self, device: str) -> tuple[str, ...]:
        """The precisions in which it can train on such a device, where that has them."""
        return {"cpu": self.precisions_on_cpu, "gpu": self.precisions}.get(device, PRECISIONS[:1])


INSTALL_AGAIN = "run `make install` again, which adds it"
COMPILERS = ("g++", "clang++", "c++")
# Keras' layers rely on JAX to promote types and ranks, even where the user has forbidden it.
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
            Backend(
                "numpy",
                "NumPy",
                "#009e73",
                "numpy",
                "with_numpy",
                "train",
                ("numpy",),
                "pip install numpy",
            ),
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

# What trains on the processor of a reader's browser (`lib.sweeps.experiments.your_gpu`). No worker of this program
# does: these
# have rows wherever machines are shown, and nowhere else. On its GPU a browser trains as WebGPU's backends do.
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
# The share of inputs that are zero from which on what skips them is worth choosing. Of MNIST's 81 % are, and there
# `benchmarks/epochs.py` holds it to 1.5 times the speed of JAX's compiled epoch at every batch size. Its time is that
# of the other inputs, so where they are 1.5 times as many, 28 %, no advantage is left.
LEAST_ZEROS = 0.75


@dataclass(frozen=True, order=True)
class Runtime:
    """A backend on a device, which runs a training, and the precision of its products there; or what a browser has."""

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
            raise ValueError(f"device: expected cpu for {self.label}, got {self.device!r}; choose cpu")
        offered = BACKENDS[self.backend].offered(self.device) if self.backend in BACKENDS else PRECISIONS[:1]
        if self.precision not in offered:
            raise ValueError(f"precision: expected {' or '.join(offered)}, got {self.precision!r}; choose one of these")

    @property
    def label(self) -> str:
        """Its name for people; float32, in which all are compared, goes without saying."""
        return TRAINERS[self.backend].label + self.suffix

    @property
    def short_label(self) -> str:
        """Its name where its device goes without saying."""
        return TRAINERS[self.backend].label + self._rounded

    @property
    def suffix(self) -> str:
        """What its label says beyond its backend's: device and precision, where they do not go without saying."""
        return _WHERE[self.device] + self._rounded

    @property
    def on_gpu(self) -> bool:
        """Whether it runs on a graphics card, by CUDA or by WebGPU; a software adapter is none."""
        return self.device not in ("cpu", webgpu.SOFTWARE)

    @property
    def place(self) -> tuple[int, int, int]:
        """Its place in a list of runtimes: those on a CPU first, then by precision, then in the order of the table."""
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
        """What a record says of it."""
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
    """Every backend on each of its devices, in float32; and in the other precisions that the device has.

    Of WebGPU's devices those whose adapter is there; where none is, the first stands for all of them.
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
    """The kinds of adapter that are there, in the order of `ADAPTERS`."""
    found = {adapter.kind for adapter in webgpu.adapters()}
    return [kind for kind in ADAPTERS if kind in found]


def unavailable(runtime: Runtime) -> Unavailable | None:
    """Why a runtime cannot run here; None if it can. Looks for modules without importing them."""
    if runtime.backend in IN_A_BROWSER or runtime.device == webgpu.BROWSER:
        return Unavailable("only a browser runs it", "open notebooks/your_gpu.py in one")
    backend = BACKENDS[runtime.backend]
    # First, because no installation helps without a GPU.
    if runtime.device == "gpu" and not nvidia_driver_answers():
        return Unavailable("no NVIDIA driver answers on this machine", "use a machine with an NVIDIA GPU")
    if runtime.device == "gpu" and not cards():
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        return Unavailable(f"CUDA_VISIBLE_DEVICES={hidden} hides every graphics card", "unset it, and start again")
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
        return Unavailable("it runs on graphics cards only, not on a processor", "choose it on a GPU")
    if runtime.device not in backend.devices:
        return Unavailable(f"it runs on {listed(backend.devices)} only", "choose another device")
    if runtime.device in ADAPTERS:
        return _no_adapter(runtime.device)
    if runtime.device == "cpu":
        return None
    built_for = BUILDS[backend.worker](environment)
    if built_for is None:
        return Unavailable("there is a GPU, but its library is the build without CUDA", INSTALL_AGAIN)
    if problem := driver_problem(built_for):
        return Unavailable(problem, "update the driver")
    return None


def unsuited(runtime: Runtime, zeros: float | None) -> Unavailable | None:
    """Why a runtime is not worth choosing for inputs of which this share is zero; None if it is, or nobody knows."""
    if zeros is None or zeros >= LEAST_ZEROS or not BACKENDS[runtime.backend].skips_zeros:
        return None
    return Unavailable(
        f"expected at least {percent(LEAST_ZEROS)} of the inputs to be zero, as it gains by these alone, got"
        f" {percent(zeros)}",
        "choose another backend, or train on MNIST",
    )


def _no_adapter(kind: str) -> Unavailable | None:
    if kind in _adapters():
        return None
    if kind == webgpu.SOFTWARE and not webgpu.software_allowed():
        return Unavailable(webgpu.NO_GPU, f"set {webgpu.SOFTWARE_ALLOWED}=1 to run it all the same")
    others = [adapter.name for adapter in webgpu.adapters() if adapter.kind not in ADAPTERS]
    beside = f", only {', '.join(others)}, of which nobody can say what it is" if others else ""
    reason = f"WebGPU finds no {webgpu.KINDS[kind]} on this machine{beside}"
    return Unavailable(reason, "install its driver (on Linux the one for Vulkan), or use a machine that has one")


def usable_runtimes() -> list[Runtime]:
    """The runtimes that can run here."""
    return [runtime for runtime in all_runtimes() if unavailable(runtime) is None]


_installed = cache(Environment.installed)


def environment_of(runtime: Runtime) -> Environment:
    """Where its worker runs: on a processor in this program's own environment, on a card perhaps in another."""
    return environment_in(BACKENDS[runtime.backend].cuda_environment if runtime.device == "gpu" else "")


@cache
def versions(runtime: Runtime) -> str:
    """Python's version and those of the libraries that its numbers depend on, without importing them.

    On a card the driver, JAX's plug-in, cuBLAS and cuDNN are among them, as far as they are known.
    """
    environment, needs = environment_of(runtime), BACKENDS[runtime.backend].needs
    found = {"python": environment.python_version}
    for name in ("numpy", *needs):
        packages = (name, f"{name}-cpu", f"{name}-cuda12x", f"{name}-cuda13x")
        found[name] = next(filter(None, map(environment.version, packages)), "")
    if runtime.device == "gpu":
        found |= versions_on_a_card(environment, "jax" in needs)
    elif runtime.device in ADAPTERS:
        found |= {adapter.name: adapter.driver for adapter in webgpu.adapters() if adapter.kind == runtime.device}
    return ", ".join(f"{name} {version}" for name, version in found.items() if version)


def load_train(key: str) -> Train:
    """Import a backend's library and return its training function; for workers and tests, not for the kernel."""
    backend = BACKENDS[key]
    return getattr(importlib.import_module(f"lib.model.backends.{backend.module}"), backend.function)
