"""The step that is taken apart: measured in turns, closed quietly, its parts; and events in a card's queue."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from lib.model.backends.base import Epoch, Steps
from lib.model.spec import Network
from lib.timing.profiling import harness
from lib.timing.profiling.harness import (
    CardQueue,
    Subject,
    interleaved,
    loop,
    nothing,
    on_card,
    trained_step,
)
from lib.timing.profiling.operations import LIBRARIES, ON_CARD, OPERATIONS, measure_operations

NETWORK = Network((16,))


@pytest.fixture
def subject(small_data):
    return Subject(NETWORK, 32, small_data, "cpu")


def test_the_loop_goes_round(subject):
    seen = []
    step = loop(subject, lambda x, y: seen.append((x.shape, len(y))))
    for _ in range(len(subject.starts) + 1):
        step()
    assert set(seen) == {((32, 784), 32)}
    loop(subject, nothing)()


def test_experiments_are_measured_in_turns_and_can_be_stopped():
    order = []

    def fake(name):
        order.append(f"prepare {name}")
        yield 0.0
        while True:
            order.append(name)
            yield 1.0 if name == "a" else 2.0

    rows = list(interleaved({"a": fake("a"), "b": fake("b")}, rounds=20))
    assert order[:2] == ["prepare a", "prepare b"]
    assert all({*order[i : i + 2]} == {"a", "b"} for i in range(2, 42, 2)), "each once a round"
    assert len({tuple(order[i : i + 2]) for i in range(2, 42, 2)}) == 2, "in an order that changes"
    assert next(row for row in rows if row)[1].block_s == (1.0,) * 20
    assert rows.count(None) == 2 + 40


def test_the_tiny_step_differs_in_nothing_but_its_size(subject):
    tiny = subject.tiny
    assert (tiny.network.hidden, tiny.batch_size) == ((1,), 1)
    assert (tiny.data, tiny.device) == (subject.data, subject.device)
    assert [array.shape for array in tiny.batch] == [(1, 784), (1,)]


def test_the_processor_seconds_of_an_evaluation_are_in_no_step(subject, monkeypatch):
    """Ten steps take ten processor seconds, and the evaluation after them a thousand."""
    spent_s = [0.0]

    def training(*_):
        while True:
            for begun in range(0, 20, 10):
                spent_s[0] += 10
                yield Steps(0, begun, np.zeros(10, np.float32), 1.0)
            spent_s[0] += 1000
            yield Epoch(0, 20, 0.5, 0.5, 2.0, 1.0, list)

    monkeypatch.setattr(harness, "load_train", lambda _: training)
    monkeypatch.setattr(harness.time, "process_time", lambda: spent_s[0])
    monkeypatch.setattr(harness, "REAL_S", 3.0)
    busy_s: list[float] = []
    step = trained_step("numpy", subject, busy_s)
    for _ in range(5):
        next(step)
    assert busy_s == [pytest.approx(1.0)] * 5


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
    experiment = on_card(calls, simulated.card)
    next(experiment)
    return next(experiment)


def test_a_kernel_shorter_than_its_launch_has_its_own_time():
    simulated = Simulated()
    found_s = measured(simulated, lambda: simulated.launch(KERNEL_S), lambda: simulated.launch(2 * KERNEL_S))
    assert found_s == pytest.approx(3 * KERNEL_S, rel=0.02)
    assert found_s < LAUNCH_S, "the host's clock would have shown two launches"
    slow = Simulated()
    assert measured(slow, lambda: slow.launch(KERNEL_S, takes_s=1e-3)) == pytest.approx(KERNEL_S, rel=0.02)


@pytest.mark.parametrize("queue", [1024, 64])
def test_calls_of_many_kernels_do_not_fill_the_queue(queue):
    """A full queue would let the host wait for the card, and the card for the host."""
    simulated = Simulated(queue)
    found_s = measured(simulated, lambda: [simulated.launch(KERNEL_S) for _ in range(25)])
    assert found_s == pytest.approx(25 * KERNEL_S, rel=0.05)


def test_a_call_that_waits_is_refused():
    simulated = Simulated()

    def waits():
        simulated.launch(KERNEL_S)
        simulated.wait()

    with pytest.raises(RuntimeError, match="one of the calls waits for it"):
        measured(simulated, waits)


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
