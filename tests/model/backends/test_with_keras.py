"""Keras' `fit` in its thread; its results are tested in `test_backends.py`."""

import os

os.environ["KERAS_BACKEND"] = "jax"  # one Keras backend per process, as in `test_backends.py`

import threading
from queue import Queue
from types import SimpleNamespace

import numpy as np
import pytest

from lib.model.backends.base import Epoch, Steps
from lib.model.backends.registry import Runtime, unavailable
from lib.model.spec import Network, Training
from lib.sweeps.workers.messages import Job, Progress
from lib.sweeps.workers.queue import Cancel


@pytest.fixture(scope="module")
def with_keras():
    """Imported here because the import takes seconds."""
    from lib.model.backends import with_keras

    return with_keras


@pytest.fixture
def fitted(with_keras, small_data):
    """Return the events of a model whose `fit` is replaced by a function of the handover."""

    def events(fit):
        handover = SimpleNamespace(outbox=Queue(maxsize=1), stop=threading.Event())
        handover.put = lambda event: with_keras._Handover._put(handover, event)
        model = SimpleNamespace(fit=lambda *_, **options: fit(options["callbacks"]))
        return with_keras._fit_one_epoch(model, handover, small_data.x_train, small_data.y_train, small_data, 32)

    return events


def test_an_error_in_fit_is_raised_after_its_events(fitted):
    def fit(handover):
        handover.put("losses")
        raise MemoryError("no more")

    events = fitted(fit)
    assert next(events) == "losses"
    with pytest.raises(MemoryError, match="no more"):
        next(events)


def test_closing_the_generator_stops_fit_at_its_next_event(fitted):
    reached = []

    def fit(handover):
        for number in range(100):
            reached.append(number)
            handover.put(number)

    events = fitted(fit)
    assert [next(events), next(events)] == [0, 1]
    events.close()
    assert reached == [0, 1]


@pytest.fixture
def handover(with_keras):
    """A handover in an epoch; `hand_over(*means)` reports the running mean losses of its next steps."""
    made = object.__new__(with_keras._Handover)
    made._epoch, made.diverged, made.outbox = 3, None, Queue()
    made._done, made._total, made._train_s, made._clock_from = 0, 0.0, 0.0, 0.0
    made._put = made.outbox.put
    made._model = SimpleNamespace(stop_training=False, get_weights=lambda: [np.ones((2, 3)), np.ones(3)])

    def hand_over(*means):
        made._logs = list(means)
        made._hand_over()

    made.hand_over = hand_over
    return made


def test_running_means_are_converted_to_losses(handover):
    handover.hand_over(4.0, 3.0)
    handover.hand_over(4.0, float("nan"))
    first, second = handover.outbox.get(), handover.outbox.get()
    assert isinstance(first, Steps)
    assert isinstance(second, Steps)
    assert (first.epoch, first.first_step, first.losses.tolist()) == (3, 0, [4.0, 2.0])
    assert (second.first_step, second.losses[0]) == (2, 6.0)
    assert (handover.diverged, handover.model.stop_training) == (3, True)


@pytest.mark.parametrize("at_fault", [float("nan"), float("-inf")])
@pytest.mark.parametrize("layer", [0, 1])
def test_nonfinite_parameters_are_a_divergence_even_with_finite_losses(handover, layer, at_fault):
    weights = handover.model.get_weights()
    handover.model.get_weights = lambda: weights
    handover.hand_over(4.0, 3.0)
    assert (handover.diverged, handover.model.stop_training) == (None, False)
    weights[layer].flat[1] = at_fault
    handover.hand_over(3.0, 3.0, 3.0)
    assert (handover.diverged, handover.model.stop_training) == (4, True), "after the last step that was handed over"


@pytest.mark.release
@pytest.mark.skipif(unavailable(Runtime("keras-tensorflow")) is not None, reason="TensorFlow is not installed")
def test_keras_on_tensorflow_ends_at_nonfinite_parameters(engine):
    training = Training(Network((16,) * 8), learning_rate=30.0, batch_size=32, epochs=3)
    messages = engine.run([Job(Runtime("keras-tensorflow"), (training,))], Cancel())
    epochs = [one.event for one in messages if isinstance(one, Progress) and isinstance(one.event, Epoch)]
    assert [one.diverged_step is not None for one in epochs] == [True]


def test_the_clock_stops_before_the_losses_are_copied(handover, monkeypatch):
    happened = []
    monkeypatch.setattr("lib.model.backends.with_keras.time.perf_counter", lambda: happened.append("clock") or 1.0)
    monkeypatch.setattr(
        "lib.model.backends.with_keras.keras.ops.convert_to_numpy", lambda mean: happened.append(mean) or mean
    )
    handover._put = lambda event: happened.append("handed over")
    handover.model.get_weights = lambda: happened.append("weights") or []
    handover.hand_over(4.0, 3.0, 2.0)
    assert happened == [2.0, "clock", 4.0, 3.0, 2.0, "weights", "handed over", "clock"]
