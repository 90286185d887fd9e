"""Operations by themselves, at one size: products, nested sines, transfers; first uses, and what a compiler fuses.

Runs in a library's worker. Each is timed in several ways, block by block in turns:

* `waited`: the operands lie on the device, and the clock stops when the result is there.
* `moved`: the operands come from host memory, and the result goes back to it.
* `returned`: the clock stops when the call returns, whether anything has been computed or not. That is the mistake
  which makes a graphics card look as if it took the same time for any size.

Nested sines are made by a call each (`eager`), and as one compiled program (`fused`), both waited for and moved.
"""

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial

import numpy as np

from lib.timing.measurement import Ended, Measurement, Step, no_wait
from lib.timing.profiling.first_use import first_uses
from lib.timing.profiling.harness import CONFIG, Repeated, Row, StepExperiment, interleaved
from lib.timing.profiling.operations import LIBRARIES, Library
from lib.timing.profiling.overlap import measure_overlap
from lib.timing.profiling.request import EAGER, FUSED, ITEM_BYTES, MOVED, RETURNED, WAITED, OperationRequest
from lib.timing.profiling.transfers import transfers

LEAST_ROUNDS, MOST_ROUNDS = 3, 9
ROUNDS_S = 2.0  # of all ways at a size, unless that makes fewer rounds than the least
MOST_DRAWN = 2**24  # random numbers of an operand, then the same again: drawing a billion takes ten seconds
LONG_S = 0.02  # a call that takes longer is not repeated within a block
_SHORT = replace(CONFIG, warm_up_s=0.005, min_block_s=2e-3)


def measure_operation(worker: str, device: str, operation: OperationRequest) -> Iterator[Row | None]:
    """Measure an operation in all ways that the library has.

    Args:
        worker: Key of `lib.timing.profiling.operations.LIBRARIES`.
        device: `cpu` or `gpu`.
        operation: What, at which size.

    Yields:
        A row for each way, whose work is what one call does: floating-point operations of a product, bytes that sines
        read and write at least. None where it can be stopped.
    """
    if operation.name in _OTHERWISE:
        yield from _OTHERWISE[operation.name](worker, device, operation)
        return
    library = _library(worker, device)
    make, work = _OPERATIONS[operation.name]

    def surroundings() -> AbstractContextManager:
        stack = ExitStack()
        stack.enter_context(library.arithmetic(operation.precision))
        stack.enter_context(limited(operation.threads))
        return stack

    with surroundings():
        ways, call_s = make(worker, device, library, operation)
    yield None
    within = {name: Within(way, surroundings) for name, way in ways.items()}
    for row in interleaved(within, rounds(len(ways), call_s)):
        yield None if row is None else (row[0], row[1], work(operation, row[0]))


def _first_uses(worker: str, device: str, operation: OperationRequest) -> Iterator[Row | None]:
    """A row for each stage; a block is a process."""
    processes = []
    for found in first_uses(worker, device, operation.size, operation.depth):
        processes += [found] if found is not None else []
        yield None
    for stage in processes[0]:
        yield stage, Measurement(tuple(found[stage] for found in processes), 1, Ended.CAP), 1.0


def _fusions(_worker: str, device: str, operation: OperationRequest) -> Iterator[Row]:
    """A row for each count, which is no time."""
    from lib.timing.profiling.fusion import counts  # JAX only

    for name, count in counts(device, operation.size, operation.depth):
        yield name, Measurement((float(count),), 1, Ended.CAP), 1.0


_OTHERWISE: dict[str, Callable[[str, str, OperationRequest], Iterator[Row | None]]] = {
    "first use": _first_uses,
    "fusion": _fusions,
    "overlap": measure_overlap,
}


def rounds(ways: int, call_s: float) -> int:
    """How often each way is timed, where a call takes so long.

    >>> rounds(3, 1e-5), rounds(3, 10.0)
    (9, 3)
    """
    return int(np.clip(ROUNDS_S / (ways * max(call_s, 1e-9)), LEAST_ROUNDS, MOST_ROUNDS))


@dataclass
class Within:
    """An experiment inside of surroundings, which are left after each block: it may be paused, and others run."""

    experiment: StepExperiment
    surroundings: Callable[[], AbstractContextManager]

    def prepare(self) -> None:
        """Prepare the experiment."""
        with self.surroundings():
            self.experiment.prepare()

    def block(self) -> float:
        """Seconds of a call, from one block of the experiment."""
        with self.surroundings():
            return self.experiment.block()


@contextmanager
def limited(threads: int) -> Iterator[None]:
    """At most so many cores compute for this process; 0 for all.

    All its threads are bound to these cores, because XLA and TensorFlow size their pools once, when they are loaded.
    BLAS and PyTorch, which can be told, get no more threads than cores.
    """
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    if not 0 < threads < len(allowed):
        yield
        return
    with ExitStack() as stack:
        _told(stack, threads)
        _bind(set(sorted(allowed)[:threads]))
        try:
            yield
        finally:
            _bind(allowed)


