"""What feeds a step: with feeds whose times are known, with one that raises, and the preprocessing itself."""

import sys
import threading
import time
from itertools import count, groupby
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.model.spec import Network
from lib.timing.profiling import harness
from lib.timing.profiling.harness import (
    QUANTITIES,
    Feed,
    Preprocessing,
    Subject,
    calibrated,
    measure_pipelines,
    rows_of,
)
from lib.timing.profiling.request import NotMeasured, Pipeline
from tests.conftest import make_small_data

DATA_S, STEP_S = 4e-3, 2e-3
NOTHING = Pipeline(preprocessing_ms=0.0)


class Sleeping(Feed):
    """Batches and steps that take known times; from `raises_at` on a batch raises."""

    on_their_way = 0

    def __init__(self, raises_at=None):
        self.opened, self.closed, self.raises_at = 0, False, raises_at
        self.said = []

    def open(self):
        self.opened += 1
        self.said.append("open")
        return self._batches()

    def _batches(self):
        for number in count():
            if number == self.raises_at:
                raise OSError("image 3 is damaged")
            time.sleep(DATA_S)
            yield number

    def rest(self):
        self.said.append("rest")
        return self.on_their_way

    def step(self, batch):
        self.said.append("step")
        time.sleep(STEP_S)

    def close(self):
        self.closed = True


@pytest.fixture
def feeding(small_data):
    """Measures these feeds in place of TensorFlow's, and gives their rows by name."""

    def measure(*feeds):
        left = list(feeds)
        library = SimpleNamespace(
            feed=lambda *_: left.pop(0), explained=lambda error: f"{type(error).__name__}: {error}"
        )
        subject = Subject(Network((4,)), 32, small_data, "cpu")
        return list(measure_pipelines(library, subject, [NOTHING] * len(feeds)))

    return measure


@pytest.mark.slow
def test_who_waits_for_whom(feeding):
    """Sleeps are never too short, and what a busy machine adds to one it adds to all."""
    feed = Sleeping()
    rows = [row for row in feeding(feed) if row is not None]
    found = {name: measured for name, measured, _ in rows}
    assert set(found) == {f"0/{name}" for name in QUANTITIES}
    assert found["0/data"].median_s >= DATA_S
    assert found["0/step"].median_s >= STEP_S
    assert found["0/both"].median_s >= DATA_S + STEP_S
    waits, both = found["0/waits"].step_s, found["0/both"].step_s
    assert (waits >= DATA_S).all()
    assert (waits <= both - STEP_S).all()
    assert feed.closed


@pytest.mark.slow
def test_nothing_works_ahead_while_the_step_is_alone(feeding, monkeypatch):
    """After the last batch it rests, and what is still on its way is waited for."""
    monkeypatch.setattr(Sleeping, "on_their_way", 3)
    slept = []
    monkeypatch.setattr(
        harness, "time", SimpleNamespace(sleep=lambda s: (slept.append(s), time.sleep(s)), perf_counter=None)
    )
    feed = Sleeping()
    feeding(feed)
    runs = [name for name, _ in groupby(feed.said)]
    once = ["open", "step", "rest", "step"]  # data alone, both; the step alone
    assert runs == ["open", "step", "rest", *once * (len(runs[3:]) // 4)]
    assert len(runs[3:]) // 4 == harness.ROUNDS
    assert sum(slept) >= 0.9 * harness.ROUNDS * 3 * DATA_S


@pytest.mark.slow
def test_two_are_measured_in_turns_and_can_be_stopped_in_between(feeding):
    first, second = Sleeping(), Sleeping()
    events = feeding(first, second)
    names = {event[0] for event in events if event is not None}
    assert {"0/both", "1/both"} <= names
    assert first.opened == second.opened
    assert events.count(None) >= 2 * harness.ROUNDS


def test_what_raises_is_told_in_a_sentence_and_all_are_closed(feeding):
    first, second = Sleeping(), Sleeping(raises_at=3)
    with pytest.raises(NotMeasured, match=r"^reading a batch raised OSError: image 3 is damaged$"):
        feeding(first, second)
    assert first.closed
    assert second.closed


@given(st.integers(0, 50), st.booleans(), st.integers(0, 2**32 - 1))
def test_preprocessing_leaves_the_images_as_they_are(repetitions, holds_lock, seed):
    images = np.random.default_rng(seed).random((3, 784), np.float32)
    before = images.copy()
    assert np.array_equal(Preprocessing(repetitions, holds_lock).all_of(images), before)


@pytest.mark.parametrize("holds_lock", [False, True])
def test_more_milliseconds_are_more_work(holds_lock):
    assert calibrated(Pipeline(preprocessing_ms=0.0, holds_lock=holds_lock)).repetitions == 0
    short, long = (calibrated(Pipeline(preprocessing_ms=ms, holds_lock=holds_lock)).repetitions for ms in (0.1, 5.0))
    assert 10 * short < long


@pytest.mark.parametrize("holds_lock", [False, True])
def test_only_python_code_holds_the_lock(holds_lock):
    """With the lock handed over by request alone, another thread gets it from compiled code, and not from Python."""
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


@given(st.integers(1, 2_000))
def test_rows_are_the_images_in_their_order_and_then_again(rows):
    images, labels = rows_of(DATA, rows)
    assert images.shape == (rows, 784)
    for index in {0, rows - 1, rows // 2}:
        assert np.array_equal(images[index], DATA.x_train[index % 640])
        assert labels[index] == DATA.y_train[index % 640]


DATA = make_small_data()
