import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.model.backends import base
from lib.model.backends.base import CHUNK_S, Epoch, Steps, epochs, initial_parameters, next_chunk
from lib.model.spec import Network, Training


def test_initial_parameters_are_he_normal():
    (weights, biases), _ = initial_parameters(Network((512,)), 0)
    assert weights.dtype == np.float32
    assert weights.std() == pytest.approx(np.sqrt(2 / 784), rel=0.01)
    assert not biases.any()
    assert not np.array_equal(weights, initial_parameters(Network((512,)), 1)[0][0])


@pytest.mark.slow
@given(st.integers(1, 48_000), st.floats(1e-7, 10))
def test_chunks_cover_an_epoch_and_stay_short(steps, step_s):
    done, n_chunks = 0, 0
    while done < steps:
        chunk = next_chunk(steps - done, step_s)
        assert chunk >= 1
        assert chunk * step_s < 1.5 * CHUNK_S + step_s, "parts of 0.1 s, rounded to the nearest number of them"
        done, n_chunks = done + chunk, n_chunks + 1
    assert done == steps


def test_the_loop_ends_after_a_loss_that_is_not_finite():
    def chunk(epoch, starts, done, step_s):
        assert step_s == (None if (epoch, done) == (0, 0) else 0.5), "of the chunk before"
        losses = np.arange(len(starts), dtype=np.float32)[done : done + 3]
        return np.where((epoch == 1) & (losses == 4), np.nan, losses), 0.5 * len(losses)

    events = list(epochs(Training(batch_size=10, epochs=5), 100, 0, chunk, lambda: (0.3, 0.9), list))
    ends = [event for event in events if isinstance(event, Epoch)]
    assert [(end.epoch, end.steps, end.train_s, end.diverged_step) for end in ends] == [
        (0, 10, 5.0, None),
        (1, 6, 3.0, 4),
    ]
    assert [event.first_step for event in events if isinstance(event, Steps)] == [0, 3, 6, 9, 0, 3]


def test_a_chunk_launches_steps_until_its_time_is_up_and_times_the_wait(monkeypatch):
    now, launched = 0.0, []

    def step(images, labels):
        nonlocal now
        now += CHUNK_S / 4
        launched.append((images.tolist(), labels.tolist()))
        return len(launched)

    def wait():
        nonlocal now
        now += 1.0

    def on_host(losses):
        nonlocal now
        now += 100.0  # copying from a card is no part of the steps
        return np.array(losses)

    monkeypatch.setattr(base.time, "perf_counter", lambda: now)
    x, y = np.arange(30), np.arange(30) % 10
    chunk = base.one_step_at_a_time(step, wait, on_host, x, y, 2)
    losses, chunk_s = chunk(0, np.arange(0, 30, 2), 1, None)
    assert losses.tolist() == [1, 2, 3, 4]
    assert launched[0] == ([2, 3], [2, 3]), "the first step is not the epoch's"
    assert chunk_s == pytest.approx(1.0 + CHUNK_S)
