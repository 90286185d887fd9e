import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, groupby
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.model.backends.base import Epoch, Steps
from lib.timing.profiling import harness
from lib.timing.profiling.harness import Feed, Preprocessing, calibrated, interleaved, on_card
from lib.timing.profiling.request import NotMeasured, Pipeline


def test_the_loop_wraps_around_at_the_end_of_an_epoch(subject):
    seen = []
    step = harness.loop(subject, lambda x, y: seen.append((x.shape, len(y))))
    for _ in range(len(subject.starts) + 1):
        step()
    assert set(seen) == {((32, 784), 32)}
    harness.loop(subject, harness.nothing)()


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


def test_processor_time_of_evaluations_is_not_counted_in_steps(subject, monkeypatch):
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
    step = harness.trained_step("numpy", subject, busy_s)
    for _ in range(5):
        next(step)
    assert busy_s == [pytest.approx(1.0)] * 5


KERNEL_S, LAUNCH_S, HOLD_S = 2e-6, 10e-6, 300e-6


@dataclass
class Simulated:
    """A card that works off its queue while the host launches up to `queue` kernels ahead."""

    queue: int = 1024
    host_s: float = 0.0
    free_s: float = 0.0  # when the card will have finished its queue
    launched: list[float] = field(default_factory=list)  # end time of each launch

    def launch(self, work_s: float, takes_s: float = LAUNCH_S) -> float:
        self.host_s += takes_s
        if len(self.launched) >= self.queue:
            self.host_s = max(self.host_s, self.launched[-self.queue])  # the queue is full: the host waits
        self.free_s = max(self.free_s, self.host_s) + work_s
        self.launched.append(self.free_s)
        return self.free_s

    def wait(self) -> None:
        self.host_s = max(self.host_s, self.free_s)

    def event(self) -> SimpleNamespace:
        mark = SimpleNamespace(at_s=0.0, synchronize=self.wait)
        mark.record = lambda: setattr(mark, "at_s", self.launch(0.0))
        mark.query = lambda: mark.at_s <= self.host_s
        mark.elapsed_time = lambda last: 1e3 * (last.at_s - mark.at_s)
        return mark


def measured(simulated, *calls):
    experiment = on_card(calls, lambda: simulated.launch(HOLD_S), simulated.event)
    next(experiment)
    return next(experiment)


@pytest.mark.parametrize(
    ("queue", "takes_s", "kernels", "rel"),
    [
        (1024, LAUNCH_S, (1, 2), 0.02),
        (1024, 1e-3, (1,), 0.02),
        (1024, LAUNCH_S, (25,), 0.05),
        (64, LAUNCH_S, (25,), 0.05),
    ],
    ids=["shorter than their launch", "slow launches", "many in a call", "a short queue"],
)
def test_kernels_are_timed_by_the_card(queue, takes_s, kernels, rel):
    simulated = Simulated(queue)
    calls = [lambda n=n: [simulated.launch(KERNEL_S, takes_s) for _ in range(n)] for n in kernels]
    assert measured(simulated, *calls) == pytest.approx(sum(kernels) * KERNEL_S, rel=rel)


def test_a_call_that_waits_is_refused():
    simulated = Simulated()

    def waits():
        simulated.launch(KERNEL_S)
        simulated.wait()

    with pytest.raises(RuntimeError, match="one of the calls waits for it"):
        measured(simulated, waits)


DATA_S, STEP_S = 4e-3, 2e-3
NOTHING = Pipeline(preprocessing_ms=0.0)


class Sleeping:
    """Batches and steps of known duration; batch `raises_at` raises."""

    def __init__(self, raises_at=None, on_their_way=0):
        self.closed, self.raises_at, self.on_their_way = False, raises_at, on_their_way
        self.said = []

    @contextmanager
    def feed(self, *_):
        try:
            yield Feed(self._batches, self._step, on_their_way=self.on_their_way)
        finally:
            self.closed = True

    def _batches(self):
        self.said.append("open")
        try:
            for number in count():
                if number == self.raises_at:
                    raise OSError("image 3 is damaged")
                time.sleep(DATA_S)
                yield number
        finally:
            self.said.append("rest")

    def _step(self, _):
        self.said.append("step")
        time.sleep(STEP_S)


