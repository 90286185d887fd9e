"""A card's own time for calls that take it less long than they take to be dispatched, from events in its queue.

The host's clock cannot see it: a kernel of two microseconds lasts as long as its launch. So the card is first held by
long work; the calls are queued behind that, between two events, and when the card comes to them it goes from one to the
next without anybody. Where it had passed the first event before the last call was queued, it has waited for the host:
that figure is thrown away, and the card held for longer.
"""

# pyright: reportMissingImports=false
# PyTorch and CuPy are optional.

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lib.timing.measurement import Step

QUEUED = 256  # calls at a time: a card's queue holds some thousand launches, and a call makes a few
MOST_HOLDS = 512
HOLD_SIDE = 2048  # of a product of square matrices: tenths of a millisecond on the fastest card


@dataclass(frozen=True)
class CardQueue:
    """What a library can do with its card's queue.

    Args:
        hold: Puts one piece of long work into the queue.
        mark: Puts an event into the queue, and returns it.
        passed: Whether the card has come to an event.
        between_s: Waits for the second of two events; seconds from the first to it, by the card's clock.
    """

    hold: Callable[[], object]
    mark: Callable[[], Any]
    passed: Callable[[Any], bool]
    between_s: Callable[[Any, Any], float]


@dataclass
class OnCard:
    """Several calls, queued one after another, timed by the card.

    Args:
        calls: Together they make one training step; none of them may wait for the card.
        card: Whose queue they go into.
    """

    calls: Sequence[Step]
    card: CardQueue

    def prepare(self) -> None:
        """Make the calls once, and find how long the card must be held."""
        self._repetitions, self._holds = max(1, QUEUED // len(self.calls)), 1
        self._timed()  # compiles, and loads what is loaded late
        self.block()

    def block(self) -> float:
        """Seconds of one training step.

        Raises:
            RuntimeError: The calls cannot be queued while the card is held: one of them waits for it.
        """
        while (spent_s := self._timed()) is None:
            if self._repetitions == 1 and self._holds >= MOST_HOLDS:
                raise RuntimeError(
                    f"expected {len(self.calls)} calls to be queued within {MOST_HOLDS} products of {HOLD_SIDE:,}, and"
                    " the card was done with these before: one of the calls waits for it; leave that one out"
                )
            self._repetitions, self._holds = max(1, self._repetitions // 2), min(2 * self._holds, MOST_HOLDS)
        return spent_s / self._repetitions

    def _timed(self) -> float | None:
        """Seconds of all repetitions; None where the card waited for the host meanwhile."""
        for _ in range(self._holds):
            self.card.hold()
        first = self.card.mark()
        for _ in range(self._repetitions):
            for call in self.calls:
                call()
        last = self.card.mark()
        waited = self.card.passed(first)
        spent_s = self.card.between_s(first, last)
        return None if waited else spent_s


def torch_card() -> CardQueue:
    """PyTorch's card."""
    import torch

    a, out = (torch.ones(HOLD_SIDE, HOLD_SIDE, device="cuda") for _ in range(2))

    def mark() -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between_s(first: Any, last: Any) -> float:
        last.synchronize()
        return first.elapsed_time(last) / 1e3

    return CardQueue(lambda: torch.mm(a, a, out=out), mark, lambda event: event.query(), between_s)


def cupy_card() -> CardQueue:
    """CuPy's card."""
    import cupy as cp

    a, out = (cp.ones((HOLD_SIDE, HOLD_SIDE), np.float32) for _ in range(2))

    def mark() -> Any:
        event = cp.cuda.Event()
        event.record()
        return event

    def between_s(first: Any, last: Any) -> float:
        last.synchronize()
        return cp.cuda.get_elapsed_time(first, last) / 1e3

    return CardQueue(lambda: cp.matmul(a, a, out=out), mark, lambda event: event.done, between_s)
