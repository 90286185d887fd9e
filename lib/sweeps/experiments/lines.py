"""The lines of an experiment: parsing a reader's choices, and figures derived from the trained epochs.

Also runs in readers' browsers, so it imports nothing heavy.
"""

from collections.abc import Sequence

import numpy as np

from lib.model.backends.base import Epoch
from lib.model.spec import MAX_RATE, MIN_RATE, Network, Training

MAX_LINES = 16


def rates_between(low: float, high: float, count: int) -> tuple[float, ...]:
    """Return `count` learning rates evenly spaced on a log scale, ends included, rounded to two digits.

    Rates that round to the same value occur once, so there may be fewer.

    Args:
        low: Smallest rate, at least `MIN_RATE`.
        high: Largest rate, at most `MAX_RATE`.
        count: 2 to `MAX_LINES`.

    Raises:
        ValueError: The ends are equal, out of order or outside the limits, or there are too few or too many rates; the
            message is a sentence to show.

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
    """Parse networks separated by semicolons; `none` means no hidden layer.

    Raises:
        ValueError: A network cannot be read, as in `Network.parse`.

    >>> [network.hidden for network in parse_networks("256, 64; none")]
    [(256, 64), ()]
    """
    parts = map(str.strip, text.split(";"))
    return [Network.parse("" if part.lower() == "none" else part) for part in parts if part]


def batch_sizes_of(sizes: Sequence[int]) -> list[int]:
    """Return the distinct sizes in ascending order.

    Raises:
        ValueError: There is none; the message is a sentence to show.
    """
    if not sizes:
        raise ValueError("batch sizes: expected at least one, got none; choose some from the list")
    return sorted(set(sizes))


def networks_of(chosen: Sequence[str], own: str) -> list[Network]:
    """Return the distinct networks that a reader chose or typed.

    Args:
        chosen: In the format of `Network.parse`.
        own: In the format of `parse_networks`; may be empty.

    Raises:
        ValueError: There is none, there are more than `MAX_LINES`, or one cannot be read; the message is a sentence.
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
    """Return training seconds per epoch, (epochs,), without the first one, a warm-up, if there are others."""
    seconds = np.array([epoch.train_s for epoch in epochs])
    return seconds[1:] if len(seconds) > 1 else seconds


class TrainedEpochs:
    """Mixin for a training and its epochs so far. Subclasses provide the attributes; `train_s` is its total seconds."""

    training: Training
    epochs: list[Epoch]
    train_s: float

    @property
    def diverged_step(self) -> int | None:
        """First step with a non-finite loss, counted from 1 over all epochs; None if all are finite."""
        steps = 0
        for epoch in self.epochs:
            if epoch.diverged_step is not None:
                return steps + epoch.diverged_step + 1
            steps += epoch.steps
        return None

    @property
    def accuracy(self) -> float | None:
        """Validation accuracy, 0 to 1, after the latest epoch; None before the first."""
        return self.epochs[-1].validation_accuracy if self.epochs else None

    @property
    def epoch_s(self) -> np.ndarray:
        return epoch_s(self.epochs)

    def seconds_to(self, target: float) -> float | None:
        """Return seconds of training and evaluation until the accuracy first reached the target; None if it did not.

        This is an upper bound, since accuracy is evaluated only after each epoch. Evaluation counts, model creation
        does not (MLPerf's rule).
        """
        spent_s = 0.0
        for epoch in self.epochs:
            spent_s += epoch.train_s + epoch.evaluation_s
            if epoch.validation_accuracy >= target:
                return spent_s
        return None
