"""The compiled program of a stack: padding stays zero, nothing is compiled twice, and devices exchange nothing."""

import jax
import numpy as np

from lib.backends.stacked import program as program_module
from lib.backends.stacked import train as train_module
from lib.backends.stacked.packing import Shape
from lib.spec import Network, Training
from tests.backends.test_train import trained


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


def test_neither_rate_nor_seed_nor_epochs_compile_again(small_data):
    def sweep_of(rate, epochs, seed):
        return [Training(Network((11,)), rate * factor, 32, epochs, seed) for factor in (1, 2, 3)]

    trained(sweep_of(0.01, 1, 0), small_data)
    before = dict(program_module.TRACES)
    trained(sweep_of(0.05, 2, 4), small_data)
    assert before == program_module.TRACES


def test_devices_exchange_nothing_while_they_train(small_data):
    """No collective in the compiled steps: what makes it scale to any number of devices."""
    devices = tuple(jax.devices("cpu")[:1])
    compiled = program_module.program(Shape((4,), (1,)), 32, False, devices)
    parameters = program_module.zeros(Shape((4,), (1,)), 1, 2)
    arguments = (
        parameters,
        np.zeros((20, 1, 2), np.float32),
        [np.ones((1, 2), np.float32)],
        np.zeros((1, 20), np.int32),
        0,
        1,
        small_data.x_train,
        small_data.y_train,
        np.ones((1, 2), np.float32),
    )
    text = compiled.steps.lower(*arguments).as_text()  # type: ignore[attr-defined]
    assert not any(word in text for word in ("all_reduce", "all_gather", "collective_permute", "all_to_all"))