def events_of(subject, sleeping):
    """Measure this feed in place of TensorFlow's and return the events."""
    return list(harness.measure_pipeline(sleeping.feed, subject, NOTHING))


@pytest.mark.slow
def test_a_step_waits_for_slow_data_and_is_timed_alone_while_the_feed_rests(subject, monkeypatch):
    slept = []
    clock = SimpleNamespace(sleep=lambda s: (slept.append(s), time.sleep(s)), perf_counter=None)
    monkeypatch.setattr(harness, "time", clock)
    sleeping = Sleeping(on_their_way=3)
    events = events_of(subject, sleeping)
    found = {name.removeprefix("0/"): measured for name, measured, _ in filter(None, events)}
    assert set(found) == set(harness.QUANTITIES)
    assert found["data"].median_s >= DATA_S
    assert found["step"].median_s >= STEP_S
    assert found["both"].median_s >= DATA_S + STEP_S
    assert (found["waits"].step_s >= DATA_S).all()
    assert (found["waits"].step_s <= found["both"].step_s - STEP_S).all()
    assert sleeping.closed
    assert events.count(None) >= 2 * harness.ROUNDS, "it can be stopped"
    runs = [name for name, _ in groupby(sleeping.said)]
    once = ["open", "rest", "open", "step", "rest", "step"]  # data alone; both; step alone, after a rest
    assert runs == ["open", "step", "rest", *once * harness.ROUNDS]
    assert sum(slept) >= 0.9 * harness.ROUNDS * 3 * DATA_S


def test_a_raising_feed_is_reported_and_closed(subject):
    sleeping = Sleeping(raises_at=3)
    with pytest.raises(NotMeasured, match=r"^reading a batch raised OSError: image 3 is damaged$"):
        events_of(subject, sleeping)
    assert sleeping.closed


@pytest.mark.parametrize("holds_lock", [False, True])
def test_longer_preprocessing_does_more_work(holds_lock):
    assert calibrated(Pipeline(preprocessing_ms=0.0, holds_lock=holds_lock)).repetitions == 0
    short, long = (calibrated(Pipeline(preprocessing_ms=ms, holds_lock=holds_lock)).repetitions for ms in (0.1, 5.0))
    assert 10 * short < long


@pytest.mark.parametrize("holds_lock", [False, True])
def test_only_python_preprocessing_holds_the_interpreter_lock(holds_lock):
    began, done = threading.Event(), threading.Event()
    work = Preprocessing(calibrated(Pipeline(preprocessing_ms=5.0, holds_lock=holds_lock)).repetitions * 60, holds_lock)
    image = np.zeros(784, np.float32)

    def run():
        began.set()
        work(image)
        done.set()

    before = sys.getswitchinterval()
    sys.setswitchinterval(30)
    try:
        thread = threading.Thread(target=run)
        thread.start()
        began.wait()
        was_done = done.is_set()
        thread.join()
    finally:
        sys.setswitchinterval(before)
    assert was_done == holds_lock


@given(st.integers(0, 50), st.booleans(), st.integers(0, 2**32 - 1))
def test_preprocessing_does_not_change_the_images(repetitions, holds_lock, seed):
    images = np.random.default_rng(seed).random((3, 784), np.float32)
    before = images.copy()
    assert np.array_equal(Preprocessing(repetitions, holds_lock).all_of(images), before)


def test_rows_repeat_the_images_in_order(small_data):
    images, labels = harness.rows_of(small_data, 1_500)
    assert np.array_equal(images, np.concatenate([small_data.x_train] * 3)[:1_500])
    assert np.array_equal(labels, np.concatenate([small_data.y_train] * 3)[:1_500])
