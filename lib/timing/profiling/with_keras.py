"""Experiments on Keras' `fit`, on TensorFlow or JAX."""

# pyright: reportArgumentType=false, reportIndexIssue=false, reportOptionalCall=false
# Keras annotates attributes that `fit` sets as optional.

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

BATCHES = 200  # at most, in one measured pass over the images
FIT_S = 0.1  # of a block of steps by `fit`
OPTIONS = {  # of `compile`, by variant
    Remedy.METRIC.variant: {"metrics": []},
    Remedy.EXECUTION.variant: {"steps_per_execution": STEPS_PER_EXECUTION},
    Remedy.XLA.variant: {"jit_compile": True},
}


def fit(subject: Subject, options: dict[str, Any], from_generator: bool = False) -> StepExperiment:
    """Measure Keras' `fit` in its usual form, in blocks of about `FIT_S` and at least `STEPS_PER_EXECUTION` steps.

    Args:
        subject: The step.
        options: Options of `compile`.
        from_generator: Whether it is fed by a generator instead of arrays.
    """
    model = model_of(subject, **options)
    size, data = subject.batch_size, subject.data
    most = max(1, len(data.x_train) // size)
    starts = cycle(range(0, len(data.x_train) - size + 1, size))
    batches = ((data.x_train[start : start + size], data.y_train[start : start + size]) for start in starts)

    def block(steps: int) -> float:
        marks_s: list[float] = []  # when the epoch's steps begin and end

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
    whole = max(1, wanted // STEPS_PER_EXECUTION) * STEPS_PER_EXECUTION  # a partial execution would be recompiled
    steps = whole if whole <= most else steps
    while True:
        yield block(steps)


def varied(_backend: str, subject: Subject, variant: str) -> StepExperiment:
    """Measure a step by `fit` with one change."""
    return fit(subject, OPTIONS.get(variant, {}), variant == Remedy.ARRAYS.variant)


def experiments(backend: str, subject: Subject) -> dict[str, StepExperiment]:
    """Return the experiments of `lib.timing.profiling.run` on Keras, by name.

    They call Keras' own compiled step without `fit`.
    """
    on_tensorflow = backend == "keras-tensorflow"
    make = _tensorflow_step if on_tensorflow else _jax_step
    tiny, wait = make(subject.tiny)
    found: dict[str, StepExperiment] = {
        # On a processor, TensorFlow returns when it is done; elsewhere there is a queue, which must not fill up.
        "returns": repeated(tiny, wait, config=IN_A_ROW, returns=not on_tensorflow or subject.device == "gpu"),
        "call-tiny": repeated(tiny, wait, config=IN_A_ROW),  # `fit` does not wait for each step either
        "call": repeated(*make(subject), config=IN_A_ROW),
        "fit-tiny": trained_step(backend, subject.tiny, []),
        "transfer": _fetched(subject, on_tensorflow),
        "transfer-base": _fetched(subject.tiny, on_tensorflow),
    }
    if on_tensorflow:
        return found | {"many": _many_steps(subject), "many-tiny": _many_steps(subject.tiny)}
    from lib.timing.profiling.with_jax import many_steps

    return found | many_steps(subject)


def model_of(subject: Subject, **options: Any) -> keras.Model:
    return build(subject.network, subject.training.learning_rate, subject.parameters, **options)


def _tensorflow_step(subject: Subject) -> tuple[Step, Sync]:
    import tensorflow as tf

    step = compiled_step(model_of(subject))
    x, y = (tf.constant(array) for array in subject.batch)
    return lambda: step((x, y)), lambda logs: logs["loss"].numpy()


def compiled_step(model: keras.Model) -> Callable:
    """Return the model's own step as `fit` compiles it on TensorFlow: by XLA if Keras decides so, as it does on a GPU.

    Args:
        model: A compiled model, in Keras' sense.

    Returns:
        A `tf.function` that takes a pair of images (batch, 784) and labels (batch,), and returns the logs.
    """
    import tensorflow as tf

    return tf.function(model.train_step, jit_compile=model.jit_compile)


def _jax_step(subject: Subject) -> tuple[Step, Sync]:
    import jax

    model = model_of(subject)
    x, y = subject.batch
    model.fit(x, y, batch_size=subject.batch_size, epochs=1, verbose=0)  # builds `train_function`
    state = model._get_jax_state(
        trainable_variables=True, non_trainable_variables=True, optimizer_variables=True, metrics_variables=True
    )

    def step() -> object:
        nonlocal state
        logs, state = model.train_function(state, iter(((x, y),)))
        return logs

    return step, jax.block_until_ready


def _fetched(subject: Subject, on_tensorflow: bool) -> StepExperiment:
    n = min(len(subject.starts), BATCHES) * subject.batch_size
    adapter = ArrayDataAdapter(
        subject.data.x_train[:n], subject.data.y_train[:n], batch_size=subject.batch_size, shuffle=False
    )
    dataset = adapter.get_tf_dataset() if on_tensorflow else None  # made once, because it copies the images

    def all_batches() -> None:
        for _ in dataset if dataset is not None else adapter.get_jax_iterator():
            pass

    return repeated(all_batches, steps=n / subject.batch_size)


def _many_steps(subject: Subject) -> StepExperiment:
    import tensorflow as tf

    model = model_of(subject)
    step = compiled_step(model)
    x, y = (tf.constant(array) for array in subject.batch)

    @tf.function
    def many(n):
        for _ in tf.range(n):
            step((x, y))
        return tf.identity(model.trainable_variables[-1])

    return in_one_call(lambda n: many(tf.constant(n)).numpy(), no_wait)
