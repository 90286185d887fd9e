"""The articles' own loop, in a fresh process: `python -m benchmarks.article` prints one JSON object per training.

It is their code: a Sequential of Dense layers, SGD, and `fit` on all 60,000 images with `validation_split=0.2`. Only
one epoch of each training is measured. A model's first `fit` traces and compiles it; it is timed separately, on two
batches, because a whole run pays for it once, not once per epoch.
"""

# pyright: reportArgumentType=false
# Keras annotates `verbose` as `str` only.

import json
import sys
import time

import numpy as np

BATCH_1_FRACTION = 5  # an epoch at batch size 1 takes a minute, so only a fifth is measured
EXPERIMENTS = {
    "learning-rate": [((128,), rate, 32) for rate in (0.001, 0.01, 0.1, 1.0)],
    "batch-size": [((128,), 0.01, size) for size in (1, 32, 256)],
    "depth": [(hidden, 0.1, 32) for hidden in ((128,), (256,), (128, 64), (256, 128, 64))],
}


def main() -> None:
    import keras

    from lib.model.data.mnist import load

    data = load()
    x_train = np.concatenate([data.x_train, data.x_validation])  # (60000, 784)
    y_train = np.concatenate([data.y_train, data.y_validation])  # (60000,)

    def fit(hidden: tuple[int, ...], rate: float, batch_size: int, n: int) -> tuple[float, float, float]:
        """Seconds of building and of a tiny first `fit`; seconds of one epoch on n images; its accuracy."""
        began = time.perf_counter()
        layers = [keras.layers.Dense(width, activation="relu") for width in hidden]
        model = keras.Sequential([*layers, keras.layers.Dense(10, activation="softmax")])
        model.compile(
            optimizer=keras.optimizers.SGD(learning_rate=rate),
            loss="sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )
        few = 10 * batch_size  # two batches of validation
        model.fit(x_train[:few], y_train[:few], batch_size=batch_size, epochs=1, validation_split=0.2, verbose=0)
        middle = time.perf_counter()
        history = model.fit(
            x_train[:n], y_train[:n], batch_size=batch_size, epochs=1, validation_split=0.2, verbose=0
        ).history
        return middle - began, time.perf_counter() - middle, history["val_accuracy"][-1]

    fit((128,), 0.01, 32, 320)  # warms up the process, which counts for no training
    for name in sys.argv[1:] or EXPERIMENTS:
        for hidden, rate, batch_size in EXPERIMENTS[name]:
            fraction = BATCH_1_FRACTION if batch_size == 1 else 1
            first_s, epoch_s, accuracy = fit(hidden, rate, batch_size, len(x_train) // fraction)
            facts = {
                "experiment": name,
                "hidden": hidden,
                "learning_rate": rate,
                "batch_size": batch_size,
                "first_s": first_s,
                "epoch_s": epoch_s * fraction,
                "fraction": 1 / fraction,
                "accuracy": accuracy,
            }
            print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
