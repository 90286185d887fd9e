"""scikit-learn's MLPClassifier with all of its defaults switched off that would be another mathematics.

No momentum, no weight decay, no shuffling: the images come in the order of the epoch. Its parameters are public, so
they are set to where every training here starts.
"""

# pyright: reportArgumentType=false
# scikit-learn annotates `batch_size` by its default, a text.

from collections.abc import Iterator

import numpy as np
from sklearn.neural_network import MLPClassifier

from benchmarks.peer.loop import by_fit
from lib.model.backends.base import Event, Parameters, initial_parameters
from lib.model.data.mnist import Data
from lib.model.spec import N_CLASSES, N_PIXELS, Training


def train(training: Training, data: Data) -> Iterator[Event]:
    model = MLPClassifier(
        training.network.hidden,
        activation="relu",
        solver="sgd",
        alpha=0,
        batch_size=training.batch_size,
        learning_rate="constant",
        learning_rate_init=training.learning_rate,
        momentum=0,
        nesterovs_momentum=False,
        shuffle=False,
    )
    # One step on nothing makes the arrays, and tells the classes.
    size = training.batch_size
    nothing = np.zeros((size, N_PIXELS), np.float32), np.zeros(size, np.int32)
    model.partial_fit(*nothing, classes=np.arange(N_CLASSES))

    def restart() -> None:
        for layer, arrays in enumerate(initial_parameters(training.network, training.seed)):
            for mine, start in zip((model.coefs_[layer], model.intercepts_[layer]), arrays, strict=True):
                mine[:] = start

    def fit(x: np.ndarray, y: np.ndarray, epochs: int) -> Iterator[float]:
        for _ in range(epochs):
            yield float(model.partial_fit(x, y).loss_)

    def parameters() -> Parameters:
        return [(w.copy(), b.copy()) for w, b in zip(model.coefs_, model.intercepts_, strict=True)]

    restart()
    yield from by_fit(training, data, fit, restart, parameters)
