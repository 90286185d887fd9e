"""The experiments on Keras' `fit`, on TensorFlow or JAX."""

# pyright: reportArgumentType=false, reportIndexIssue=false, reportOptionalCall=false
# Keras annotates what `fit` sets up as optional.

from collections.abc import Callable

import keras
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

from lib.backends.with_keras import build
from lib.profiling.harness import IN_A_ROW, Experiment, InOneCall, Repeated, Subject, TrainedStep
from lib.timing.measurement import Step, Sync, no_wait

BATCHES = 200  # fetched at a time


def experiments(backend: str, subject: Subject) -> dict[str, Experiment]:
    """The experiments of `lib.profiling.run` on Keras, by name.

    Keras' own compiled step is called without the `fit` around it.
    """
    on_tensorflow = backend == "keras-tensorflow"
    make = _tensorflow_step if on_tensorflow else _jax_step
    tiny, wait = make(subject.tiny)
    found: dict[str, Experiment] = {
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
    from lib.profiling.with_jax import many_steps

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


def _fetched(subject: Subject, on_tensorflow: bool) -> Experiment:
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


def _many_steps(subject: Subject) -> Experiment:
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
