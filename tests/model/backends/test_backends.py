import os
from contextlib import nullcontext
from functools import partial

# A process has one Keras backend: here JAX. Keras on TensorFlow is tested through its worker.
os.environ["KERAS_BACKEND"] = "jax"

import numpy as np
import pytest

from lib.model.backends import reference
from lib.model.backends.base import Epoch, FirstCall, Steps
from lib.model.backends.registry import BACKENDS, load_train
from lib.model.data.mnist import Data
from lib.model.hardware.webgpu import SOFTWARE
from lib.model.spec import DataSet, Network, Training
from tests.conftest import draw_patterns, jax_promotes, where_installed
from tests.cuda_stand_in import in_numba_cudas_place
from tests.cupy_stand_in import in_cupys_place
from tests.model.backends.comparing import assert_near, losses_of
from tests.software_adapter import needs_software_adapter

ON_A_CARD = [key for key, backend in BACKENDS.items() if backend.devices == ("gpu",)]
BY_WEBGPU = [key for key, backend in BACKENDS.items() if SOFTWARE in backend.devices]
ALL = [
    *where_installed(key for key in BACKENDS if key not in ("keras-tensorflow", "keras-torch", *ON_A_CARD, *BY_WEBGPU)),
    *map(pytest.param, ON_A_CARD),
    *(pytest.param(key, marks=needs_software_adapter) for key in BY_WEBGPU),
]
# Python launches each operation, or a library each step. Outside releases, these run only
# `test_twenty_steps_agree_with_float64`, with three hidden layers.
SLOW = ("jax-operation", "keras-jax", *BY_WEBGPU)
MOST = [
    pytest.param(*key.values, marks=[*key.marks, pytest.mark.release]) if key.values[0] in SLOW else key for key in ALL
]
AGAINST_FLOAT64 = [
    pytest.param(*key.values, Network(hidden), id=f"{key.values[0]}-{hidden}", marks=[*key.marks, *marks])
    for hidden, keys, marks in (
        ((32, 16, 8), ALL, []),
        ((16,), MOST, []),
        ((), ALL, [pytest.mark.release]),
        ((1,), ALL, [pytest.mark.release]),
    )
    for key in keys
]


@pytest.fixture(autouse=True, scope="module")
def fake_cards():
    with in_cupys_place(), in_numba_cudas_place():
        yield


@pytest.fixture(autouse=True)
def keras_promotes(request):
    with jax_promotes() if "keras-jax" in request.node.name else nullcontext():
        yield


def train_of(key: str):
    device = "gpu" if key in ON_A_CARD else SOFTWARE if key in BY_WEBGPU else "cpu"
    return partial(load_train(key), device=device)


