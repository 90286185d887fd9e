"""The experiments on Keras' `fit`, on TensorFlow or JAX."""

# pyright: reportArgumentType=false, reportIndexIssue=false, reportOptionalCall=false
# Keras annotates what `fit` sets up as optional.

import time
from collections.abc import Callable
from itertools import cycle
from typing import Any

import keras
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

from lib.model.backends.with_keras import build
from lib.timing.measurement import Step, Sync, no_wait
from lib.timing.prediction.remedies import STEPS_PER_EXECUTION, Remedy
from lib.timing.profiling.harness import IN_A_ROW, StepExperiment, Subject, in_one_call, repeated, trained_step

BATCHES = 200  # fetched at a time
FIT_S = 0.1  # of a block of steps by `fit`
OPTIONS = {  # of `compile`, by variant
    Remedy.METRIC.variant: {"metrics": []},
    Remedy.EXECUTION.variant: {"steps_per_execution": STEPS_PER_EXECUTION},
    Remedy.XLA.variant: {"jit_compile": True},
}


def fit(subject: Subject, options: dict[str, Any], from_generator: bool = False) -> StepExperiment:
    """Keras' `fit` as people write it; a block has the steps that fit into `FIT_S`, at least `STEPS_PER_EXECUTION`.

    Args:
        subject: The step.
        options: Of `compile`.
        from_generator: Whether a generator feeds it; else arrays do.
    """
    model = build(subject.network, subject.training.learning_rate, subject.parameters, **options)
    size, data = subject.batch_size, subject.data
    most = max(1, len(data.x_train) // size)
    starts = cycle(range(0, len(data.x_train) - size + 1, size))
    batches = ((data.x_train[start : start + size], data.y_train[start : start + size]) for start in starts)

    def block(steps: int) -> float:
        marks_s: list[float] = []  # where the epoch's steps begin and end

        def mark(*_: object) -> None:
            marks_s.append(time.perf_counter())

        clock = keras.callbacks.LambdaCallback(on_epoch_begin=mark, on_epoch_end=mark)
        common = {"epochs": 1, "verbose": 0, "shuffle": False, "callbacks": [clock]}
        if from_generator:
            model.fit(batches, steps_per_epoch=steps, **common)
        else:
            model.fit(data.x_train[: steps * size], data.y_train[: steps * size], batch_size=size, **common)
        return (marks_s[1] - marks_s[0]) / steps

    steps = min(STEPS_PER_EXECUTION, most)
    block(steps)  # compiles
    wanted = int(FIT_S / block(steps))
    whole = max(1, wanted // STEPS_PER_EXECUTION) * STEPS_PER_EXECUTION  # a shorter call would be compiled anew
    steps = whole if whole <= most else steps
    while True:
        yield block(steps)


def varied(_backend: str, subject: Subject, variant: str) -> StepExperiment:
    """A step by `fit`, changed in one thing."""
    return fit(subject, OPTIONS.get(variant, {}), variant == Remedy.ARRAYS.variant)


def experiments(backend: str, subject: Subject) -> dict[str, StepExperiment]:
    """The experiments of `lib.timing.profiling.run` on Keras, by name.

    Keras' own compiled step is called without the `fit` around it.
    """
    on_tensorflow = backend == "keras-tensorflow"
    make = _tensorflow_step if on_tensorflow else _jax_step
    tiny, wait = make(subject.tiny)
    found: dict[str, StepExperiment] = {
        # TensorFlow returns on a processor when it is done; elsewhere there is a queue, which must not fill up.
        "returns": repeated(tiny, wait, config=IN_A_ROW, returns=not on_tensorflow or subject.device == "gpu"),
        "call-tiny": repeated(tiny, wait, config=IN_A_ROW),  # `fit` does not wait for each step either
        "call": repeated(*make(subject), config=IN_A_ROW),
        "fit-tiny": trained_step(backend, subject.tiny),
        "transfer": _fetched(subject, on_tensorflow),
        "transfer-base": _fetched(subject.tiny, on_tensorflow),
    }
    if on_tensorflow:
        return found | {"many": _many_steps(subject), "many-tiny": _many_steps(subject.tiny)}
    from lib.timing.profiling.with_jax import many_steps

    return found | many_steps(subject)


def _model(subject: Subject) -> keras.Model:
    return build(subject.network, subject.training.learning_rate, subject.parameters)


def _tensorflow_step(subject: Subject) -> tuple[Step, Sync]:
    import tensorflow as tf

    step = compiled_step(_model(subject))
    x, y = (tf.constant(array) for array in subject.batch)
    return lambda: step((x, y)), lambda logs: logs["loss"].numpy()


def compiled_step(model: keras.Model) -> Callable:
    """The model's own step as `fit` compiles it on TensorFlow: by XLA, where Keras decided so, as it does on a GPU.

    Args:
        model: Compiled, in Keras' sense.

    Returns:
        A `tf.function` of a pair of images (batch, 784) and labels (batch,), which returns the logs.
    """
    import tensorflow as tf

    return tf.function(model.train_step, jit_compile=model.jit_compile)


def _jax_step(subject: Subject) -> tuple[Step, Sync]:
    import jax

    model = _model(subject)
    x, y = subject.batch
    model.fit(x, y, batch_size=subject.batch_size, epochs=1, verbose=0)  # builds what `fit` calls in its loop
    state = model._get_jax_state(
        trainable_variables=True, non_trainable_variables=True, optimizer_variables=True, metrics_variables=True
    )

    def step() -> object:
        nonlocal state
        logs, state = model.train_function(state, iter(((x, y),)))
        return logs

    return step, jax.block_until_ready


def _fetched(subject: Subject, on_tensorflow: bool) -> StepExperiment:
    """Batches fetched as `fit` fetches them, without a step in between."""
    n = min(len(subject.starts), BATCHES) * subject.batch_size
    adapter = ArrayDataAdapter(
        subject.data.x_train[:n], subject.data.y_train[:n], batch_size=subject.batch_size, shuffle=False
    )
    dataset = adapter.get_tf_dataset() if on_tensorflow else None  # made once: it copies the images

    def all_batches() -> None:
        for _ in dataset if dataset is not None else adapter.get_jax_iterator():
            pass

    return repeated(all_batches, steps=n / subject.batch_size)


def _many_steps(subject: Subject) -> StepExperiment:
    import tensorflow as tf

    model = _model(subject)
    step = compiled_step(model)
    x, y = (tf.constant(array) for array in subject.batch)

    @tf.function
    def many(n):
        for _ in tf.range(n):
            step((x, y))
        return tf.identity(model.trainable_variables[-1])

    return in_one_call(lambda n: many(tf.constant(n)).numpy(), no_wait)
