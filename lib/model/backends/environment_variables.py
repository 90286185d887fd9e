"""The environment variables that a worker's process needs before it imports its library, and what follows from them."""

import os

from lib import ROOT, python_path
from lib.cache_folder import CacheUnwritable, cache_dir
from lib.model.backends.fingerprint import digest_of
from lib.model.backends.registry import BACKENDS, JAX_PRECISION, PRECISIONS, Runtime
from lib.model.hardware.machine import usable_cores
from lib.model.hardware.nvidia import cards

# jaxlib 0.10.2 hands reductions on a processor to a library that returns wrong sums, crashes or hangs (jax#39103,
# #39257, #40412).
XLA_WITHOUT_WRONG_SUMS = "--xla_cpu_experimental_ynn_fusion_type=-reduce"


def device_count(device: str) -> int:
    """Number of JAX devices of a worker: GPUs, or on a CPU one per core (see `worker_environment`)."""
    return usable_cores() if device == "cpu" else len(cards())


def numba_cache(folder: str) -> str:
    """Where Numba keeps in this folder what it has compiled from the kernels as they are now.

    Numba compiles a function again when its own file has changed, but not when one that it calls into has.
    """
    return os.path.join(folder, f"numba-{digest_of([ROOT / 'lib/model/backends/sparse.py'])}")


def worker_environment(runtime: Runtime, compilation_cache: str | None, threads: int | None = None) -> dict[str, str]:
    """The environment variables that a worker's process needs before it imports its library.

    `threads` limits its threads, which are otherwise as many as there are cores.
    """
    environment = dict(BACKENDS[runtime.backend].environment)
    n_threads = str(threads or usable_cores())
    environment |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), n_threads)
    environment |= dict.fromkeys(("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), n_threads) if threads else {}
    environment |= {"NPROC": n_threads} if threads else {}  # XLA takes it for the number of cores
    environment |= {"NUMBA_NUM_THREADS": n_threads}
    if "jax" in BACKENDS[runtime.backend].needs and runtime.device == "cpu":
        flags = [XLA_WITHOUT_WRONG_SUMS, *os.environ.get("XLA_FLAGS", "").split()]  # the last of two wins: the user's
        if BACKENDS[runtime.backend].worker == "jax" and not threads:
            # A stack is divided among devices: make each core a device. A single training uses only the first of them,
            # with all threads.
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
        # Over anything that a program or a default says, in all of NVIDIA's own libraries.
        environment |= {"NVIDIA_TF32_OVERRIDE": "0"} if runtime.precision == "float32" else {}
        # TensorFlow writes as a warning why it does not use the card; the worker passes it on.
        environment |= {"TF_CPP_MIN_LOG_LEVEL": "1"} if "tensorflow" in BACKENDS[runtime.backend].needs else {}
    if compilation_cache is not None:
        environment |= {
            "JAX_COMPILATION_CACHE_DIR": compilation_cache,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            "NUMBA_CACHE_DIR": numba_cache(compilation_cache),
        }
    return environment


def complete_environment(runtime: Runtime, threads: int | None = None) -> dict[str, str]:
    """A worker's environment variables: its library's, this project's path, and where compiled programs are cached.

    Args:
        runtime: What the worker trains with.
        threads: At most so many; None: as many as there are cores.
    """
    try:
        compilation_cache = str(cache_dir() / "xla")
    except CacheUnwritable:
        compilation_cache = None
    return worker_environment(runtime, compilation_cache, threads) | {"PYTHONPATH": python_path()}
