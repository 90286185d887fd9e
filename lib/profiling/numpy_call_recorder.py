"""Which NumPy calls a training step makes: recorded as they are made, to be repeated one by one."""

from collections.abc import Callable

import numpy as np

from lib.backends.base import Parameters
from lib.backends.with_numpy import Workspace, loss_and_gradients, update
from lib.spec import Network

_calls: list[Callable[[], object]] = []


class _Recorder(np.ndarray):
    """An array that records what is called with it: ufuncs (products and reductions too), and indexing by arrays."""

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **keywords):
        function = getattr(ufunc, method)
        plain, outputs = [_plain(one) for one in inputs], tuple(_plain(one) for one in out)
        # Repeated, it writes elsewhere, and reads copies: what the step overwrites must stay what it was.
        kept = [one.copy(order="K") if any(one is o for o in outputs) else one for one in plain]
        elsewhere = {"out": tuple(np.empty_like(one) for one in outputs)} if outputs else {}
        _calls.append(lambda: function(*kept, **elsewhere, **keywords))
        return function(*plain, **({"out": outputs} if outputs else {}), **keywords)

    def __getitem__(self, key):
        plain = self.view(np.ndarray)
        if _by_arrays(key):
            _calls.append(lambda: plain[key])
        return super().__getitem__(key)

    def __setitem__(self, key, value):
        plain, value = self.view(np.ndarray), _plain(value)
        if _by_arrays(key):
            _calls.append(lambda: plain.__setitem__(key, value))
        super().__setitem__(key, value)


def _by_arrays(key: object) -> bool:
    return isinstance(key, tuple) and any(isinstance(part, np.ndarray) for part in key)


def _plain(value):
    return value.view(np.ndarray) if isinstance(value, _Recorder) else value


def recorded_calls(
    network: Network, parameters: Parameters, batch: tuple[np.ndarray, np.ndarray]
) -> list[Callable[[], object]]:
    """The NumPy calls of one training step, each as a function that makes it again with arrays of the same sizes.

    Args:
        network: Of any hidden layers.
        parameters: Where the step begins; they are not changed.
        batch: Images (batch, 784) and labels (batch,).
    """
    x, y = batch
    work = Workspace(network, len(x))
    for buffers in (work.activations, work.deltas, work.weight_gradients, work.bias_gradients):
        buffers[:] = [one.view(_Recorder) for one in buffers]
    work.column = work.column.view(_Recorder)
    copies: Parameters = [
        (weights.copy().view(_Recorder), biases.copy().view(_Recorder)) for weights, biases in parameters
    ]
    _calls.clear()
    loss_and_gradients(copies, x.view(_Recorder), y, work)
    update(copies, np.float32(1e-6), work)
    return list(_calls)
