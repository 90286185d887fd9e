"""What a library costs before its first result, and after it: in fresh processes, stage by stage.

* `process`: from the start of a Python process to its first line.
* `import`: importing the library.
* `context`: asking for the device and bringing a first array to it; a card sets up its context here.
* `first`, `second`, `steady`: nested sines of that array, each call waited for. What the first takes longer than the
  steady one is loading kernels, and in JAX compiling one for each operation.
* `compiled first`, `compiled second`, `compiled steady`: the same sines as one program. What the first takes longer is
  compilation.

A worker runs it, and starts the processes: `python -m lib.timing.profiling.first_use WORKER DEVICE SIZE DEPTH`.
"""

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")
BEGAN_S = time.perf_counter()  # the process' first line of ours: NumPy is not imported yet

REPETITIONS = 3
STEADY_CALLS = 50
LIMIT_S = 120.0  # of a process
POLL_S = 0.02
MODULES = {"numpy": "numpy", "jax": "jax", "torch": "torch", "keras-tensorflow": "tensorflow", "cupy": "cupy"}
# What would let a library find a program that an earlier process compiled. PyTorch sets Triton's folder itself, also in
# the worker whose environment the fresh processes get.
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUPY_CACHE_DIR", "CUDA_CACHE_PATH")


def first_uses(worker: str, device: str, size: int, depth: int) -> Iterator[dict[str, float] | None]:
    """Seconds of each stage in `REPETITIONS` fresh processes, one after the other.

    Args:
        worker: Key of `lib.timing.profiling.operations.LIBRARIES`.
        device: `cpu` or `gpu`.
        size: Elements of the array.
        depth: Sines in one another.

    Yields:
        The stages of each process by name; None while it runs, so that it can be stopped.

    Raises:
        RuntimeError: A process failed, or took longer than `LIMIT_S`; the text says what it wrote last.
    """
    for _ in range(REPETITIONS):
        # A compiler's own processes may still write into it when the process has ended.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as empty:
            yield from _one(worker, device, size, depth, empty)


def _one(worker: str, device: str, size: int, depth: int, empty: str) -> Iterator[dict[str, float] | None]:
    environment = os.environ | dict.fromkeys(CACHES, empty)
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)  # JAX neither reads nor writes without it
    command = _command(worker, device, size, depth)
    with tempfile.TemporaryFile("w+") as errors:  # no pipe: nobody reads before the end, and a full one is waited for
        began_s = time.perf_counter()  # one clock for all processes, where it counts from the machine's start
        process = subprocess.Popen(
            [*command, repr(began_s)], env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        try:
            while process.poll() is None:
                if time.perf_counter() - began_s > LIMIT_S:
                    raise RuntimeError(f"a fresh process of {MODULES[worker]} took more than {LIMIT_S:.0f} s")
                yield None
                time.sleep(POLL_S)
            said, _ = process.communicate()
            if process.returncode:
                errors.seek(0)
                last = (errors.read().strip().splitlines() or ["nothing was written"])[-1]
                raise RuntimeError(f"a fresh process of {MODULES[worker]} ended with {process.returncode}: {last}")
            yield json.loads(said.splitlines()[-1])
        finally:
            with process:  # closes its pipe, and waits for its end
                process.kill()


def _command(worker: str, device: str, size: int, depth: int) -> list[str]:
    return [sys.executable, "-m", "lib.timing.profiling.first_use", worker, device, str(size), str(depth)]


def stages(worker: str, device: str, size: int, depth: int, started_s: float) -> dict[str, float]:
    """Seconds of each stage in this process, which must be fresh.

    Args:
        worker: Key of `lib.timing.profiling.operations.LIBRARIES`.
        device: `cpu` or `gpu`.
        size: Elements of the array.
        depth: Sines in one another.
        started_s: When the process was started, on `time.perf_counter`.
    """
    found = {"process": max(0.0, BEGAN_S - started_s)}
    clock = time.perf_counter

    def timed(name: str, call: Callable[[], T]) -> T:
        began = clock()
        result = call()
        found[name] = clock() - began
        return result

    timed("import", lambda: importlib.import_module(MODULES[worker]))
    import numpy as np

    from lib.timing.profiling.operations import LIBRARIES, Library

    def ready() -> tuple[Library, object]:
        library = LIBRARIES[worker](device)
        return library, library.wait(library.move(np.ones(size, np.float32)))

    library, here = timed("context", ready)

    def nested(x):
        for _ in range(depth):
            x = library.sine(x)
        return x

    def program(of: Callable) -> Callable[[], object]:
        return lambda: library.wait(of(here))

    timed("first", program(nested))
    timed("second", program(nested))
    found["steady"] = _steady_s(program(nested))
    if library.fused is not None:
        fused = library.fused(nested)
        timed("compiled first", program(fused))
        timed("compiled second", program(fused))
        found["compiled steady"] = _steady_s(program(fused))
    return found


def _steady_s(call: Callable[[], object]) -> float:
    """Median seconds of calls one after another."""
    times_s = []
    for _ in range(STEADY_CALLS):
        began = time.perf_counter()
        call()
        times_s.append(time.perf_counter() - began)
    return sorted(times_s)[len(times_s) // 2]


if __name__ == "__main__":
    _worker, _device, _size, _depth, _started_s = sys.argv[1:]
    print(json.dumps(stages(_worker, _device, int(_size), int(_depth), float(_started_s))))
