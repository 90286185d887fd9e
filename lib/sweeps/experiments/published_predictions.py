"""How far predictions are from what the articles published: set from fewer than a third of the figures, shown for all.

What is judged is what the pages and `python -m lib.cli.advise` say: the devices of
`lib.sweeps.experiments.known_devices`.
"""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lib.sweeps.experiments.known_devices import known_devices
from lib.sweeps.experiments.published_figures import published_figures

# Published, and nothing that a model of a training step speaks of.
NOT_PREDICTED: Mapping[str, str] = {
    "five learning rates, 4 times faster in five processes": "it is about processes, not about a step",
    "five learning rates, 6 times faster by vmap": "it is the 28 s and the 5 s above, as a ratio",
    "2.7 s of CUDA's calls in an epoch, and each call's share": "they are parts of the 6.5 s above, and overlap",
    "half the time of large products is transfer, on an A100": "the article does not say how large they are",
    "about 210 μs a step on an L4": "an estimate, which the same article's 63 s contradict",
}


@dataclass(frozen=True)
class Row:
    """A published figure beside what is predicted for it; `error` is relative, and above 0 where predicted too long."""

    name: str
    question: str
    published_s: float
    predicted_s: float
    low_s: float
    high_s: float
    used: bool

    @property
    def error(self) -> float:
        """Predicted over published, less one."""
        return self.predicted_s / self.published_s - 1

    @property
    def covered(self) -> bool:
        """Whether the published figure lies in the interval."""
        return self.low_s <= self.published_s <= self.high_s


@dataclass(frozen=True)
class Accuracy:
    """Of the figures that were not used: errors without sign, and shares; None where there is nothing to judge."""

    n: int
    median_error: float | None
    p90_error: float | None
    winner_share: float | None
    covered_share: float | None


def published_rows() -> list[Row]:
    """Every figure with its prediction, the worst errors first."""
    devices, figures, rows = known_devices(), published_figures(), []
    setting = {one.library for one in figures if one.sets}
    for figure in figures:
        # A library none of whose figures set the model is predicted by the figures of the file alone.
        key = f"{figure.machine}/{figure.library}" if figure.library in setting else figure.machine
        device = devices.get(key, devices[figure.machine])
        found = figure.predicted(device)
        used = figure.sets or figure.widens
        ends = (found.step_s, found.low_s, found.high_s)
        rows.append(Row(figure.name, figure.question, figure.published_s, *ends, used))
    return sorted(rows, key=lambda row: abs(row.error), reverse=True)


def accuracy(rows: Sequence[Row]) -> Accuracy:
    """How good the predictions are of figures that were not used.

    A pair shares its question, and its figures differ. Where both are predicted alike, no winner is named: wrong.
    """
    unseen = [row for row in rows if not row.used]
    pairs = [
        (one, other)
        for one, other in itertools.combinations(unseen, 2)
        if one.question == other.question and one.published_s != other.published_s
    ]
    right = [(a.predicted_s - b.predicted_s) * (a.published_s - b.published_s) > 0 for a, b in pairs]
    errors = [abs(row.error) for row in unseen]
    return Accuracy(
        len(unseen),
        statistics.median(errors) if errors else None,
        float(np.percentile(errors, 90)) if errors else None,
        statistics.fmean(right) if right else None,
        statistics.fmean(row.covered for row in unseen) if unseen else None,
    )
