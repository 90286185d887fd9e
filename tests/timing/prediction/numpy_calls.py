"""How many NumPy calls a training step makes, counted as they are made."""

import numpy as np

from lib.model.backends.base import Parameters, initial_parameters
from lib.model.backends.with_numpy import Workspace, loss_and_gradients, update
from lib.model.spec import Network


class _Counted(np.ndarray):
    """An array that counts what is called with it: ufuncs (products and reductions too), and indexing by arrays."""

    calls = 0

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **keywords):
        _Counted.calls += 1
        plain, outputs = [_plain(one) for one in inputs], tuple(_plain(one) for one in out)
        return getattr(ufunc, method)(*plain, **({"out": outputs} if outputs else {}), **keywords)

    def __getitem__(self, key):
        _Counted.calls += _by_arrays(key)
        return super().__getitem__(key)

    def __setitem__(self, key, value):
        _Counted.calls += _by_arrays(key)
        super().__setitem__(key, _plain(value))


def _by_arrays(key: object) -> bool:
    return isinstance(key, tuple) and any(isinstance(part, np.ndarray) for part in key)


def _plain(value):
    return value.view(np.ndarray) if isinstance(value, _Counted) else value


def calls_of_a_step(network: Network, batch_size: int) -> int:
    """The NumPy calls of one training step."""
    work = Workspace(network, batch_size)
    for buffers in (work.activations, work.deltas, work.weight_gradients, work.bias_gradients):
        buffers[:] = [one.view(_Counted) for one in buffers]
    work.column = work.column.view(_Counted)
    plain = initial_parameters(network, 0)
    parameters: Parameters = [(weights.view(_Counted), biases.view(_Counted)) for weights, biases in plain]
    _Counted.calls = 0
    images = np.zeros((batch_size, 784), np.float32).view(_Counted)
    loss_and_gradients(parameters, images, np.zeros(batch_size, np.int64), work)
    update(parameters, np.float32(1e-6), work)
    return _Counted.calls
