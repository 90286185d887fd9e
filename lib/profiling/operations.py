"""One training step of 784→hidden→10, operation by operation, as each library dispatches them: one call after another.

The article's table, with its six rows, taken further apart. Arrays are made anew by each operation, as in the article;
every operation is waited for.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lib.profiling.harness import CONFIG, Row, Subject
from lib.timing.measurement import Ended, Measurement, measure

_SHORT = replace(CONFIG, warm_up_s=0.01, min_time_s=0.04, max_time_s=0.15)


@dataclass(frozen=True)
class Operation:
    """A row of the table; `row` names the article's row that it belongs to."""

    key: str
    label: str
    row: str


OPERATIONS = (
    Operation("hidden", "X @ W1 + b1", "forward: hidden layer"),
    Operation("relu", "ReLU", "forward: ReLU"),
    Operation("output", "a1 @ W2 + b2", "forward: output layer"),
    Operation("loss", "softmax and loss", "softmax and loss"),
    Operation("d-logits", "dz2 = (softmax − y) / B", "backward"),
    Operation("d-w2", "dW2 = a1ᵀ @ dz2, db2", "backward"),
    Operation("d-a1", "da1 = dz2 @ W2ᵀ", "backward"),
    Operation("d-z1", "dz1 = da1 · (z1 > 0)", "backward"),
    Operation("d-w1", "dW1 = Xᵀ @ dz1, db1", "backward"),
    Operation("update", "W −= η dW, four times", "update"),
)
ALL, PRODUCT, COMPILED = "all", "product", "compiled"  # the whole step op by op; X @ W1 alone; the whole step compiled
KERNELS = "kernels"  # not seconds but a number: of what the host launches in a step that XLA compiled

Array = Any  # of whichever library


@dataclass(frozen=True)
class Library:
    """What the libraries write differently.

    `product(a, b, ta, tb)` multiplies, either transposed; `move` brings to the device.
    """

    move: Callable[[np.ndarray], Array]
    product: Callable[[Array, Array, bool, bool], Array]
    relu: Callable[[Array], Array]
    positive: Callable[[Array], Array]
    exp: Callable[[Array], Array]
    log: Callable[[Array], Array]
    largest: Callable[[Array], Array]  # of each row, (batch, 1)
    row_sum: Callable[[Array], Array]  # (batch, 1)
    column_sum: Callable[[Array], Array]  # (1, columns)
    total: Callable[[Array], Array]
    wait: Callable[[Array], object]
    variable: Callable[[Array], Array]  # what an update can write into
    descend: Callable[[Array, Array], Array]  # weights, scaled gradient
    compiled: Callable[[Callable], Callable] | None = None


def measure_operations(worker: str, subject: Subject) -> Iterator[Row]:
    """A row for each operation, then for the whole step, the single product, and the compiled step where there is
    one."""
    library = LIBRARIES[worker](subject.device)
    for name, step in steps(library, subject).items():
        step()  # compiles: that is neither the operation nor a part of the time that measuring it may take
        yield name, measure(step, config=_SHORT), 1.0
    if worker == "jax":
        from lib.profiling.with_jax import launched

        yield KERNELS, Measurement((float(len(launched(subject))),), 1, Ended.CAP), 1.0


def steps(library: Library, subject: Subject) -> dict[str, Callable[[], Array]]:
    """What is measured, by key. Each operation has its inputs ready, and is waited for."""
    x, y = subject.batch
    (w1, b1), (w2, b2) = subject.parameters
    onehot = library.move(np.eye(len(b2), dtype=np.float32)[y])  # (batch, 10)
    images, *weights = (library.move(array) for array in (x, w1, b1[None, :], w2, b2[None, :]))  # biases as rows
    weights = [library.variable(one) for one in weights]
    values = forward_and_backward(library, images, onehot, weights)
    calls = _calls(library, images, onehot, weights, values, np.float32(subject.training.learning_rate))
    waited: dict[str, Callable[[], Array]] = {name: _waited(library, call) for name, call in calls.items()}

    def whole() -> Array:
        return [calls[operation.key]() for operation in OPERATIONS][-1]

    waited[ALL] = _waited(library, whole)
    waited[PRODUCT] = _waited(library, lambda: library.product(images, weights[0], False, False))
    if library.compiled is not None:
        rate = np.float32(subject.training.learning_rate)
        step = library.compiled(lambda *arrays: _new_weights(library, arrays[0], arrays[1], arrays[2:], rate))
        waited[COMPILED] = _waited(library, lambda: step(images, onehot, *weights))
    return waited


