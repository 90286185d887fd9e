"""The lines of an experiment: what they may differ in, from what a person asks for, and what follows from their epochs.

Imports nothing heavy: it runs in readers' browsers, too.
"""

from collections.abc import Sequence

import numpy as np

from lib.model.backends.base import Epoch
from lib.model.spec import MAX_RATE, MIN_RATE, Network, Training

MAX_LINES = 16


def rates_between(low: float, high: float, count: int) -> tuple[float, ...]:
    """`count` learning rates evenly spaced on a log scale, to two digits; ends included.

    Rates that are equal to two digits are given once, so there may be fewer.

    Args:
        low: Smallest rate, from `MIN_RATE`.
        high: Largest rate, to `MAX_RATE`.
        count: 2 to `MAX_LINES`.

    Raises:
        ValueError: The ends are equal, not in order or outside the limits, or there are too few or too many rates; the
            text is a sentence for the person.

    >>> rates_between(0.001, 1, 4)
    (0.001, 0.01, 0.1, 1.0)
    """
    if not MIN_RATE <= low <= high <= MAX_RATE:
        raise ValueError(
            f"learning rates: expected {MIN_RATE:g} to {MAX_RATE:g}, got {low:g} to {high:g}; move the range inside"
        )
    if not 2 <= count <= MAX_LINES:
        raise ValueError(f"number of learning rates: expected 2 to {MAX_LINES}, got {count}; choose one in between")
    if low == high:
        raise ValueError(f"learning rates: expected a range, got only {low:g}; move the two ends of the slider apart")
    return tuple(dict.fromkeys(float(f"{rate:.2g}") for rate in np.geomspace(low, high, count)))


def parse_networks(text: str) -> list[Network]:
    """Networks separated by semicolons; `none` is the one without a hidden layer.

    Raises:
        ValueError: A network cannot be read, as in `Network.parse`.

    >>> [network.hidden for network in parse_networks("256, 64; none")]
    [(256, 64), ()]
    """
    parts = map(str.strip, text.split(";"))
    return [Network.parse("" if part.lower() == "none" else part) for part in parts if part]


def batch_sizes_of(sizes: Sequence[int]) -> list[int]:
    """The sizes, smallest first, each once.

    Raises:
        ValueError: There is none; the text is a sentence for the person.
    """
    if not sizes:
        raise ValueError("batch sizes: expected at least one, got none; choose some from the list")
    return sorted(set(sizes))


def networks_of(chosen: Sequence[str], own: str) -> list[Network]:
    """The networks that were chosen, and those that somebody wrote, each once.

    Args:
        chosen: As `Network.parse` reads them.
        own: As `parse_networks` reads them; empty for none.

    Raises:
        ValueError: There is none or more than `MAX_LINES`, or one cannot be read; the text is a sentence.
    """
    networks = list(dict.fromkeys([*map(Network.parse, chosen), *parse_networks(own)]))
    if not networks:
        raise ValueError(
            "hidden layers: expected at least one network, got none; choose one or write its widths, such as 256,"
            " 128, 64"
        )
    if len(networks) > MAX_LINES:
        raise ValueError(f"networks: expected at most {MAX_LINES}, got {len(networks)}; remove some")
    return networks


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
