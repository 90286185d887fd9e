"""The article's sweep in a fresh process: `python -m benchmarks.article_sweep sequential|pool` prints seconds as JSON.

It is their code: five rates, ten epochs each, Keras on TensorFlow, `fit` on all 60,000 images with
`validation_split=0.2`, sequentially or by `multiprocessing.Pool(5)`. Loading the images and importing Keras do not
count; starting the pool does.
"""

# pyright: reportArgumentType=false
# Keras annotates `verbose` as `str` only.

import json
import multiprocessing
import sys
import time

import numpy as np

RATES = (0.001, 0.01, 0.1, 1.0, 10.0)
EPOCHS, BATCH_SIZE = 10, 32


def images() -> tuple[np.ndarray, np.ndarray]:
    from lib.model.data.mnist import load

    data = load()
    return np.concatenate([data.x_train, data.x_validation]), np.concatenate([data.y_train, data.y_validation])


def train_one(arguments: tuple[float, np.ndarray, np.ndarray]) -> tuple[float, float]:
    import keras  # imported by `main` before the fork, as in the article

    rate, x, y = arguments
    model = keras.Sequential([keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10, activation="softmax")])
    model.compile(
        optimizer=keras.optimizers.SGD(learning_rate=rate), loss="sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    history = model.fit(x, y, epochs=EPOCHS, batch_size=BATCH_SIZE, validation_split=0.2, verbose=0).history
    return rate, history["val_accuracy"][-1]


def main() -> None:
    import keras  # noqa: F401

    x, y = images()
    work = [(rate, x, y) for rate in RATES]
    began = time.perf_counter()
    if sys.argv[1] == "pool":
        with multiprocessing.Pool(5) as pool:
            accuracies = pool.map(train_one, work)
    else:
        accuracies = [train_one(one) for one in work]
    print(json.dumps({"wall_s": time.perf_counter() - began, "accuracies": dict(accuracies)}), flush=True)


if __name__ == "__main__":
    main()
