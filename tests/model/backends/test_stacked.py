import json
import os
import re
import subprocess
import sys
from collections import defaultdict

import jax
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.browser import free_port
from lib.model.backends import stacked, with_jax
from lib.model.backends.base import Epoch, FirstCall, Steps
from lib.model.backends.packing import Shape
from lib.model.backends.stacked import train_stack
from lib.model.backends.with_jax import BLOCK
from lib.model.spec import Network, Training
from tests.conftest import ROOT
from tests.model.backends.comparing import assert_near, losses_of
from tests.model.backends.test_backends import ODD, odd_data
from tests.model.backends.test_reference import at_a_kink

hidden_layers = st.lists(st.integers(1, 12), max_size=3).map(tuple)
TOLERANCE = 2e-5  # float32 sums in another order, over the twenty steps of an epoch of the small data


def trained(trainings, data, **options):
    """Losses, epochs and last parameters of each training, by its index."""
    events, last = defaultdict(list), {}
    for index, event in filter(None, train_stack(trainings, data, **options)):
        events[index].append(event)
        if isinstance(event, Epoch):
            last[index] = event.parameters()
    losses = {index: losses_of(of_one) for index, of_one in events.items()}
    return losses, {index: epochs_of(of_one) for index, of_one in events.items()}, last


def epochs_of(events):
    return [event for event in events if isinstance(event, Epoch)]


def alone(training, data):
    events = list(with_jax.train(training, data))
    return losses_of(events), epochs_of(events), events[-1].parameters()


def assert_each_as_alone(trainings, data, found, indices=None):
    """Compare what `trained` found with each training alone; `indices`: of some of them."""
    for index in range(len(trainings)) if indices is None else indices:
        losses, epochs, parameters = (of_all[index] for of_all in found)
        expected_losses, expected_epochs, expected = alone(trainings[index], data)
        np.testing.assert_allclose(losses, expected_losses, atol=TOLERANCE, rtol=TOLERANCE)
        assert len(epochs) == len(expected_epochs)
        assert abs(epochs[-1].validation_loss - expected_epochs[-1].validation_loss) < 1e-4
        assert_near(parameters, expected, atol=TOLERANCE)


@pytest.mark.slow
@given(
    networks=st.lists(hidden_layers, min_size=1, max_size=4),
    rates=st.lists(st.sampled_from([0.01, 0.05, 0.1]), min_size=4, max_size=4),
    seeds=st.lists(st.integers(0, 2), min_size=4, max_size=4),
)
@settings(max_examples=3)
def test_stacked_networks_train_as_each_alone(small_data, networks, rates, seeds):
    trainings = [
        Training(Network(hidden), rate, 32, 1, seed) for hidden, rate, seed in zip(networks, rates, seeds, strict=False)
    ]
    assume(not any(at_a_kink(training, small_data, 20) for training in trainings))
    assert_each_as_alone(trainings, small_data, trained(trainings, small_data))


@pytest.mark.slow
def test_a_diverging_network_does_not_affect_the_others(small_data):
    good, bad = Training(Network((8,)), 0.1, 32, 2), Training(Network((64, 64, 64)), 1000.0, 32, 2, seed=1)
    _, epochs, _ = found = trained([good, bad, good], small_data)
    _, expected, _ = alone(bad, small_data)
    assert epochs[1][0].diverged_step == expected[0].diverged_step is not None
    assert len(epochs[1]) == 1, "there is nothing left to train"
    assert_each_as_alone([good, bad, good], small_data, found, indices=(0, 2))


@pytest.mark.slow
def test_finished_networks_leave_the_stack(small_data, monkeypatch):
    monkeypatch.setattr(stacked, "WORTH_COMPILING_S", 0.0)
    trainings = [Training(Network((width,)), 0.1, 32, epochs) for width, epochs in ((4, 1), (6, 3), (5, 2))]
    _, epochs, _ = found = trained(trainings, small_data)
    assert [len(epochs[i]) for i in range(3)] == [1, 3, 2]
    assert_each_as_alone(trainings, small_data, found)


def test_a_stack_resumes_from_its_parameters(small_data):
    trainings = [Training(Network((6,)), rate, 32, 3) for rate in (0.05, 0.1)]
    half = [Training(t.network, t.learning_rate, 32, 1) for t in trainings]
    _, _, after_one = trained(half, small_data)
    losses, epochs, last = trained(trainings, small_data, parameters=after_one, first_epoch=1)
    whole, _, expected = trained(trainings, small_data)
    for index in range(2):
        assert [epoch.epoch for epoch in epochs[index]] == [1, 2]
        np.testing.assert_array_equal(losses[index], whole[index][20:])
        np.testing.assert_array_equal(last[index][0][0], expected[index][0][0])


@pytest.mark.slow
def test_times_of_networks_are_equal_shares_of_the_stacks(small_data):
    trainings = [Training(Network((8,)), 0.1, 32, 1)] * 4
    events = [told[1] for told in train_stack(trainings, small_data) if told is not None]
    of_epochs = [event.train_s for event in epochs_of(events)]
    assert len(of_epochs) == 4
    assert len(set(of_epochs)) == 1
    assert sum(event.train_s for event in events if isinstance(event, Steps)) == pytest.approx(sum(of_epochs))
    assert len([event for event in events if isinstance(event, FirstCall)]) == 4


def test_too_many_devices_are_refused(small_data):
    with pytest.raises(ValueError, match=r"expected at most \d+ \(cpu\), got 99"):
        next(train_stack([Training()], small_data, n_devices=99))


