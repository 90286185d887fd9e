"""WebGPU kernels, refusals and lost devices on a software adapter; training is tested in `test_backends.py`."""

from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.model.backends.base import CannotTrain, Steps, initial_parameters
from lib.model.backends.registry import Runtime, load_train, lost_card
from lib.model.backends.webgpu import evaluation, step
from lib.model.data.mnist import batch_starts
from lib.model.hardware.webgpu import SOFTWARE, SOFTWARE_ALLOWED, asked
from lib.model.spec import N_CLASSES, N_PIXELS, Network, Training
from lib.sweeps.workers.messages import Progress, Ready, TrainingFailed
from tests.model.backends.comparing import assert_near
from tests.software_adapter import needs_software_adapter
from tests.sweeps.workers.test_engine import run

pytestmark = needs_software_adapter

QUICK = Training(Network(()), batch_size=64, epochs=1)
N_IMAGES = 100
RNG = np.random.default_rng(5)
X, Y = RNG.random((N_IMAGES, N_PIXELS), np.float32), RNG.integers(0, N_CLASSES, N_IMAGES).astype(np.int32)


@pytest.fixture(scope="module")
def with_webgpu():
    """Imported here because it loads the drivers."""
    from lib.model.backends import with_webgpu

    return with_webgpu


@pytest.fixture(scope="module")
def gpu(with_webgpu):
    return with_webgpu.gpu(SOFTWARE)


@pytest.fixture(scope="module")
def execution(with_webgpu, gpu):
    images_of_all = with_webgpu.Images.upload(gpu, X, Y)

    def made(program, most_steps=40, images=images_of_all):
        return with_webgpu.Execution(gpu, program, images, most_steps, "This network")

    return made


