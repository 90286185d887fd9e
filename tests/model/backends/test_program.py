"""The compiled program of a stack: padding stays zero, nothing is compiled twice, and devices exchange nothing."""

import re

import jax
import numpy as np
import pytest

from lib.model.backends import stacked as program_module
from lib.model.backends import stacked as train_module
from lib.model.backends.packing import Shape
from lib.model.backends.with_jax import BLOCK
from lib.model.spec import Network, Training
from tests.model.backends.test_train import trained


@pytest.mark.slow
def test_padding_stays_exactly_zero(small_data, monkeypatch):
    networks = [Network((5,)), Network((9, 4)), Network((3, 7, 2)), Network(())]
    hosts = []
    monkeypatch.setattr(train_module, "read", lambda host, *_: hosts.append(host) or [])
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
def test_neither_rate_nor_seed_nor_epochs_compile_again(small_data):
    def sweep_of(rate, epochs, seed):
        return [Training(Network((11,)), rate * factor, 32, epochs, seed) for factor in (1, 2, 3)]

    trained(sweep_of(0.01, 1, 0), small_data)
    before = dict(program_module.TRACES)
    trained(sweep_of(0.05, 2, 4), small_data)
    assert before == program_module.TRACES


def lowered_steps(data):
    """The steps of two networks on one device, as JAX hands them to the compiler."""
    shape, devices = Shape((4,), (1,)), tuple(jax.devices("cpu")[:1])
    compiled = program_module.program(shape, 32, False, devices)
    return compiled.steps.lower(  # type: ignore[attr-defined]
        program_module.zeros(shape, 1, 2),
        np.zeros((20, 1, 2), np.float32),
        [np.ones((1, 2), np.float32)],
        np.zeros((1, 20), np.int32),
        0,
        1,
        data.x_train,
        data.y_train,
        np.ones((1, 2), np.float32),
    )


def test_devices_exchange_nothing_while_they_train(small_data):
    """No collective in the compiled steps: what makes it scale to any number of devices."""
    text = lowered_steps(small_data).as_text()
    assert not any(word in text for word in ("all_reduce", "all_gather", "collective_permute", "all_to_all"))


@pytest.mark.slow
def test_a_card_is_given_blocks_of_known_length(small_data, monkeypatch):
    monkeypatch.setitem(BLOCK, "cpu", BLOCK["gpu"])
    program_module.program.cache_clear()
    try:
        text = lowered_steps(small_data).compile().as_text() or ""
    finally:
        program_module.program.cache_clear()
    assert re.findall(r'known_trip_count":\{"n":"(\d+)"', text) == ["20"], "a whole epoch, where it has fewer steps"