DIVIDED = [
    Training(Network(hidden), rate, 32, 2, seed)
    for hidden in ((12,), (7, 5))
    for rate in (0.05, 0.1, 1000.0)
    for seed in (0, 1)
]
# One process with all devices; or, if it is given a port and its number, one of the two of a job.
DIVIDING = """
import json, sys
import jax
n_devices, *job = map(int, sys.argv[1:])
if job:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{job[0]}", num_processes=2, process_id=job[1])
from tests.conftest import make_small_data
from tests.model.backends.test_stacked import DIVIDED, trained
assert len(jax.devices()) == n_devices and len(jax.local_devices()) == n_devices / (2 if job else 1)
losses, epochs, last = trained(DIVIDED, make_small_data(), n_devices=n_devices)
print(json.dumps({str(i): [losses[i].tolist(), float(sum(w.sum() for w, _ in last[i]))] for i in losses}))
"""


def divided(n_here: int, *arguments: int) -> subprocess.Popen:
    """Train `DIVIDED` in a process that has `n_here` devices."""
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={n_here}", "JAX_PLATFORMS": "cpu"}
    command, pipe = [sys.executable, "-c", DIVIDING, *map(str, arguments)], subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=os.environ | flags, stdout=pipe, stderr=pipe, text=True)


def answers(*processes: subprocess.Popen) -> list[dict]:
    said = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), said
    return [json.loads(stdout.splitlines()[-1]) for stdout, _ in said]


def assert_as_by_one(divided: dict, data) -> None:
    losses, _, last = trained(DIVIDED, data)
    assert len(divided) == len(DIVIDED)
    for index, expected in losses.items():
        found, found_sum = divided[str(index)]
        if np.isfinite(expected).all():
            np.testing.assert_allclose(found, expected, atol=TOLERANCE, rtol=TOLERANCE)
            assert found_sum == pytest.approx(float(sum(w.sum() for w, _ in last[index])), rel=1e-5, abs=1e-2)
        else:
            assert not np.isfinite(found).all()


@pytest.mark.release
def test_eight_devices_train_as_one(small_data):
    (by_eight,) = answers(divided(8, 8))
    assert_as_by_one(by_eight, small_data)


@pytest.mark.release
def test_two_processes_of_a_job_train_as_one(small_data):
    port = free_port()
    first, second = answers(*[divided(2, 4, port, number) for number in (0, 1)])
    assert repr(first) == repr(second), "both are told the same"
    assert_as_by_one(first, small_data)


@pytest.mark.release
def test_stacks_train_data_of_other_shapes_as_each_alone():
    data, networks = odd_data(5, 3), [Network(hidden, 5, 3) for hidden in [(), (4,), (9, 4)]]
    for batch_size in (1, 7):
        trainings = [Training(network, 0.1, batch_size, 2, data=ODD) for network in networks]
        assert_each_as_alone(trainings, data, trained(trainings, data))


@pytest.mark.slow
def test_padding_stays_exactly_zero(small_data, monkeypatch):
    networks = [Network((5,)), Network((9, 4)), Network((3, 7, 2)), Network(())]
    hosts = []
    monkeypatch.setattr(stacked, "read", lambda host, *_: hosts.append(host) or [])
    trained([Training(network, 0.1, 32, 3) for network in networks], small_data)
    host = hosts[-1]
    for column, network in enumerate(networks):
        for depth, layer in enumerate(host["weights"]):
            used = network.shapes[depth] if depth < len(network.hidden) else (0, 0)
            assert not layer[0, column, used[1] :].any()
            assert not layer[0, column, :, used[0] :].any()
            assert not host["biases"][depth][0, column, used[1] :].any()
        for exit_, depth in zip(host["exits"], Shape.of(networks).exits, strict=True):
            used = network.widths[-2] if depth == len(network.hidden) else 0
            assert not exit_[0, column, :, used:].any()
            assert exit_[0, column].any() == (depth == len(network.hidden)), "and it did learn"


@pytest.mark.slow
def test_changing_rate_seed_or_epochs_does_not_recompile(small_data, monkeypatch):
    def sweep_of(rate, epochs, seed):
        return [Training(Network((11,)), rate * factor, 32, epochs, seed) for factor in (1, 2, 3)]

    trained(sweep_of(0.01, 1, 0), small_data)
    monkeypatch.setattr(stacked, "_logits", None)  # tracing a program calls it
    trained(sweep_of(0.05, 2, 4), small_data)


def lowered_steps(data):
    shape, devices = Shape((4,), (1,)), tuple(jax.devices("cpu")[:1])
    compiled = stacked.program(shape, 32, False, devices)
    return compiled.steps.lower(  # type: ignore[attr-defined]
        stacked.zeros(shape, 1, 2),
        np.zeros((20, 1, 2), np.float32),
        [np.ones((1, 2), np.float32)],
        np.zeros((1, 20), np.int32),
        0,
        1,
        data.x_train,
        data.y_train,
        np.ones((1, 2), np.float32),
    )


def test_devices_do_not_communicate_while_training(small_data):
    text = lowered_steps(small_data).as_text()
    assert not any(word in text for word in ("all_reduce", "all_gather", "collective_permute", "all_to_all"))


@pytest.mark.slow
def test_a_card_runs_blocks_of_known_length(small_data, monkeypatch):
    monkeypatch.setitem(BLOCK, "cpu", BLOCK["gpu"])
    stacked.program.cache_clear()
    try:
        text = lowered_steps(small_data).compile().as_text() or ""
    finally:
        stacked.program.cache_clear()
    assert re.findall(r'known_trip_count":\{"n":"(\d+)"', text) == ["20"], "a whole epoch, where it has fewer steps"