@pytest.mark.slow
@pytest.mark.parametrize(("key", "network"), AGAINST_FLOAT64)
def test_twenty_steps_agree_with_float64(key, network, small_data):
    training = Training(network, learning_rate=0.1, batch_size=32, epochs=1)
    events = list(train_of(key)(training, small_data))
    expected, parameters = reference.train(training, small_data, 20)
    np.testing.assert_allclose(losses_of(events)[:20], expected, atol=1e-5)
    assert_near(events[-1].parameters(), parameters, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("key", MOST)
def test_an_epoch_agrees_between_backends(key, small_data):
    training = Training(Network((24,)), learning_rate=0.05, batch_size=8, epochs=2)
    events = list(train_of(key)(training, small_data))
    others = list(load_train("numpy")(training, small_data))
    np.testing.assert_allclose(losses_of(events), losses_of(others), rtol=2e-3, atol=2e-4)
    assert events[-1].validation_accuracy == pytest.approx(others[-1].validation_accuracy, abs=0.01)
    assert events[-1].validation_loss == pytest.approx(others[-1].validation_loss, rel=1e-3)


ODD = DataSet("odd", n_train=61, n_validation=2_003, chance=0.5)  # two validation slices of unequal length


def odd_data(n_inputs: int, n_classes: int) -> Data:
    rng = np.random.default_rng(3)
    patterns = rng.random((n_classes, n_inputs), np.float32)
    parts = (draw_patterns(rng, patterns, n) for n in (ODD.n_train, ODD.n_validation, 11))
    return Data(*(array for part in parts for array in part), source="test", digest=f"odd {n_inputs} {n_classes}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inputs", "hidden", "classes", "batch_size"),
    [
        (5, (), 3, 1),
        (5, (6, 3), 3, 7),
        (40, (9,), 100, 30),
        *(pytest.param(5, *one, marks=pytest.mark.release) for one in (((), 3, 7), ((4,), 3, 1), ((6, 3), 3, 1))),
    ],
)
@pytest.mark.parametrize("key", MOST)
def test_data_of_other_shapes_agree_with_float64(key, inputs, hidden, classes, batch_size):
    training = Training(Network(hidden, inputs, classes), 0.1, batch_size, epochs=1, data=ODD)
    data = odd_data(inputs, classes)
    events = list(train_of(key)(training, data))
    expected, parameters = reference.train(training, data, training.steps_per_epoch())
    np.testing.assert_allclose(losses_of(events), expected, atol=1e-5)
    assert_near(events[-1].parameters(), parameters, atol=1e-5)
    loss, _ = reference.loss_and_gradients(parameters, data.x_validation, data.y_validation)
    assert events[-1].validation_loss == pytest.approx(loss, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("key", MOST)
def test_events_follow_the_contract(key, small_data):
    training = Training(Network((8,)), batch_size=100, epochs=2)  # 640 images: six batches, 40 images dropped
    events = list(train_of(key)(training, small_data))
    assert isinstance(events[0], FirstCall)
    epochs = [event for event in events if isinstance(event, Epoch)]
    assert [epoch.epoch for epoch in epochs] == [0, 1]
    for epoch in epochs:
        steps = [event for event in events if isinstance(event, Steps) and event.epoch == epoch.epoch]
        done = np.cumsum([0] + [len(event.losses) for event in steps])
        assert [event.first_step for event in steps] == list(done[:-1])
        assert sum(len(event.losses) for event in steps) == epoch.steps == 6
        assert epoch.train_s == pytest.approx(sum(event.train_s for event in steps))
        assert epoch.train_s > 0
        assert 0 <= epoch.validation_accuracy <= 1


@pytest.mark.slow
@pytest.mark.parametrize("key", MOST)
def test_training_resumes_from_returned_parameters(key, small_data):
    train = train_of(key)
    whole = list(train(Training(Network((8,)), epochs=2), small_data))
    first = list(train(Training(Network((8,)), epochs=1), small_data))
    middle = first[-1].parameters()
    kept = [(weights.copy(), biases.copy()) for weights, biases in middle]
    rest = list(train(Training(Network((8,)), epochs=2), small_data, parameters=middle, first_epoch=1))
    assert_near(whole[-1].parameters(), rest[-1].parameters(), atol=1e-6)
    assert_near(middle, kept, rtol=0, err_msg="the caller's parameters were written to")


@pytest.mark.slow
@pytest.mark.parametrize("key", MOST)
def test_divergence_is_marked_and_ends_the_training(key, small_data):
    training = Training(Network((64, 64)), learning_rate=1000.0, epochs=3)
    events = list(train_of(key)(training, small_data))
    epochs = [event for event in events if isinstance(event, Epoch)]
    assert len(epochs) == 1
    losses = losses_of(events)
    assert epochs[0].diverged_step is not None
    assert np.isfinite(losses[: epochs[0].diverged_step]).all()
    assert not np.isfinite(losses[epochs[0].diverged_step])


@pytest.mark.slow
@pytest.mark.parametrize("key", MOST)
def test_closing_the_generator_stops_training(key, small_data):
    events = train_of(key)(Training(Network((8,)), batch_size=1, epochs=50), small_data)
    for _ in range(3):
        next(events)
    events.close()
    assert next(events, None) is None
