"""Random search: settings drawn from ranges, and what became of them as rows. Knows nothing of pages."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lib.results import Line
from lib.spec import Network, Training

DIMENSIONS = ("learning_rate", "batch_size", "width", "depth")


@dataclass(frozen=True)
class Space:
    """What is drawn from: rates evenly on a logarithmic scale, the others from their lists. Bergstra and Bengio, 2012: random
    beats a grid where few of the settings matter."""

    rates: tuple[float, float] = (0.01, 1.0)
    batch_sizes: tuple[int, ...] = (32, 128, 512)
    widths: tuple[int, ...] = (32, 64, 128, 256)
    depths: tuple[int, ...] = (1, 2, 3)

    def __post_init__(self) -> None:
        if not 0 < self.rates[0] <= self.rates[1]:
            raise ValueError(
                f"learning rates: expected the smaller first, above 0, got {self.rates[0]:g} to {self.rates[1]:g}; swap them"
            )
        for name in ("batch_sizes", "widths", "depths"):
            if not getattr(self, name):
                raise ValueError(
                    f"{name.replace('_', ' ')}: expected at least one, got none; choose some from the list"
                )


def draw(space: Space, settings: int, epochs: int, seed: int) -> list[Training]:
    """`settings` different trainings, the same for the same seed; a longer draw begins with the shorter one.

    Layers have one width, so that a setting is four numbers. All start from the same seed: what differs is the setting.
    """
    rng = np.random.default_rng(seed)
    low, high = np.log(space.rates)
    found: dict[Training, None] = {}
    while len(found) < settings:
        rate = float(f"{np.exp(rng.uniform(low, high)):.3g}")
        size, width, depth = (int(rng.choice(of)) for of in (space.batch_sizes, space.widths, space.depths))
        found[Training(Network((width,) * depth), rate, size, epochs)] = None
    return list(found)


def search_frame(lines: Sequence[Line]) -> pd.DataFrame:
    """A row a finished setting: its four numbers, epochs, accuracy, and whether it diverged."""
    rows = []
    for index, line in enumerate(lines):
        training = line.item.training
        if line.curve is None:
            continue
        hidden = training.network.hidden
        rows.append(
            {
                "line": index, "learning_rate": training.learning_rate, "batch_size": training.batch_size, "width": max(hidden, default=0),
                "depth": len(hidden), "epochs": len(line.epochs), "accuracy": line.accuracy, "diverged": line.diverged_step is not None,
                "train_s": line.train_s,
            }
        )  # fmt: skip
    columns = ["line", *DIMENSIONS, "epochs", "accuracy", "diverged", "train_s"]
    return pd.DataFrame(rows, columns=columns)
