"""What a training came to, wherever it was made: what follows from its epochs.

Imports nothing heavy: it runs in readers' browsers, too.
"""

from collections.abc import Sequence

import numpy as np

from lib.model.backends.base import Epoch
from lib.model.spec import Training


def epoch_s(epochs: Sequence[Epoch]) -> np.ndarray:
    """Seconds of training in each epoch, (epochs,), without the first, still warming up, if there are others."""
    seconds = np.array([epoch.train_s for epoch in epochs])
    return seconds[1:] if len(seconds) > 1 else seconds


class TrainedEpochs:
    """A training and its epochs so far; whoever holds them gives `training`, `epochs` and `train_s`, its seconds."""

    training: Training
    epochs: list[Epoch]
    train_s: float

    @property
    def diverged_step(self) -> int | None:
        """Number of the step, from 1 over all epochs, whose loss was not finite; None where there is none."""
        steps = 0
        for epoch in self.epochs:
            if epoch.diverged_step is not None:
                return steps + epoch.diverged_step + 1
            steps += epoch.steps
        return None

    @property
    def accuracy(self) -> float | None:
        """Validation accuracy, 0 to 1, after the last epoch so far; None before the first."""
        return self.epochs[-1].validation_accuracy if self.epochs else None

    @property
    def epoch_s(self) -> np.ndarray:
        """Seconds of training in each epoch, (epochs,), without the first, still warming up, if there are others."""
        return epoch_s(self.epochs)

    def seconds_to(self, target: float) -> float | None:
        """Seconds of training and evaluation until the accuracy first reached the target; None if it did not.

        The accuracy is evaluated only at the end of an epoch, so this is an upper bound. Evaluation counts, model
        creation does not (MLPerf's rule).
        """
        spent_s = 0.0
        for epoch in self.epochs:
            spent_s += epoch.train_s + epoch.evaluation_s
            if epoch.validation_accuracy >= target:
                return spent_s
        return None
