"""Every backend through one table: the float64 reference, one another, and the contract."""

import os

# One process here holds all backends, so Keras is tested on JAX in it, and on TensorFlow through its worker.
os.environ["KERAS_BACKEND"] = "jax"

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.backends import reference
from lib.backends.base import CHUNK_S, Epoch, FirstCall, Steps, initial_parameters, next_chunk
from lib.backends.registry import BACKENDS, Runtime, all_runtimes, load_train, unavailable, worker_environment
from lib.data.mnist import batch_starts
from lib.spec import Network, Training
from tests.conftest import where_installed
from tests.cupy_stand_in import in_cupys_place

ON_A_CARD = [key for key, backend in BACKENDS.items() if backend.devices == ("gpu",)]
IN_PROCESS = (
    where_installed(key for key in BACKENDS if key not in ("keras-tensorflow", "keras-torch", *ON_A_CARD)) + ON_A_CARD
)
NETWORKS = [Network(()), Network((16,)), Network((1,)), Network((32, 16, 8))]


@pytest.fixture(autouse=True, scope="module")
def no_card_needed():
    """CuPy's backends run on NumPy in its place."""
    with in_cupys_place():
        yield


@pytest.fixture(autouse=True)
def keras_promotes(request):
    """As in its worker: Keras counts on JAX to match types and ranks, which is an error in the other tests."""
    import jax

    options = {"jax_numpy_dtype_promotion": "standard", "jax_numpy_rank_promotion": "allow"}
    strict = {name: getattr(jax.config, name) for name in options}
    for name, choice in options.items() if "keras-jax" in request.node.name else ():
        jax.config.update(name, choice)  # for all threads: `fit` runs in one of its own
    yield
    for name, choice in strict.items():
        jax.config.update(name, choice)


def losses_of(events) -> np.ndarray:
    return np.concatenate([event.losses for event in events if isinstance(event, Steps)])


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.label)
@pytest.mark.parametrize("key", IN_PROCESS)
def test_twenty_steps_agree_with_float64(key, network, small_data):
    training = Training(network, learning_rate=0.1, batch_size=32, epochs=1)
    events = list(load_train(key)(training, small_data))
    expected, parameters = reference.train(training, small_data, 20)
    np.testing.assert_allclose(losses_of(events)[:20], expected, atol=1e-5)
    for (weights, biases), (weights_64, biases_64) in zip(events[-1].parameters(), parameters, strict=True):
        np.testing.assert_allclose(weights, weights_64, atol=1e-5)
        np.testing.assert_allclose(biases, biases_64, atol=1e-5)


@pytest.mark.parametrize("key", IN_PROCESS)
def test_an_epoch_agrees_between_backends(key, small_data):
    training = Training(Network((24,)), learning_rate=0.05, batch_size=8, epochs=2)
    events = list(load_train(key)(training, small_data))
    others = list(load_train("numpy")(training, small_data))
    np.testing.assert_allclose(losses_of(events), losses_of(others), rtol=2e-3, atol=2e-4)
    assert events[-1].validation_accuracy == pytest.approx(others[-1].validation_accuracy, abs=0.01)
    assert events[-1].validation_loss == pytest.approx(others[-1].validation_loss, rel=1e-3)


@pytest.mark.parametrize("key", IN_PROCESS)
def test_the_contract(key, small_data):
    training = Training(Network((8,)), batch_size=100, epochs=2)  # 640 images: six batches, 40 images dropped
    events = list(load_train(key)(training, small_data))
    assert isinstance(events[0], FirstCall)
    epochs = [event for event in events if isinstance(event, Epoch)]
    assert [epoch.epoch for epoch in epochs] == [0, 1]
    for epoch in epochs:
        steps = [event for event in events if isinstance(event, Steps) and event.epoch == epoch.epoch]
        assert [event.first_step for event in steps] == list(
            np.cumsum([0] + [len(event.losses) for event in steps])[:-1]
        )
        assert sum(len(event.losses) for event in steps) == epoch.steps == 6
        assert epoch.train_s == pytest.approx(sum(event.train_s for event in steps))
        assert epoch.train_s > 0
        assert 0 <= epoch.validation_accuracy <= 1


@pytest.mark.parametrize("key", IN_PROCESS)
def test_state_goes_in_and_comes_out(key, small_data):
    train = load_train(key)
    whole = list(train(Training(Network((8,)), epochs=2), small_data))
    first = list(train(Training(Network((8,)), epochs=1), small_data))
    middle = first[-1].parameters()
    kept = [(weights.copy(), biases.copy()) for weights, biases in middle]
    rest = list(train(Training(Network((8,)), epochs=2), small_data, parameters=middle, first_epoch=1))
    for (weights, biases), (weights_2, biases_2) in zip(whole[-1].parameters(), rest[-1].parameters(), strict=True):
        np.testing.assert_allclose(weights, weights_2, atol=1e-6)
        np.testing.assert_allclose(biases, biases_2, atol=1e-6)
    for (weights, _), (weights_before, _) in zip(middle, kept, strict=True):
        np.testing.assert_array_equal(weights, weights_before, err_msg="the caller's parameters were written to")


