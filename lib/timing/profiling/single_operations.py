"""Operations by themselves, at one size: products, nested sines, transfers; first uses, and what a compiler fuses.

Runs in a library's worker. Each is timed in several ways, block by block in turns:

* `waited`: the operands lie on the device, and the clock stops when the result is there.
* `moved`: the operands come from host memory, and the result goes back to it.
* `returned`: the clock stops when the call returns, whether anything has been computed or not. That is the mistake
  which makes a graphics card look as if it took the same time for any size.

Nested sines are made by a call each (`eager`), and as one compiled program (`fused`), both waited for and moved.

Arrays are `copied` to where a library computes, brought from memory that cannot be paged out (`pinned`), or not moved
at all (`aliased`). On a graphics card `copied` is what everybody writes: from pageable memory, which the driver copies
into a buffer of its own first; from `pinned` memory the card reads directly. On a processor host and device are one
memory: a copy is a choice, and an alias of the same bytes is the other.

Bringing data there, computing, and bringing it back (`overlap`):

* `in turn` is the article's way: a stream for each stage, but each is waited for before the next one begins, and there
  is one piece. Nothing can overlap: of one piece, the next stage needs the whole result of the one before.
* `in pieces`: while a piece is computed, the next one is brought and the one before goes back.
"""

# pyright: reportMissingImports=false
# PyTorch is optional.

import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from typing import Any

import numpy as np

from lib.model.data.mnist import aligned
from lib.timing.measurement import Step, no_wait
from lib.timing.profiling.first_use import MODULES
from lib.timing.profiling.harness import CONFIG, Repeated, Row, SelfTimed, StepExperiment, interleaved, row_of
from lib.timing.profiling.operations import LIBRARIES, Library, multiplying
from lib.timing.profiling.request import (
    ALIASED,
    COPIED,
    EAGER,
    FUSED,
    IN_PIECES,
    IN_TURN,
    ITEM_BYTES,
    LANES,
    MOVED,
    PINNED,
    RETURNED,
    WAITED,
    OperationRequest,
)

LEAST_ROUNDS, MOST_ROUNDS = 3, 9
ROUNDS_S = 2.0  # of all ways at a size, unless that makes fewer rounds than the least
MOST_DRAWN = 2**24  # random numbers of an operand, then the same again: drawing a billion takes ten seconds
LONG_S = 0.02  # a call that takes longer is not repeated within a block
REPETITIONS = 3  # of a first use, each in a fresh process
LIMIT_S = 120.0  # of such a process
POLL_S = 0.02
# What would let a library find a program that an earlier process compiled. PyTorch sets Triton's folder itself, also in
# the worker whose environment the fresh processes get.
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUPY_CACHE_DIR", "CUDA_CACHE_PATH")
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

    exact = partial(library.arithmetic, operation.precision)
    with exact():
        ways, call_s = make(worker, device, library, operation)
    yield None
    within = {name: Within(way, exact) for name, way in ways.items()}
    for row in interleaved(within, rounds(len(ways), call_s)):
        yield None if row is None else (row[0], row[1], work(operation, row[0]))


def _first_uses(worker: str, device: str, operation: OperationRequest) -> Iterator[Row | None]:
    """A row for each stage of `lib.timing.profiling.first_use`; a block is a process."""
    processes: list[dict[str, float]] = []
    for _ in range(REPETITIONS):
        # A compiler's own processes may still write into it when the process has ended.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as empty:
            yield from _in_a_fresh_process(worker, device, operation, empty, processes)
    for stage in processes[0]:
        yield row_of(stage, (found[stage] for found in processes))


def _in_a_fresh_process(
    worker: str, device: str, operation: OperationRequest, empty: str, found: list[dict[str, float]]
) -> Iterator[None]:
    """Add the stages of a process to those that are found; they can be stopped while it runs."""
    environment = os.environ | dict.fromkeys(CACHES, empty)
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)  # JAX neither reads nor writes without it
    asked = (worker, device, str(operation.size), str(operation.depth))
    with tempfile.TemporaryFile("w+") as errors:  # no pipe: nobody reads before the end, and a full one is waited for
        began_s = time.perf_counter()  # one clock for all processes, where it counts from the machine's start
        command = [*_COMMAND, *asked, repr(began_s)]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True)
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
            found.append(json.loads(said.splitlines()[-1]))
        finally:
            with process:  # closes its pipe, and waits for its end
                process.kill()


_COMMAND = [sys.executable, "-m", "lib.timing.profiling.first_use"]


