"""What WebGPU's backends refuse, and how they end; that they train like the others is in `test_backends.py`."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from lib.model.backends.base import CannotTrain, Steps
from lib.model.backends.environments import lost_card
from lib.model.backends.registry import Runtime, load_train
from lib.model.hardware.webgpu import SOFTWARE, SOFTWARE_ALLOWED
from lib.model.spec import Network, Training
from lib.sweeps.workers.messages import How, Progress, Ready, TrainingFailed
from tests.software_adapter import needs_software_adapter
from tests.sweeps.workers.test_engine import run

pytestmark = needs_software_adapter
QUICK = Training(Network(()), batch_size=64, epochs=1)


def test_one_kernel_refuses_a_step_that_would_keep_it_for_seconds(small_data):
    training = Training(Network((512, 512)), batch_size=640)
    with pytest.raises(CannotTrain, match=r"at most 2 billion operations a step, and a step of 784→512→512→10 at"):
        next(load_train("webgpu-kernel")(training, small_data, SOFTWARE))


def test_a_device_that_is_lost_is_told_in_one_line_and_known_as_lost(small_data):
    from lib.model.backends import with_webgpu

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


def test_few_images_are_no_trouble_and_too_few_are_refused_as_everywhere(small_data):
    three = {name: getattr(small_data, name)[:3] for name in ("x_train", "y_train")}
    one = {name: getattr(small_data, name)[:1] for name in ("x_validation", "y_validation")}
    few, train = replace(small_data, **three, **one), load_train("webgpu-step")
    *_, last = train(Training(Network(()), batch_size=3, epochs=1), few, SOFTWARE)
    assert last.steps == 1
    with pytest.raises(ValueError, match=r"batch size: expected 1 to 3 \(the number of images\), got 4"):
        list(train(Training(Network(()), batch_size=4), few, SOFTWARE))


def test_an_evaluation_takes_fewer_images_at_once_where_buffers_are_small():
    from lib.model.backends.webgpu import evaluation
    from lib.model.backends.with_webgpu import _slice_size

    network = Network((4096,))
    for largest in (2**22, 2**24, 2**30):
        size = _slice_size(SimpleNamespace(largest_bytes=largest), network, 12_000)  # type: ignore[arg-type]
        assert size == 1 or evaluation(network, size).memory_bytes <= largest
    assert size == 2_000


@pytest.mark.slow
def test_a_worker_trains_and_names_its_adapter_as_software(lone_engine, monkeypatch):
    monkeypatch.setenv(SOFTWARE_ALLOWED, "1")
    messages = run(lone_engine, Runtime("webgpu-chunk", SOFTWARE), [QUICK], how=How(probe_s=0.001))
    (ready,) = [message for message in messages if isinstance(message, Ready)]
    assert ready.card is not None
    assert "software adapter" in ready.card.name
    losses = [one.event.losses for one in messages if isinstance(one, Progress) and isinstance(one.event, Steps)]
    assert np.isfinite(np.concatenate(losses)).all()
    with pytest.raises(TrainingFailed, match="one kernel is one workgroup"):
        run(lone_engine, Runtime("webgpu-kernel", SOFTWARE), [Training(Network((512,)), batch_size=4096)])


@pytest.mark.slow
def test_a_kind_of_adapter_that_is_not_there_is_refused_by_name(lone_engine):
    from lib.model.hardware.webgpu import asked

    absent = next((kind for kind in ("discrete", "integrated") if kind not in {one.kind for one in asked(True)}), None)
    if absent is None:
        pytest.skip("this machine has both kinds of GPU")
    with pytest.raises(TrainingFailed, match=rf"was asked for the {absent} GPU, and none is among the \d+ adapters"):
        run(lone_engine, Runtime("webgpu-step", absent), [QUICK])
