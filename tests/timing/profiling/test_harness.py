"""Experiments are measured in turns, block by block, and can be stopped between two blocks."""

import time

import numpy as np
import pytest

from lib.model.backends.base import Epoch, Steps
from lib.model.spec import Network
from lib.timing.profiling import harness
from lib.timing.profiling.harness import Repeated, Subject, TrainedStep, interleaved, loop, nothing

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

    class Fake:
        def __init__(self, name):
            self.name = name

        def prepare(self):
            order.append(f"prepare {self.name}")

        def block(self):
            order.append(self.name)
            return 1.0 if self.name == "a" else 2.0

    rows = list(interleaved({"a": Fake("a"), "b": Fake("b")}, rounds=20))
    assert order[:2] == ["prepare a", "prepare b"]
    assert all({*order[i : i + 2]} == {"a", "b"} for i in range(2, 42, 2)), "each once a round"
    assert len({tuple(order[i : i + 2]) for i in range(2, 42, 2)}) == 2, "in an order that changes"
    assert next(row for row in rows if row)[1].block_s == (1.0,) * 20
    assert rows.count(None) == 2 + 40


def test_a_block_is_seconds_of_one_training_step():
    """Two calls a step: a step takes as long as both."""
    repeated = Repeated(lambda: time.sleep(1e-4), steps=0.5)
    repeated.prepare()
    assert repeated.block() > 2e-4


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
    step = TrainedStep("numpy", subject)
    step.prepare()
    for _ in range(4):
        step._advance(3.0)
    assert step.busy_s == [pytest.approx(1.0)] * 5
