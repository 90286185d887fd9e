"""Bringing data there, computing, and bringing it back: one after another, or at the same time in pieces.

* `in turn` is the article's way: a stream for each stage, but each is waited for before the next one begins, and there
  is one piece. Nothing can overlap: of one piece, the next stage needs the whole result of the one before.
* `in pieces`: while a piece is computed, the next one is brought and the one before goes back.

On a graphics card the stages are streams of PyTorch: from and to pinned memory in pieces, pageable in turn, as in the
article. On a processor they are three threads, and the device is another array: NumPy lets go of Python's lock in both
copies and sines, so that they can overlap as far as there are cores.
"""

# pyright: reportMissingImports=false
# PyTorch is optional.

import itertools
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from lib.timing.measurement import Ended, Measurement
from lib.timing.profiling.harness import Row, StepExperiment, interleaved
from lib.timing.profiling.request import IN_PIECES, IN_TURN, LANES, OperationRequest

Span = tuple[float, float]  # seconds from the beginning of a run


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
    stages: Stages = OnStreams(operation) if device == "gpu" else OnThreads(operation)
    try:
        runs = {IN_TURN: OverlapRun(stages.in_turn), IN_PIECES: OverlapRun(stages.in_pieces)}
        experiments: dict[str, StepExperiment] = {**runs}
        yield from interleaved(experiments)
        for name, run in runs.items():
            for lane, spans in zip(LANES, run.last, strict=True):
                for end, values in zip(("begins", "ends"), zip(*spans, strict=True), strict=True):
                    yield f"{name}/{lane}/{end}", Measurement(tuple(values), 1, Ended.CAP), 1.0
    finally:
        stages.close()


@dataclass
class OverlapRun:
    """An experiment that remembers when the stages of its last block began and ended."""

    run: Callable[[], list[list[Span]]]
    last: list[list[Span]] = field(default_factory=list)

    def prepare(self) -> None:
        """Run it twice: streams, threads and memory are set up the first time."""
        self.block()
        self.block()

    def block(self) -> float:
        """Seconds of a run."""
        began = time.perf_counter()
        self.last = self.run()
        return time.perf_counter() - began


class Stages(ABC):
    """The three stages on an array of ones, `y` = sin(sin(…x)); both ways return the spans of each lane's pieces."""

    def __init__(self, operation: OperationRequest) -> None:
        self.depth = operation.depth
        edges = np.linspace(0, operation.size, max(1, min(operation.pieces, operation.size)) + 1).astype(int).tolist()
        self.pieces = [slice(low, high) for low, high in itertools.pairwise(edges)]
        self.x, self.y = np.ones(operation.size, np.float32), np.zeros(operation.size, np.float32)

    @abstractmethod
    def in_turn(self) -> list[list[Span]]:
        """One piece, each stage waited for."""

    @abstractmethod
    def in_pieces(self) -> list[list[Span]]:
        """Piece after piece, the stages at the same time."""

    @abstractmethod
    def close(self) -> None:
        """End what still runs."""


class OnThreads(Stages):
    """A thread for each stage."""

    def __init__(self, operation: OperationRequest) -> None:
        super().__init__(operation)
        self.there = np.zeros_like(self.x)
        self._threads = ThreadPoolExecutor(len(LANES))

    def _stages(self) -> Sequence[Callable[[slice], None]]:
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

        def lane(number: int, stage: Callable[[slice], None]) -> list[Span]:
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
        """End the threads."""
        self._threads.shutdown()


def _timed(stage: Callable[[slice], None], piece: slice, began: float) -> Span:
    begin = time.perf_counter() - began
    stage(piece)
    return begin, time.perf_counter() - began


class OnStreams(Stages):
    """A stream of PyTorch for each stage, timed by the card's own events."""

    def __init__(self, operation: OperationRequest) -> None:
        super().__init__(operation)
        import torch

        self._torch = torch
        self._streams = [torch.cuda.Stream() for _ in LANES]
        self._pageable = torch.from_numpy(self.x)
        self._pinned, self._back = self._pageable.pin_memory(), torch.zeros_like(self._pageable).pin_memory()
        self._there = torch.empty(operation.size, device="cuda")

    def in_turn(self) -> list[list[Span]]:
        """The article's: pageable memory, and each stream synchronised before the next one begins."""
        there = self._there

        def bring(piece: slice) -> None:
            there[piece].copy_(self._pageable[piece], non_blocking=True)

        def bring_back(piece: slice) -> None:
            self._torch.from_numpy(self.y)[piece].copy_(there[piece])

        stages, whole = (bring, self._compute, bring_back), slice(0, len(self.x))
        marks = [self._queue(stage, stream, whole, None, True) for stage, stream in self._with_streams(stages)]
        self._torch.cuda.synchronize()
        return [[self._span(mark)] for mark in marks]

    def in_pieces(self) -> list[list[Span]]:
        """Pinned memory, and streams that wait for events of one another, not the host for them."""
        there = self._there

        def bring(piece: slice) -> None:
            there[piece].copy_(self._pinned[piece], non_blocking=True)

        def bring_back(piece: slice) -> None:
            self._back[piece].copy_(there[piece], non_blocking=True)

        found: list[list] = [[] for _ in LANES]
        pairs = self._with_streams((bring, self._compute, bring_back))
        for piece in self.pieces:
            before = None
            for lane, (stage, stream) in zip(found, pairs, strict=True):
                lane.append(self._queue(stage, stream, piece, before, False))
                before = lane[-1][1]
        self._torch.cuda.synchronize()
        return [[self._span(mark) for mark in lane] for lane in found]

    def close(self) -> None:
        """Wait for the streams; their memory goes with this object."""
        self._torch.cuda.synchronize()

    def _compute(self, piece: slice) -> None:
        for _ in range(self.depth):
            self._torch.sin(self._there[piece], out=self._there[piece])

    def _with_streams(self, stages: Sequence[Callable[[slice], None]]) -> list:
        """Each stage with its stream; from now on, spans count."""
        self._torch.cuda.synchronize()
        self._began = self._torch.cuda.Event(enable_timing=True)
        self._began.record()
        return list(zip(stages, self._streams, strict=True))

    def _queue(self, stage: Callable[[slice], None], stream, piece: slice, before, wait: bool) -> tuple:
        """Put a stage into its stream, after an event of another one; the events of its beginning and its end."""
        begin, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        with self._torch.cuda.stream(stream):
            if before is not None:
                stream.wait_event(before)
            begin.record(stream)
            stage(piece)
            end.record(stream)
        if wait:
            stream.synchronize()
        return begin, end

    def _span(self, mark: tuple) -> Span:
        begin, end = (max(0.0, self._began.elapsed_time(event) / 1e3) for event in mark)
        return begin, max(begin, end)