def _waited(library: Library, call: Callable[[], Array]) -> Callable[[], Array]:
    return lambda: library.wait(call())


def forward_and_backward(library: Library, x: Array, onehot: Array, weights) -> Mapping[str, Array]:
    """All values of a step by name: activations, loss, and the gradients of the four parameters last."""
    w1, b1, w2, b2 = weights
    product, size = library.product, np.float32(x.shape[0])
    z1 = product(x, w1, False, False) + b1  # (batch, hidden)
    a1 = library.relu(z1)
    z2 = product(a1, w2, False, False) + b2  # (batch, 10)
    probabilities, loss = _softmax_and_loss(library, z2, onehot)
    dz2 = (probabilities - onehot) / size
    da1 = product(dz2, w2, False, True)  # (batch, hidden)
    dz1 = da1 * library.positive(z1)
    return {
        "z1": z1,
        "a1": a1,
        "z2": z2,
        "probabilities": probabilities,
        "loss": loss,
        "dz2": dz2,
        "da1": da1,
        "dz1": dz1,
        "dw1": product(x, dz1, True, False),
        "db1": library.column_sum(dz1),
        "dw2": product(a1, dz2, True, False),
        "db2": library.column_sum(dz2),
    }


def _new_weights(library: Library, x: Array, onehot: Array, weights, rate: np.float32) -> list[Array]:
    """A whole step as one function, for a compiler."""
    values = forward_and_backward(library, x, onehot, weights)
    return [w - rate * values[name] for w, name in zip(weights, ("dw1", "db1", "dw2", "db2"), strict=True)]


def _softmax_and_loss(library: Library, z2: Array, onehot: Array) -> tuple[Array, Array]:
    exponents = library.exp(z2 - library.largest(z2))
    probabilities = exponents / library.row_sum(exponents)
    return probabilities, -library.total(onehot * library.log(probabilities + np.float32(1e-30))) / np.float32(
        z2.shape[0]
    )


def _calls(
    library: Library, x, onehot, weights, v: Mapping[str, Array], rate: np.float32
) -> dict[str, Callable[[], Array]]:
    w1, b1, w2, b2 = weights
    product, size = library.product, np.float32(x.shape[0])
    gradients = (v["dw1"], v["db1"], v["dw2"], v["db2"])
    return {
        "hidden": lambda: product(x, w1, False, False) + b1,
        "relu": lambda: library.relu(v["z1"]),
        "output": lambda: product(v["a1"], w2, False, False) + b2,
        "loss": lambda: _softmax_and_loss(library, v["z2"], onehot),
        "d-logits": lambda: (v["probabilities"] - onehot) / size,
        "d-w2": lambda: (product(v["a1"], v["dz2"], True, False), library.column_sum(v["dz2"])),
        "d-a1": lambda: product(v["dz2"], w2, False, True),
        "d-z1": lambda: v["da1"] * library.positive(v["z1"]),
        "d-w1": lambda: (product(x, v["dz1"], True, False), library.column_sum(v["dz1"])),
        "update": lambda: [library.descend(w, rate * g) for w, g in zip(weights, gradients, strict=True)],
    }


def _same(array: Array) -> Array:
    return array


def _numpy(_device: str) -> Library:
    return _like_numpy(np, np.ascontiguousarray, _same)


