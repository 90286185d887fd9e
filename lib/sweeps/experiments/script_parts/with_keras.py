"""Training loop of an exported script, in Keras."""

# pyright: reportArgumentType=false, reportOptionalMemberAccess=false, reportOptionalSubscript=false

import os

import numpy as np

from lib.sweeps.experiments.script_parts.common import (
    BATCH_SIZE,
    EPOCHS,
    HIDDEN,
    LEARNING_RATE,
    N_CLASSES,
    N_INPUTS,
    Epochs,
    batch_starts,
)

# jaxlib 0.10.2 can return wrong sums on a CPU (jax#39103).
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_experimental_ynn_fusion_type=-reduce")
os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")  # float32 on a GPU, too
os.environ["KERAS_BACKEND"] = "jax"
import keras


class StepLosses(keras.callbacks.Callback):
    """Recover each step's loss: `fit` reports only the running mean over the epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        self.means = []

    def on_train_batch_end(self, batch, logs=None):
        self.means.append(logs["loss"])
        self.model.stop_training = not np.isfinite(logs["loss"])

    def losses(self) -> np.ndarray:
        totals = np.array(self.means) * np.arange(1, len(self.means) + 1)
        return np.diff(totals, prepend=0)


def train(
    parameters: list,
    x: np.ndarray,
    y: np.ndarray,
    x_validation: np.ndarray,
) -> Epochs:
    """Yield, after each epoch, its steps' losses and the validation logits."""
    hidden = [keras.layers.Dense(width, activation="relu") for width in HIDDEN]
    layers = [keras.Input((N_INPUTS,)), *hidden, keras.layers.Dense(N_CLASSES)]
    model = keras.Sequential(layers)
    model.compile(
        optimizer=keras.optimizers.SGD(LEARNING_RATE),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.set_weights([array for layer in parameters for array in layer])
    steps = StepLosses()
    for epoch in range(EPOCHS):
        starts = batch_starts(len(x), epoch)
        order = np.add.outer(starts, np.arange(BATCH_SIZE)).ravel()  # (images,)
        model.fit(
            x[order],
            y[order],
            batch_size=BATCH_SIZE,
            shuffle=False,
            verbose=0,
            callbacks=[steps],
        )
        yield steps.losses(), model.predict(x_validation, batch_size=1000, verbose=0)
