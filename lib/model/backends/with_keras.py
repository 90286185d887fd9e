"""Training with Keras' own `fit`, on the backend that `KERAS_BACKEND` named before the import.

`fit` is one blocking call, so it runs in a thread, and a callback list reports the losses every so often. It subclasses
Keras' own `CallbackList`, and adds only one append and one clock reading per step. So the seconds are those of `fit` as
people write it: `SGD`, sparse cross-entropy, accuracy as the metric, validation after each epoch.
"""

# pyright: reportArgumentType=false, reportOptionalMemberAccess=false
# Keras annotates `verbose` as a string only, and its callbacks' model as None.

import threading
import time
from collections.abc import Iterator
from queue import Queue

import keras
import numpy as np

from lib.model.backends.base import (
    CHUNK_S,
    Epoch,
    Event,
    FirstCall,
    Parameters,
    Steps,
    first_non_finite,
    initial_parameters,
)
from lib.model.data.mnist import Data, aligned, batch_starts
from lib.model.spec import Network, Training


def build(network: Network, learning_rate: float, parameters: Parameters, **options) -> keras.Model:
    """Build the articles' model: Dense layers with ReLU, compiled with plain SGD.

    The softmax is part of the loss instead of the last layer: Keras clips the probabilities of a softmax layer at 1e-7,
    and would report a loss of 16.1 where the other backends see it grow without bound.

    Args:
        network: Its widths.
        learning_rate: Of SGD.
        parameters: Initial values.
        options: Passed to Keras' `compile`.
    """
    layers = [keras.layers.Dense(width, activation="relu") for width in network.hidden]
    model = keras.Sequential([keras.Input((network.n_inputs,)), *layers, keras.layers.Dense(network.n_classes)])
    model.compile(
        optimizer=keras.optimizers.SGD(learning_rate=learning_rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        **{"metrics": ["accuracy"], **options},
    )
    model.set_weights([array for layer in parameters for array in layer])
    return model


class _Handover(keras.callbacks.CallbackList):
    """Keras' callback list, which also collects each step's logs and emits events every `CHUNK_S`.

    `fit` reports the running mean of the loss; the loss of step k is k·mean(k) - (k-1)·mean(k-1), exact but for float32
    rounding (1e-6 in the first steps, 1e-4 after a thousand).
    """

    def __init__(self, model: keras.Model, epoch: int) -> None:
        super().__init__(None, add_history=True, model=model)
        self.outbox: Queue[Event | None] = Queue(maxsize=1)  # None: `fit` has ended
        self.stop = threading.Event()
        self.diverged: int | None = None  # as `Epoch.diverged_step`
        self._epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        self._logs, self._done, self._total, self._train_s = [], 0, 0.0, 0.0
        self._clock_from = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        assert logs is not None, "fit reports the loss of each step"
        self._logs.append(logs["loss"])
        if time.perf_counter() - self._clock_from > CHUNK_S:
            self._hand_over()

    def on_test_begin(self, logs=None):
        self._hand_over()
        super().on_test_begin(logs)
        self._evaluation_from = time.perf_counter()

    def on_test_end(self, logs=None):
        super().on_test_end(logs)
        self._evaluation_s = time.perf_counter() - self._evaluation_from

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        assert logs is not None, "fit reports the validation of each epoch"
        loss, accuracy, model = float(logs["val_loss"]), float(logs["val_accuracy"]), self.model
        seconds = self._train_s, self._evaluation_s
        self._put(Epoch(self._epoch, self._done, loss, accuracy, *seconds, lambda: _parameters(model), self.diverged))

    def _hand_over(self) -> None:
        """Stop the clock, emit the new losses, wait for the next request, restart the clock."""
        if not self._logs:
            return
        keras.ops.convert_to_numpy(self._logs[-1])  # waits for the device
        elapsed_s = time.perf_counter() - self._clock_from
        # Copied only now, because a copy from a card can take longer than a step.
        means = np.array([float(keras.ops.convert_to_numpy(mean)) for mean in self._logs])
        totals = means * np.arange(self._done + 1, self._done + len(means) + 1)
        losses = np.diff(totals, prepend=self._total).astype(np.float32)
        first, self._done, self._total = self._done, self._done + len(means), float(totals[-1])
        self._train_s += elapsed_s
        self._logs = []
        if self.diverged is None:
            bad = first_non_finite(losses)
            # TensorFlow's ReLU turns NaN into 0, so the loss can stay finite when the parameters do not.
            if bad is None and not all(np.isfinite(array).all() for array in self.model.get_weights()):
                bad = len(losses) - 1
            if bad is not None:
                self.diverged, self.model.stop_training = first + bad, True
        self._put(Steps(self._epoch, first, losses, elapsed_s))
        self._clock_from = time.perf_counter()

    def _put(self, event: Event) -> None:
        self.outbox.put(event)
        self.outbox.join()  # returns once the generator is asked for the next event, or closed
        if self.stop.is_set():
            raise GeneratorExit  # ends `fit`, because the generator has been closed


def train(
    training: Training, data: Data, device: str = "cpu", parameters: Parameters | None = None, first_epoch: int = 0
) -> Iterator[Event]:
    """Run Keras' `fit` epoch by epoch; the environment sets backend and device. See `lib.model.backends.base`."""
    started = time.perf_counter()
    model = build(
        training.network, training.learning_rate, parameters or initial_parameters(training.network, training.seed)
    )
    size = training.batch_size
    _warm_up(model, data, size)
    yield FirstCall(time.perf_counter() - started)
    for epoch in range(first_epoch, training.epochs):
        starts = batch_starts(len(data.x_train), size, training.seed, epoch)
        x, y = _in_order(data.x_train, starts, size), _in_order(data.y_train, starts, size)
        handover = _Handover(model, epoch)
        yield from _fit_one_epoch(model, handover, x, y, data, size)
        if handover.diverged is not None:
            return


def _fit_one_epoch(
    model: keras.Model, handover: _Handover, x: np.ndarray, y: np.ndarray, data: Data, size: int
) -> Iterator[Event]:
    """Run `fit` for one epoch in a thread and yield its events. Closing the generator ends the `fit`."""
    failure: list[BaseException] = []

    def work() -> None:
        try:
            model.fit(
                x,
                y,
                batch_size=size,
                epochs=1,
                shuffle=False,
                verbose=0,
                callbacks=handover,
                validation_data=(data.x_validation, data.y_validation),
            )
        except GeneratorExit:
            pass
        except BaseException as error:  # passed on to the generator's caller
            failure.append(error)
        finally:
            handover.outbox.put(None)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        for event in iter(handover.outbox.get, None):
            try:
                yield event
            except BaseException:  # the generator is closed
                handover.stop.set()
                raise
            finally:
                handover.outbox.task_done()
    finally:
        thread.join()
    if failure:
        raise failure[0]


def _warm_up(model: keras.Model, data: Data, size: int) -> None:
    """Trace and compile training and evaluation on two batches, at learning rate 0 so that nothing is learned."""
    rate = float(keras.ops.convert_to_numpy(model.optimizer.learning_rate))
    model.optimizer.learning_rate = 0.0
    n = min(2 * size, len(data.x_train) // size * size)
    few = slice(0, min(len(data.x_validation), 2 * size))
    model.fit(
        data.x_train[:n],
        data.y_train[:n],
        batch_size=size,
        epochs=1,
        shuffle=False,
        verbose=0,
        validation_data=(data.x_validation[few], data.y_validation[few]),
    )
    model.optimizer.learning_rate = rate


def _in_order(array: np.ndarray, starts: np.ndarray, size: int) -> np.ndarray:
    """Copy an epoch's batches in order, (steps * size, ...), because `fit` slices contiguous batches itself.

    Aligned like the data, so XLA reads a batch in place instead of copying it, which would take a quarter of a step at
    batch size 4,096.
    """
    out = aligned((len(starts) * size, *array.shape[1:]), array.dtype)
    for index, start in enumerate(starts):
        out[index * size : (index + 1) * size] = array[start : start + size]
    return out


def _parameters(model: keras.Model) -> Parameters:
    flat = model.get_weights()
    return list(zip(flat[::2], flat[1::2], strict=True))