def _cupy(_device: str) -> Library:
    import cupy  # pyright: ignore[reportMissingImports] (optional)

    def wait(value):
        cupy.cuda.Device().synchronize()
        return value

    return _like_numpy(cupy, cupy.asarray, wait)


def _like_numpy(xp, move: Callable[[np.ndarray], Array], wait: Callable[[Array], object]) -> Library:
    """`xp`: the module, NumPy or one with its interface."""

    def product(a, b, transposed_a, transposed_b):
        return (a.T if transposed_a else a) @ (b.T if transposed_b else b)

    def descend(weights, step):
        weights -= step
        return weights

    return Library(
        move,
        product,
        lambda z: xp.maximum(0, z),
        lambda z: z > 0,
        xp.exp,
        xp.log,
        lambda z: z.max(axis=1, keepdims=True),
        lambda z: z.sum(axis=1, keepdims=True),
        lambda z: z.sum(axis=0, keepdims=True),
        xp.sum,
        wait,
        xp.copy,
        descend,
    )


def _jax(device: str) -> Library:
    import jax
    import jax.numpy as jnp

    target = jax.devices(device)[0]
    positive = jax.jit(lambda z: (z > 0).astype(z.dtype))  # one call, as a comparison by itself is

    def product(a, b, transposed_a, transposed_b):
        return (a.T if transposed_a else a) @ (b.T if transposed_b else b)

    return Library(
        lambda array: jax.device_put(array, target),
        product,
        lambda z: jnp.maximum(0, z),
        positive,
        jnp.exp,
        jnp.log,
        lambda z: z.max(axis=1, keepdims=True),
        lambda z: z.sum(axis=1, keepdims=True),
        lambda z: z.sum(axis=0, keepdims=True),
        jnp.sum,
        jax.block_until_ready,
        _same,
        lambda weights, step: weights - step,
        jax.jit,
    )


def _tensorflow(device: str) -> Library:
    import tensorflow as tf

    place = f"/{device.upper()}:0"

    def move(array):
        with tf.device(place):
            return tf.constant(array)

    def variable(array):
        with tf.device(place):
            return tf.Variable(array)

    def product(a, b, transposed_a, transposed_b):
        return tf.matmul(a, b, transpose_a=transposed_a, transpose_b=transposed_b)

    def wait(value):
        if device == "gpu":  # on the processor an operation returns when it is done
            tf.test.experimental.sync_devices()
        return value

    return Library(
        move,
        product,
        tf.nn.relu,
        lambda z: tf.cast(z > 0, tf.float32),
        tf.exp,
        tf.math.log,
        lambda z: tf.reduce_max(z, axis=1, keepdims=True),
        lambda z: tf.reduce_sum(z, axis=1, keepdims=True),
        lambda z: tf.reduce_sum(z, axis=0, keepdims=True),
        tf.reduce_sum,
        wait,
        variable,
        lambda w, step: w.assign_sub(step),
        lambda function: tf.function(function, autograph=False),
    )


def _torch(device: str) -> Library:
    import torch  # pyright: ignore[reportMissingImports] (optional)

    target = torch.device("cuda" if device == "gpu" else "cpu")

    def product(a, b, transposed_a, transposed_b):
        return (a.T if transposed_a else a) @ (b.T if transposed_b else b)

    def wait(value):
        if device == "gpu":
            torch.cuda.synchronize()
        return value

    return Library(
        lambda array: torch.from_numpy(np.array(array)).to(target),
        product,
        torch.relu,
        lambda z: z > 0,
        torch.exp,
        torch.log,
        lambda z: z.amax(dim=1, keepdim=True),
        lambda z: z.sum(dim=1, keepdim=True),
        lambda z: z.sum(dim=0, keepdim=True),
        torch.sum,
        wait,
        _same,
        lambda w, step: w.sub_(step),
    )


LIBRARIES: dict[str, Callable[[str], Library]] = {
    "numpy": _numpy,
    "jax": _jax,
    "keras-tensorflow": _tensorflow,
    "torch": _torch,
    "cupy": _cupy,
}
