"""Events in a card's queue, with a stand-in for the card: a queue whose work takes time, and a host that takes more."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from lib.model.spec import Network
from lib.timing.profiling.harness import Subject
from lib.timing.profiling.on_card import HOLD_SIDE, CardQueue, OnCard, cupy_card, torch_card
from lib.timing.profiling.operations import LIBRARIES, ON_CARD, OPERATIONS, measure_operations

KERNEL_S, LAUNCH_S, HOLD_S = 2e-6, 10e-6, 300e-6


@dataclass
class Simulated:
    """A card that works through its queue while the host launches; `queue` bounds what may be launched ahead."""

    queue: int = 1024
    host_s: float = 0.0
    free_s: float = 0.0  # when the card is done with all that is queued
    launched: list[float] = field(default_factory=list)  # when each launch will be done

    def launch(self, work_s: float, takes_s: float = LAUNCH_S) -> float:
        self.host_s += takes_s
        if len(self.launched) >= self.queue:
            self.host_s = max(self.host_s, self.launched[-self.queue])  # the host waits for a place
        self.free_s = max(self.free_s, self.host_s) + work_s
        self.launched.append(self.free_s)
        return self.free_s

    def wait(self) -> None:
        self.host_s = max(self.host_s, self.free_s)

    def between_s(self, first: float, last: float) -> float:
        self.wait()
        return last - first

    @property
    def card(self) -> CardQueue:
        return CardQueue(
            lambda: self.launch(HOLD_S), lambda: self.launch(0.0), lambda at: at <= self.host_s, self.between_s
        )


def measured(simulated, *calls):
    experiment = OnCard(calls, simulated.card)
    experiment.prepare()
    return experiment.block()


def test_a_kernel_shorter_than_its_launch_has_its_own_time():
    simulated = Simulated()
    found_s = measured(simulated, lambda: simulated.launch(KERNEL_S), lambda: simulated.launch(2 * KERNEL_S))
    assert found_s == pytest.approx(3 * KERNEL_S, rel=0.02)
    assert found_s < LAUNCH_S, "the host's clock would have shown two launches"


@pytest.mark.parametrize("queue", [1024, 64])
def test_calls_of_many_kernels_do_not_fill_the_queue(queue):
    """A full queue would let the host wait for the card, and the card for the host."""
    simulated = Simulated(queue)
    found_s = measured(simulated, lambda: [simulated.launch(KERNEL_S) for _ in range(25)])
    assert found_s == pytest.approx(25 * KERNEL_S, rel=0.05)


def test_a_slow_host_needs_a_longer_hold():
    simulated = Simulated()
    found_s = measured(simulated, lambda: simulated.launch(KERNEL_S, takes_s=1e-3))
    assert found_s == pytest.approx(KERNEL_S, rel=0.02)


def test_a_call_that_waits_is_refused():
    simulated = Simulated()

    def waits():
        simulated.launch(KERNEL_S)
        simulated.wait()

    with pytest.raises(RuntimeError, match="one of the calls waits for it"):
        measured(simulated, waits)


def events(times: Iterator[float]) -> SimpleNamespace:
    """As `torch.cuda` and `cupy.cuda`: their events, in milliseconds."""

    class Event:
        def __init__(self, enable_timing: bool = False) -> None:
            self.timed, self.recorded_ms = enable_timing, 0.0

        def record(self) -> None:
            self.recorded_ms = next(times)

        def query(self) -> bool:
            return False

        done = False

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, last: "Event") -> float:
            assert self.timed, "as PyTorch demands"
            assert last.timed
            return last.recorded_ms - self.recorded_ms

    return SimpleNamespace(Event=Event, get_elapsed_time=lambda first, last: last.recorded_ms - first.recorded_ms)


@pytest.mark.parametrize(("name", "make"), [("torch", torch_card), ("cupy", cupy_card)])
def test_the_libraries_events_are_of_milliseconds(monkeypatch, name, make):
    held = []
    library = SimpleNamespace(
        cuda=events(iter([5.0, 7.0])),
        ones=lambda *shape, **_: SimpleNamespace(shape=shape),
        mm=lambda a, b, out: held.append(a),
        matmul=lambda a, b, out: held.append(a),
    )
    monkeypatch.setitem(sys.modules, name, library)
    card = make()
    card.hold()
    first, last = card.mark(), card.mark()
    assert not card.passed(first)
    assert card.between_s(first, last) == pytest.approx(2e-3)
    assert str(HOLD_SIDE) in str(held[0].shape)


@pytest.mark.slow
def test_operations_on_a_card_have_both_times(small_data, monkeypatch):
    """Called and waited for, as the articles did it; and what the card itself needs for it."""
    simulated = Simulated()

    def with_card(device):
        library = LIBRARIES["numpy"](device)
        return type(library)(**{**vars(library), "card": lambda: simulated.card})

    monkeypatch.setitem(LIBRARIES, "torch", with_card)
    rows = {row[0]: row for row in measure_operations("torch", Subject(Network((4,)), 8, small_data, "gpu")) if row}
    keys = {operation.key for operation in OPERATIONS}
    assert {ON_CARD + key for key in keys} <= rows.keys()
    assert not any(name.startswith(ON_CARD) for name in set(rows) - {ON_CARD + key for key in keys})
    assert all(rows[ON_CARD + key][1].median_s == 0.0 for key in keys), "NumPy launches nothing on the simulated card"