def _fusions(_worker: str, device: str, operation: OperationRequest) -> Iterator[Row]:
    from lib.timing.profiling.with_jax import fusion_counts

    for name, count in fusion_counts(device, operation.size, operation.depth):
        yield row_of(name, [count])


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
        with self.surroundings():
            self.experiment.prepare()

    def block(self) -> float:
        with self.surroundings():
            return self.experiment.block()


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
    product = multiplying(library, library.move(a), library.move(b))
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
    worker: str, device: str, library: Library, operation: OperationRequest
) -> tuple[dict[str, StepExperiment], float]:
    calls = transfers(worker, device, library, operation.size)
    return {name: _repeated(call) for name, call in calls.items()}, max(map(_first_call_s, calls.values()))


def transfers(worker: str, device: str, library: Library, n_bytes: int) -> dict[str, Step]:
    """The ways that a library has, by name; each call waits until the array is where it should be.

    Args:
        worker: Key of `LIBRARIES`.
        device: `cpu` or `gpu`.
        library: The worker's.
        n_bytes: Of the array, a multiple of 4.
    """
    source = aligned((n_bytes // 4,), np.float32)  # as XLA wants it: else it copies where it could alias
    source[:] = 1.0
    host = library.host(source, "float32")
    here = library.wait(library.move(host))

    def moved(array: Any) -> Step:
        return lambda: library.wait(library.move(array))

    if worker == "keras-tensorflow":
        import tensorflow as tf

        return {COPIED: moved(host), ALIASED: lambda: tf.identity(here)}
    if worker == "cupy":
        return {COPIED: moved(host), ALIASED: moved(here)}
    if worker == "torch":
        if device == "cpu":
            return {COPIED: host.clone, ALIASED: moved(host)}
        return {COPIED: moved(host), PINNED: moved(host.pin_memory()), ALIASED: moved(here)}
    if worker == "numpy":
        return {COPIED: host.copy, ALIASED: host.view}
    import jax
    import jax.numpy as jnp
    from jax.sharding import SingleDeviceSharding

    if device == "cpu":  # `device_put` aliases an aligned array here, also where it is told not to
        return {COPIED: lambda: library.wait(jnp.array(host)), ALIASED: moved(host)}
    pinned = jax.device_put(host, SingleDeviceSharding(jax.devices(device)[0], memory_kind="pinned_host"))
    return {COPIED: moved(host), PINNED: moved(library.wait(pinned)), ALIASED: moved(here)}


_OPERATIONS = {
    "product": (_products, lambda operation, _: 2.0 * operation.size**3),
    "sine": (_sines, _sine_work),
    "transfer": (_transfers, lambda operation, _: float(operation.size)),
}

Span = tuple[float, float]  # seconds from the beginning of a run
Stage = Callable[[slice], object]  # on a piece


def measure_overlap(worker: str, device: str, operation: OperationRequest) -> Iterator[Row | None]:
    """Time both ways in turns, and when each stage of each piece began and ended in the last run of each.

    Args:
        worker: `torch` on a card, `numpy` on a processor.
        device: `cpu` or `gpu`.
        operation: Elements, sines in one another, and pieces.

    Yields:
        None where it can be stopped; in the end a row for `IN_TURN` and one for `IN_PIECES`, and for each of these and
        of `LANES` `…/begins` and `…/ends`, whose blocks are pieces.
    """
    if (device, worker) not in (("cpu", "numpy"), ("gpu", "torch")):
        raise ValueError(f"overlap: expected numpy on cpu or torch on gpu, got {worker} on {device}; ask for these")
    stages = OnStreams(operation) if device == "gpu" else OnThreads(operation)
    try:
        runs = {IN_TURN: stages.in_turn, IN_PIECES: stages.in_pieces}
        last: dict[str, list[list[Span]]] = {}

        def timed(name: str) -> float:
            began = time.perf_counter()
            last[name] = runs[name]()
            return time.perf_counter() - began

        yield from interleaved({name: SelfTimed(partial(timed, name)) for name in runs})
        for name, lanes in last.items():
            for lane, spans in zip(LANES, lanes, strict=True):
                for end, values in zip(("begins", "ends"), zip(*spans, strict=True), strict=True):
                    yield row_of(f"{name}/{lane}/{end}", values)
    finally:
        stages.close()


class OnThreads:
    """Three stages on an array of ones, `y` = sin(sin(…x)), a thread for each.

    Both ways return the spans of each lane's pieces. The device is another array: NumPy lets go of Python's lock in
    copies and sines, so that they can overlap as far as there are cores.
    """

    def __init__(self, operation: OperationRequest) -> None:
        self.depth, self.pieces = operation.depth, _pieces(operation)
        self.x, self.y = np.ones(operation.size, np.float32), np.zeros(operation.size, np.float32)
        self.there = np.zeros_like(self.x)
        self._threads = ThreadPoolExecutor(len(LANES))

    def _stages(self) -> tuple[Stage, ...]:
        def bring(piece: slice) -> None:
            np.copyto(self.there[piece], self.x[piece])

        def compute(piece: slice) -> None:
            for _ in range(self.depth):
                np.sin(self.there[piece], out=self.there[piece])

        def bring_back(piece: slice) -> None:
            np.copyto(self.y[piece], self.there[piece])

        return bring, compute, bring_back

    def in_turn(self) -> list[list[Span]]:
        """The same three threads, and a wait for each."""
        began, whole = time.perf_counter(), slice(0, len(self.x))
        return [[self._threads.submit(_timed, stage, whole, began).result()] for stage in self._stages()]

    def in_pieces(self) -> list[list[Span]]:
        """Each thread begins a piece when the one before it has done it."""
        began = time.perf_counter()
        done = [[threading.Event() for _ in self.pieces] for _ in LANES]

        def lane(number: int, stage: Stage) -> list[Span]:
            spans = []
            for index, piece in enumerate(self.pieces):
                if number:
                    done[number - 1][index].wait()
                spans.append(_timed(stage, piece, began))
                done[number][index].set()
            return spans

        running = [self._threads.submit(lane, number, stage) for number, stage in enumerate(self._stages())]
        return [one.result() for one in running]

    def close(self) -> None:
        self._threads.shutdown()


def _timed(stage: Stage, piece: slice, began: float) -> Span:
    begin = time.perf_counter() - began
    stage(piece)
    return begin, time.perf_counter() - began


def _pieces(operation: OperationRequest) -> list[slice]:
    edges = np.linspace(0, operation.size, max(1, min(operation.pieces, operation.size)) + 1).astype(int).tolist()
    return [slice(low, high) for low, high in itertools.pairwise(edges)]


class OnStreams:
    """The same on a card: a stream of PyTorch for each stage, timed by the card's own events.

    From and to pinned memory in pieces, pageable in turn, as in the article.
    """

    def __init__(self, operation: OperationRequest) -> None:
        import torch

        self._torch, self.depth, self.pieces = torch, operation.depth, _pieces(operation)
        self._streams = [torch.cuda.Stream() for _ in LANES]
        self._pageable = torch.ones(operation.size)
        self._pinned, self._there = self._pageable.pin_memory(), torch.empty(operation.size, device="cuda")
        self._back = torch.zeros(operation.size)
        self._pinned_back = self._back.pin_memory()

    def in_turn(self) -> list[list[Span]]:
        """The article's: pageable memory, and each stream synchronised before the next one begins."""
        return self._run([slice(0, len(self._pageable))], self._pageable, self._back, in_turn=True)

    def in_pieces(self) -> list[list[Span]]:
        """Pinned memory, and streams that wait for events of one another, not the host for them."""
        return self._run(self.pieces, self._pinned, self._pinned_back, in_turn=False)

    def close(self) -> None:
        """Wait for the streams; their memory goes with this object."""
        self._torch.cuda.synchronize()

    def _run(self, pieces: list[slice], source: Any, target: Any, in_turn: bool) -> list[list[Span]]:
        there, cuda = self._there, self._torch.cuda

        def bring(piece: slice) -> None:
            there[piece].copy_(source[piece], non_blocking=True)

        def compute(piece: slice) -> None:
            for _ in range(self.depth):
                self._torch.sin(there[piece], out=there[piece])

        def bring_back(piece: slice) -> None:
            target[piece].copy_(there[piece], non_blocking=not in_turn)

        cuda.synchronize()
        began = cuda.Event(enable_timing=True)
        began.record()
        marks: list[list] = [[] for _ in LANES]
        for piece in pieces:
            before = None
            for lane, stage, stream in zip(marks, (bring, compute, bring_back), self._streams, strict=True):
                lane.append(self._queue(stage, stream, piece, before))
                if in_turn:
                    stream.synchronize()
                before = lane[-1][1]
        cuda.synchronize()
        ends_s = [[[max(0.0, began.elapsed_time(end) / 1e3) for end in mark] for mark in lane] for lane in marks]
        return [[(begin, max(begin, end)) for begin, end in lane] for lane in ends_s]

    def _queue(self, stage: Stage, stream: Any, piece: slice, before: Any) -> tuple[Any, Any]:
        """Put a stage into its stream, after an event of another one; the events of its beginning and its end."""
        begin, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        with self._torch.cuda.stream(stream):
            if before is not None:
                stream.wait_event(before)
            begin.record(stream)
            stage(piece)
            end.record(stream)
        return begin, end


_OTHERWISE: dict[str, Callable[[str, str, OperationRequest], Iterator[Row | None]]] = {
    "first use": _first_uses,
    "fusion": _fusions,
    "overlap": measure_overlap,
}
