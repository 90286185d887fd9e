"""The experiments on Keras' `fit`, on TensorFlow or JAX."""

# pyright: reportArgumentType=false, reportIndexIssue=false, reportOptionalCall=false
# Keras annotates what `fit` sets up as optional.

from collections.abc import Iterator

import keras
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

from lib.anatomy.subject import CONFIG, IN_A_ROW, IN_ONE_CALL, Row, Subject, measured, real_steps
from lib.backends.with_keras import build
from lib.timing import Measurement, Step, Sync, measure, measure_dispatch

TINY_FIT_S = 0.3
BATCHES = 200  # fetched at a time


def experiments(backend: str, subject: Subject) -> Iterator[Row]:
    """See `lib.anatomy.experiments`. Keras' own compiled step is called without the `fit` around it."""
    on_tensorflow = backend == "keras-tensorflow"
    make = _tensorflow_step if on_tensorflow else _jax_step
    step, wait = make(subject.tiny)
    yield "returns", measure_dispatch(step, sync=wait, config=CONFIG), 1.0
    yield measured(
        "call-tiny", step, wait, config=IN_A_ROW
    )  # waited for once a block: `fit` does not wait for each step either
    yield measured("call", *make(subject), config=IN_A_ROW)
    yield "fit-tiny", real_steps(backend, subject.tiny, TINY_FIT_S)[0], 1.0
    yield "transfer", *_fetched(subject, on_tensorflow)
    yield "transfer-base", *_fetched(subject.tiny, on_tensorflow)
    if on_tensorflow:
        yield from _many_steps(subject)
    else:
        from lib.anatomy.with_jax import many_steps

        yield from many_steps(subject)


def _model(subject: Subject) -> keras.Model:
    return build(subject.network, subject.training.learning_rate, subject.parameters)


def _tensorflow_step(subject: Subject) -> tuple[Step, Sync]:
    import tensorflow as tf

    model = _model(subject)
    x, y = (tf.constant(array) for array in subject.batch)
    step = tf.function(model.train_step)
    return lambda: step((x, y)), lambda logs: logs["loss"].numpy()


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


def _fetched(subject: Subject, on_tensorflow: bool) -> tuple[Measurement, float]:
    """Batches fetched as `fit` fetches them, without a step in between."""
    n = min(len(subject.starts), BATCHES) * subject.batch_size
    adapter = ArrayDataAdapter(
        subject.data.x_train[:n], subject.data.y_train[:n], batch_size=subject.batch_size, shuffle=False
    )

    dataset = adapter.get_tf_dataset() if on_tensorflow else None  # made once: it copies the images

    def all_batches() -> None:
        for _ in dataset if dataset is not None else adapter.get_jax_iterator():
            pass

    return measure(all_batches, config=CONFIG), n / subject.batch_size


def _many_steps(subject: Subject) -> Iterator[Row]:
    import tensorflow as tf

    for name, of in (("many", subject), ("many-tiny", subject.tiny)):
        model = _model(of)
        x, y = (tf.constant(array) for array in of.batch)

        @tf.function
        def many(model=model, x=x, y=y):
            for _ in tf.range(IN_ONE_CALL):
                model.train_step((x, y))
            return tf.identity(model.trainable_variables[-1])

        yield measured(name, lambda many=many: many().numpy(), steps=IN_ONE_CALL)