@pytest.mark.parametrize("key", IN_PROCESS)
def test_divergence_is_marked_and_ends_the_training(key, small_data):
    training = Training(Network((64, 64)), learning_rate=1000.0, epochs=3)
    events = list(load_train(key)(training, small_data))
    epochs = [event for event in events if isinstance(event, Epoch)]
    assert len(epochs) == 1
    losses = losses_of(events)
    assert epochs[0].diverged_step is not None
    assert np.isfinite(losses[: epochs[0].diverged_step]).all()
    assert not np.isfinite(losses[epochs[0].diverged_step])


@pytest.mark.parametrize("key", IN_PROCESS)
def test_stopping_is_not_asking_for_more(key, small_data):
    events = load_train(key)(Training(Network((8,)), batch_size=1, epochs=50), small_data)
    for _ in range(3):
        next(events)
    events.close()
    assert next(events, None) is None


def test_learning_rate_epochs_and_seed_do_not_compile_again(small_data):
    from lib.backends import with_jax

    list(with_jax.train(Training(Network((11,))), small_data))
    before = dict(with_jax.TRACES)
    for training in (
        Training(Network((11,)), learning_rate=0.3),
        Training(Network((11,)), epochs=5),
        Training(Network((11,)), seed=4),
    ):
        list(with_jax.train(training, small_data))
    assert before == with_jax.TRACES
    list(with_jax.train(Training(Network((11,)), batch_size=64), small_data))
    assert with_jax.TRACES["epoch"] == before["epoch"] + 1


def test_he_normal_parameters():
    (weights, biases), _ = initial_parameters(Network((512,)), 0)
    assert weights.dtype == np.float32
    assert weights.std() == pytest.approx(np.sqrt(2 / 784), rel=0.01)
    assert not biases.any()
    assert not np.array_equal(weights, initial_parameters(Network((512,)), 1)[0][0])


@given(st.integers(1, 500), st.integers(1, 500), st.integers(0, 3), st.integers(0, 3))
def test_batches_are_disjoint_full_and_within_the_data(n_images, size, seed, epoch):
    if size > n_images:
        with pytest.raises(ValueError, match="batch size: expected 1 to"):
            batch_starts(n_images, size, seed, epoch)
        return
    starts = batch_starts(n_images, size, seed, epoch)
    assert len(starts) == n_images // size
    assert starts.min() >= 0
    assert starts.max() + size <= n_images
    assert (np.diff(np.sort(starts)) >= size).all()
    np.testing.assert_array_equal(starts, batch_starts(n_images, size, seed, epoch))


@given(st.integers(1, 48_000), st.floats(1e-7, 10))
@settings(max_examples=50)
def test_chunks_cover_an_epoch_and_stay_short(steps, step_s):
    done, n_chunks = 0, 0
    while done < steps:
        chunk = next_chunk(steps - done, step_s)
        assert chunk >= 1
        assert chunk * step_s < 1.5 * CHUNK_S + step_s, "parts of 0.1 s, rounded to the nearest number of them"
        done, n_chunks = done + chunk, n_chunks + 1
    assert done == steps


def test_the_table_says_why_a_runtime_is_missing(monkeypatch):
    import lib.backends.registry as table

    monkeypatch.setattr(table, "_installed", lambda name: name != "tensorflow")
    monkeypatch.setattr(table, "nvidia_driver_answers", lambda: False)
    gap = unavailable(Runtime("keras-tensorflow"))
    assert gap is not None
    assert "tensorflow is not installed" in gap.reason
    assert "pip install" in gap.remedy
    gpu = unavailable(Runtime("jax-epoch", "gpu"))
    assert gpu is not None
    assert "no NVIDIA driver" in gpu.reason
    assert unavailable(Runtime("numpy")) is None
    monkeypatch.setattr(table, "nvidia_driver_answers", lambda: True)
    monkeypatch.setattr(table, "_installed", lambda name: "cuda" not in name)
    without_cuda = unavailable(Runtime("jax-epoch", "gpu"))
    assert without_cuda is not None
    assert "make install" in without_cuda.remedy


def test_a_gpu_worker_sees_the_card_and_a_cpu_worker_does_not():
    assert worker_environment(Runtime("jax-epoch", "cpu"), None)["CUDA_VISIBLE_DEVICES"] == "-1"
    gpu = worker_environment(Runtime("keras-tensorflow", "gpu"), None)
    assert "CUDA_VISIBLE_DEVICES" not in gpu
    assert gpu["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"


def test_unknown_runtimes_are_refused():
    with pytest.raises(ValueError, match="backend: expected one of"):
        Runtime("torch7")
    with pytest.raises(ValueError, match="device: expected cpu or gpu"):
        Runtime("numpy", "tpu")
    assert len({(runtime.backend, runtime.device) for runtime in all_runtimes()}) == len(all_runtimes())