@pytest.mark.slow
@settings(max_examples=5)
@given(hidden=st.lists(st.integers(1, 40), max_size=2), batch_size=st.integers(1, 50))
def test_all_ways_of_launching_give_the_same_steps(with_webgpu, execution, hidden, batch_size):
    network, found = Network(tuple(hidden)), []
    starts = batch_starts(N_IMAGES, batch_size, 3, 0)[:5]
    for launch in with_webgpu.LAUNCHES.values():
        running = execution(step(network, batch_size))
        running.set(initial_parameters(network, 3), 0.1)
        running.schedule(starts)
        for part in (len(starts) // 2, len(starts) - len(starts) // 2):
            if part:
                launch(running, part)
        found.append((running.results(0, len(starts)), running.parameters()))
    for results, parameters in found[1:]:
        np.testing.assert_array_equal(results, found[0][0])
        assert_near(parameters, found[0][1], rtol=0)


@pytest.mark.slow
def test_one_kernel_respects_the_limit_of_a_software_adapter(execution):
    found, n = [], 160
    for launch in ("one_submission", "one_kernel"):
        running = execution(step(Network(()), 1), n)
        running.set(initial_parameters(Network(()), 0), 0.1)
        running.schedule(np.arange(n) % N_IMAGES)
        getattr(running, launch)(n)
        found.append(running.results(0, n))
    np.testing.assert_array_equal(*found)
    too_large = execution(step(Network((2048,)), 100))
    with pytest.raises(CannotTrain, match=r"after 65,535 turns, but a step takes up to \d+,\d+; choose a smaller"):
        too_large.one_kernel(1)


def test_padding_of_the_last_evaluation_slice_is_not_counted(with_webgpu, gpu, execution):
    network, slice_size, n = Network((7,)), 40, 97
    images = with_webgpu.Images.upload(gpu, X[:n], Y[:n], multiple=slice_size)
    running = execution(evaluation(network, slice_size), images=images)
    parameters = initial_parameters(network, 0)
    running.set(parameters, 0.0)
    running.schedule(np.arange(0, n, slice_size))
    running.one_submission(3)
    losses, correct = running.results(0, 3).sum(0) * (slice_size, 1)
    (weights, biases), (weights_2, biases_2) = [(w.astype(float), b.astype(float)) for w, b in parameters]
    logits = np.maximum(X[:n] @ weights + biases, 0) @ weights_2 + biases_2
    log_sum = np.log(np.exp(logits).sum(1))
    assert losses == pytest.approx((log_sum - logits[np.arange(n), Y[:n]]).sum(), rel=1e-5)
    assert correct == (logits.argmax(1) == Y[:n]).sum()


def test_a_network_beyond_the_adapters_limit_is_refused(gpu, execution, monkeypatch):
    def allocate(**_):
        raise AssertionError("it was allocated")

    monkeypatch.setattr(gpu.device, "create_buffer", allocate)
    monkeypatch.setattr(gpu, "largest_bytes", 2**27)
    program = step(Network((4096,) * 8), 4096)
    with pytest.raises(CannotTrain, match=r"This network needs one buffer of 1,\d+ MiB, but .* allows at most 128 MiB"):
        execution(program)


def test_wgpu_errors_become_one_line_of_the_matching_type(with_webgpu, monkeypatch):
    for error, kind in (("GPUOutOfMemoryError", MemoryError), ("GPUValidationError", RuntimeError)):
        begin = Mock(side_effect=getattr(with_webgpu.wgpu, error)("It failed\n\nCaused by:\n  In wgpuQueueSubmit"))
        monkeypatch.setattr(with_webgpu, "_begin", begin)
        with pytest.raises(kind, match=r"^It failed Caused by: In wgpuQueueSubmit$"):
            next(with_webgpu.train_by_step(QUICK, None))


def test_a_compile_error_quotes_the_driver(with_webgpu, gpu, monkeypatch):
    broken = {name: text.replace("fn end_step", "fn end_of_step") for name, text in with_webgpu.sources().items()}
    monkeypatch.setattr(with_webgpu, "sources", lambda: broken)
    monkeypatch.setattr(gpu, "_modules", {})
    monkeypatch.setattr(gpu, "_pipelines", {})
    with pytest.raises(CannotTrain, match=r"could not compile the kernel “steps” \(whole_steps\.wgsl\).*end_step"):
        gpu.pipeline("steps")


def test_one_kernel_refuses_steps_that_take_seconds(small_data):
    training = Training(Network((512, 512)), batch_size=640)
    with pytest.raises(CannotTrain, match=r"limited to 2 billion operations per step, but a step of 784→512→512→10 at"):
        next(load_train("webgpu-kernel")(training, small_data, SOFTWARE))


def test_a_lost_device_is_recognised_and_reported_in_one_line(with_webgpu, small_data):
    events = load_train("webgpu-step")(Training(Network((8,)), epochs=50), small_data, SOFTWARE)
    assert isinstance([next(events) for _ in range(2)][1], Steps)
    with_webgpu.gpu(SOFTWARE).device.destroy()
    try:
        with pytest.raises(RuntimeError) as caught:
            list(events)
    finally:
        with_webgpu.training_images.cache_clear()
        with_webgpu.validation_images.cache_clear()
        with_webgpu.gpu.cache_clear()
    assert lost_card(str(caught.value))
    assert "\n" not in str(caught.value)


def test_few_images_train_and_too_few_are_refused(small_data):
    three = {name: getattr(small_data, name)[:3] for name in ("x_train", "y_train")}
    one = {name: getattr(small_data, name)[:1] for name in ("x_validation", "y_validation")}
    few, train = replace(small_data, **three, **one), load_train("webgpu-step")
    *_, last = train(Training(Network(()), batch_size=3, epochs=1), few, SOFTWARE)
    assert last.steps == 1
    with pytest.raises(ValueError, match=r"batch size: expected 1 to 3 \(the number of images\), got 4"):
        list(train(Training(Network(()), batch_size=4), few, SOFTWARE))


def test_evaluation_slices_fit_small_buffers(with_webgpu):
    network = Network((4096,))
    for largest in (2**22, 2**24, 2**30):
        size = with_webgpu._slice_size(SimpleNamespace(largest_bytes=largest), network, 12_000)
        assert size == 1 or evaluation(network, size).memory_bytes <= largest
    assert size == 2_000


@pytest.mark.slow
def test_a_worker_trains_and_names_its_adapter_as_software(lone_engine, monkeypatch):
    monkeypatch.setenv(SOFTWARE_ALLOWED, "1")
    messages = run(lone_engine, Runtime("webgpu-chunk", SOFTWARE), [QUICK], probe_s=0.001)
    (ready,) = [message for message in messages if isinstance(message, Ready)]
    assert ready.card is not None
    assert "software adapter" in ready.card.name
    losses = [one.event.losses for one in messages if isinstance(one, Progress) and isinstance(one.event, Steps)]
    assert np.isfinite(np.concatenate(losses)).all()
    with pytest.raises(TrainingFailed, match="one kernel is one workgroup"):
        run(lone_engine, Runtime("webgpu-kernel", SOFTWARE), [Training(Network((512,)), batch_size=4096)])


@pytest.mark.slow
def test_a_missing_kind_of_adapter_is_refused_by_name(lone_engine):
    absent = next((kind for kind in ("discrete", "integrated") if kind not in {one.kind for one in asked(True)}), None)
    if absent is None:
        pytest.skip("this machine has both kinds of GPU")
    with pytest.raises(TrainingFailed, match=rf"was asked to use the {absent} GPU, but none of the \d+ adapters"):
        run(lone_engine, Runtime("webgpu-step", absent), [QUICK])