def _told(stack: ExitStack, threads: int) -> None:
    """Limit the pools that can be told, until the stack is closed."""
    with suppress(ModuleNotFoundError):  # a bare machine
        from threadpoolctl import threadpool_limits

        stack.enter_context(threadpool_limits(threads))
    if torch := sys.modules.get("torch"):
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(threads)


def _bind(cores: set[int]) -> None:
    """Bind all threads of this process; those that end meanwhile are left out."""
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError):
            os.sched_setaffinity(int(thread), cores)


def _first_call_s(call: Callable[[], object]) -> float:
    """Seconds of a call, after one that compiles, unless that took so long that compiling is the least of it."""
    call_s = 0.0
    for _ in range(2):
        began = time.perf_counter()
        call()
        call_s = time.perf_counter() - began
        if call_s > 0.5:
            break
    return call_s


def _operands(library: Library, shape: tuple[int, ...], count: int, precision: str) -> list:
    rng = np.random.default_rng(0)
    drawn = [rng.standard_normal(min(math.prod(shape), MOST_DRAWN), np.float32) for _ in range(count)]
    return [library.host(np.resize(values, shape), precision) for values in drawn]


def _products(
    worker: str, _device: str, library: Library, operation: OperationRequest
) -> tuple[dict[str, StepExperiment], float]:
    a, b = _operands(library, (operation.size, operation.size), 2, operation.precision)  # (size, size), in host memory
    here = [library.move(one) for one in (a, b)]
    if worker == "numpy":
        out = np.empty_like(a)

        def product() -> object:
            return np.matmul(a, b, out=out)
    else:
        product = partial(library.product, here[0], here[1], False, False)
    call_s = _first_call_s(lambda: library.wait(product()))
    ways: dict[str, StepExperiment] = {WAITED: _repeated(lambda: library.wait(product()))}
    if worker != "numpy":  # it has one memory, and returns when it is done
        moved: Step = lambda: library.back(library.product(library.move(a), library.move(b), False, False))  # noqa: E731
        ways |= {MOVED: _repeated(moved), RETURNED: _until_it_returns(product, library, call_s)}
    return ways, call_s


def _repeated(call: Step) -> StepExperiment:
    return Repeated(call, no_wait, config=_SHORT)


def _until_it_returns(call: Step, library: Library, call_s: float) -> StepExperiment:
    at_most = 1 if call_s > LONG_S / 16 else 16
    return Repeated(call, library.wait, config=_SHORT, returns=True, at_most=at_most)


def _product_work(operation: OperationRequest, _way: str) -> float:
    return 2.0 * operation.size**3


def _sines(
    worker: str, _device: str, library: Library, operation: OperationRequest
) -> tuple[dict[str, StepExperiment], float]:
    (host,) = _operands(library, (operation.size,), 1, operation.precision)  # (size,)
    here = library.move(host)
    programs = _programs(library, operation.depth)
    call_s = max(_first_call_s(lambda one=one: library.wait(one(here))) for one in programs.values())
    ways: dict[str, StepExperiment] = {}
    for name, program in programs.items():
        ways[f"{name}/{WAITED}"] = _repeated(lambda one=program: library.wait(one(here)))
        if worker != "numpy":
            ways[f"{name}/{MOVED}"] = _repeated(lambda one=program: library.back(one(library.move(host))))
    return ways, call_s


@cache
def _library(worker: str, device: str) -> Library:
    return LIBRARIES[worker](device)


@lru_cache(maxsize=32)
def _programs(library: Library, depth: int) -> dict[str, Callable]:
    """The nested sine by the way it is made; cached, because PyTorch takes seconds to compile one for all sizes."""

    def nested(x):
        for _ in range(depth):
            x = library.sine(x)
        return x

    return {EAGER: nested} | ({FUSED: library.fused(nested)} if library.fused is not None else {})


def _sine_work(operation: OperationRequest, way: str) -> float:
    """Bytes: a pass reads and writes each element once; fused, one pass is left of as many as there are sines."""
    passes = operation.depth if way.startswith(EAGER) else 1
    return 2.0 * ITEM_BYTES[operation.precision] * operation.size * passes


def _transfers(
    worker: str, device: str, _library: Library, operation: OperationRequest
) -> tuple[dict[str, StepExperiment], float]:
    calls = transfers(worker, device, operation.size)
    return {name: _repeated(call) for name, call in calls.items()}, max(map(_first_call_s, calls.values()))


def _transfer_work(operation: OperationRequest, _way: str) -> float:
    return float(operation.size)


_OPERATIONS = {
    "product": (_products, _product_work),
    "sine": (_sines, _sine_work),
    "transfer": (_transfers, _transfer_work),
}
