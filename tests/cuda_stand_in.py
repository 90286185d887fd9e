"""A miniature replacement for Numba's CUDA: a Python thread per GPU thread, and real barriers.

Unlike Numba's own simulator it runs the blocks of a cooperative grid concurrently. Loops without a barrier are compiled
for the CPU; code with a barrier stays Python. It checks sums, barriers and exchange, but neither speed nor a GPU
compiler.
"""

import functools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import numba
import numpy as np

PROCESSORS, SHARED_BYTES = 3, 48 * 1024
THREADS, LANES = 8, 4  # per block, instead of 256 and 32
TIMEOUT_S = 30.0  # after which a barrier fails if a thread is missing
HERE = threading.local()  # a thread's place in the grid, and its block's barrier and memory


class OnCard(np.ndarray):
    def copy_to_host(self) -> np.ndarray:
        return np.array(self)


class Kernel:
    def __init__(self, function) -> None:
        self.function = function
        self.overloads = self  # for any signature

    def __getitem__(self, configuration):
        if not isinstance(configuration[0], int):
            return SimpleNamespace(max_cooperative_grid_blocks=lambda _threads, _bytes: 2 * PROCESSORS)
        return functools.partial(self.launch, *configuration)

    def launch(self, blocks: int, threads: int, _stream: int, shared_bytes: int, *arguments) -> None:
        whole, failed = threading.Barrier(blocks * threads, timeout=TIMEOUT_S), []

        def run(block: int, thread: int, alone: threading.Barrier, shared: np.ndarray) -> None:
            HERE.block, HERE.thread, HERE.alone, HERE.whole, HERE.shared = block, thread, alone, whole, shared
            try:
                self.function(*arguments)
            except BaseException as error:
                failed.append(error)
                alone.abort()
                whole.abort()

        running = []
        for block in range(blocks):
            alone = threading.Barrier(threads, timeout=TIMEOUT_S)
            shared = np.full(shared_bytes // 4, np.nan, np.float32)  # shared memory starts uninitialized
            running += [threading.Thread(target=run, args=(block, n, alone, shared)) for n in range(threads)]
        for one in running:
            one.start()
        for one in running:
            one.join()
        if failed:
            raise failed[0]


def _jit(function=None, device: bool = False, forceinline: bool = False):
    if not callable(function) or isinstance(function, numba.core.typing.Signature):
        return functools.partial(_jit, device=device, forceinline=forceinline)
    if not device:
        return Kernel(function)
    return function if "cuda" in function.__code__.co_names else numba.njit(function, nogil=True, cache=True)


class _Index:
    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def x(self) -> int:
        return getattr(HERE, self.name)


def _wait(barrier: threading.Barrier) -> None:
    barrier.wait()


def stand_in() -> SimpleNamespace:
    """Return a stand-in for `numba.cuda`; names that are not listed raise an error."""
    grid = SimpleNamespace(sync=lambda: _wait(HERE.whole))
    return SimpleNamespace(
        jit=_jit,
        threadIdx=_Index("thread"),
        blockIdx=_Index("block"),
        syncthreads=lambda: _wait(HERE.alone),
        cg=SimpleNamespace(this_grid=lambda: grid),
        local=SimpleNamespace(array=lambda n, _dtype: np.full(n, np.nan, np.float32)),
        shared=SimpleNamespace(array=lambda _n, _dtype: HERE.shared),
        to_device=lambda array: np.array(array).view(OnCard),
        synchronize=lambda: None,
        get_current_device=lambda: SimpleNamespace(
            MULTIPROCESSOR_COUNT=PROCESSORS, MAX_SHARED_MEMORY_PER_BLOCK=SHARED_BYTES
        ),
    )


@contextmanager
def in_numba_cudas_place() -> Iterator[None]:
    before = {name: sys.modules.get(name) for name in ("numba.cuda", "lib.model.backends.with_numba_cuda")}
    real = vars(numba).get("cuda")
    numba.cuda = sys.modules["numba.cuda"] = stand_in()  # type: ignore[assignment]
    sys.modules.pop("lib.model.backends.with_numba_cuda", None)
    try:
        import lib.model.backends.with_numba_cuda as module

        module.THREADS, module.LANES = THREADS, LANES
        yield
    finally:
        for name, module in before.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module
        if real is None:
            del numba.cuda
        else:
            numba.cuda = real
