"""The experiments on Keras' `fit`, on TensorFlow or JAX."""

# pyright: reportArgumentType=false, reportIndexIssue=false, reportOptionalCall=false
# Keras annotates what `fit` sets up as optional.

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

from lib.model.backends.with_keras import build
from lib.timing.measurement import Step, Sync, no_wait
from lib.timing.prediction.remedies import STEPS_PER_EXECUTION, Remedy
from lib.timing.profiling.harness import IN_A_ROW, Batch, InOneCall, Repeated, StepExperiment, Subject, TrainedStep

BATCHES = 200  # fetched at a time
FIT_S = 0.1  # of a block of steps by `fit`
OPTIONS = {  # of `compile`, by variant
    Remedy.METRIC.variant: {"metrics": []},
    Remedy.EXECUTION.variant: {"steps_per_execution": STEPS_PER_EXECUTION},
    Remedy.XLA.variant: {"jit_compile": True},
}


class _Clock(keras.callbacks.Callback):
    """Seconds of an epoch's steps."""

    spent_s = 0.0

    def on_epoch_begin(self, epoch, logs=None):
        self._began_s = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.spent_s = time.perf_counter() - self._began_s


@dataclass
class Fit:
    """Keras' `fit` as people write it; a block is so many steps as take `FIT_S`, and at least `STEPS_PER_EXECUTION`.

    Args:
        subject: The step.
        options: Of `compile`.
        from_generator: Whether a generator feeds it; else arrays do.
    """

    subject: Subject
    options: dict[str, Any]
    from_generator: bool = False

    def prepare(self) -> None:
        subject = self.subject
        self._model = build(subject.network, subject.training.learning_rate, subject.parameters, **self.options)
        self._batches = self._endless()
        self._most = max(1, len(subject.data.x_train) // subject.batch_size)
        self._steps = min(STEPS_PER_EXECUTION, self._most)
        self.block()  # compiles
        wanted = int(FIT_S / self.block())
        whole = max(1, wanted // STEPS_PER_EXECUTION) * STEPS_PER_EXECUTION  # a shorter call would be compiled anew
        self._steps = whole if whole <= self._most else self._steps
        self.block()

    def block(self) -> float:
        n, clock = self._steps * self.subject.batch_size, _Clock()
        x, y = self.subject.data.x_train[:n], self.subject.data.y_train[:n]
        common = {"epochs": 1, "verbose": 0, "shuffle": False, "callbacks": [clock]}
        if self.from_generator:
            self._model.fit(self._batches, steps_per_epoch=self._steps, **common)
        else:
            self._model.fit(x, y, batch_size=self.subject.batch_size, **common)
        return clock.spent_s / self._steps

    def _endless(self) -> Iterator[Batch]:
        size, data = self.subject.batch_size, self.subject.data
        while True:
            for start in range(0, len(data.x_train) - size + 1, size):
                yield data.x_train[start : start + size], data.y_train[start : start + size]


def varied(_backend: str, subject: Subject, variant: str) -> StepExperiment:
    """A step by `fit`, changed in one thing."""
    return Fit(subject, OPTIONS.get(variant, {}), variant == Remedy.ARRAYS.variant)


def experiments(backend: str, subject: Subject) -> dict[str, StepExperiment]:
    """The experiments of `lib.timing.profiling.run` on Keras, by name.

    Keras' own compiled step is called without the `fit` around it.
    """
    on_tensorflow = backend == "keras-tensorflow"
    make = _tensorflow_step if on_tensorflow else _jax_step
    tiny, wait = make(subject.tiny)
    found: dict[str, StepExperiment] = {
        # TensorFlow returns on a processor when it is done; elsewhere there is a queue, which must not fill up.
        "returns": Repeated(tiny, wait, config=IN_A_ROW, returns=not on_tensorflow or subject.device == "gpu"),
        "call-tiny": Repeated(tiny, wait, config=IN_A_ROW),  # `fit` does not wait for each step either
        "call": Repeated(*make(subject), config=IN_A_ROW),
        "fit-tiny": TrainedStep(backend, subject.tiny),
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

    return Repeated(all_batches, steps=n / subject.batch_size)


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

    return InOneCall(lambda n: many(tf.constant(n)).numpy(), no_wait)
