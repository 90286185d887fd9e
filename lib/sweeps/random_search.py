"""Random search: settings drawn from ranges, and their results as rows. Knows nothing of pages."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from lib.model.backends.base import Epoch
from lib.model.backends.registry import Runtime
from lib.model.spec import Network, Training
from lib.sweeps.storage.records import Curve
from lib.sweeps.storage.store import Store
from lib.sweeps.strategies import AUTO, Picked
from lib.sweeps.sweep import Continued, Finished, Options, ToTrain, updates
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Item, Note, Progress, note_of
from lib.sweeps.workers.queue import Cancel, Request

DIMENSIONS = ("learning_rate", "batch_size", "width", "depth")


@dataclass(frozen=True)
class Space:
    """What settings are drawn from: learning rates evenly on a logarithmic scale, the others from their lists.

    Random beats a grid where few of the settings matter: Bergstra and Bengio, “Random search for hyper-parameter
    optimization”, 2012.

    Raises:
        ValueError: The rates are not in order and above 0, or a list is empty.
    """

    rates: tuple[float, float] = (0.01, 1.0)
    batch_sizes: tuple[int, ...] = (32, 128, 512)
    widths: tuple[int, ...] = (32, 64, 128, 256)
    depths: tuple[int, ...] = (1, 2, 3)

    def __post_init__(self) -> None:
        if not 0 < self.rates[0] <= self.rates[1]:
            raise ValueError(
                f"learning rates: expected the smaller first, above 0, got {self.rates[0]:g} to {self.rates[1]:g}; swap"
                " them"
            )
        for name in ("batch_sizes", "widths", "depths"):
            if not getattr(self, name):
                raise ValueError(
                    f"{name.replace('_', ' ')}: expected at least one, got none; choose some from the list"
                )

    @property
    def size(self) -> int:
        """How many different settings can be drawn; learning rates are rounded to three digits."""
        rates = _place(self.rates[1]) - _place(self.rates[0]) + 1
        return rates * len(set(self.batch_sizes)) * len(set(self.widths)) * len(set(self.depths))


def _place(rate: float) -> int:
    """Where a rate stands among all that have three digits, in order."""
    digits, exponent = f"{rate:.2e}".split("e")
    return 900 * int(exponent) + round(100 * float(digits))


def draw(space: Space, settings: int, epochs: int, seed: int) -> list[Training]:
    """Different trainings with random settings, the same for the same seed; a longer draw begins with the shorter one.

    All layers have one width, so that a setting is four numbers. All start from the same seed: only the setting
    differs.

    Args:
        space: What is drawn from.
        settings: How many.
        epochs: Of each training.
        seed: Of the draw, not of the trainings.

    Raises:
        ValueError: There are not so many different settings in the space.
    """
    if settings > space.size:
        raise ValueError(
            f"settings: expected at most {space.size:,}, for these ranges hold no more different ones, got"
            f" {settings:,}; widen a range"
        )
    rng = np.random.default_rng(seed)
    low, high = np.log(space.rates)
    found: dict[Training, None] = {}
    while len(found) < settings:
        rate = float(f"{np.exp(rng.uniform(low, high)):.2e}")
        size, width, depth = (int(rng.choice(of)) for of in (space.batch_sizes, space.widths, space.depths))
        found[Training(Network((width,) * depth), rate, size, epochs)] = None
    return list(found)


def search(
    trainings: Sequence[Training],
    runtime: Runtime,
    engine: Engine,
    store: Store,
    cancel: Cancel,
    request: Request,
    strategy: str | None = None,
) -> Iterator[Finished | Picked | Note]:
    """Train the settings; without a strategy only find those that are stored.

    Raises what `lib.sweeps.sweep.updates` raises.

    Args:
        trainings: At least one.
        runtime: What trains them.
        engine: Its workers train.
        store: Where curves are looked up and stored.
        cancel: Ends it early.
        request: For whom, and how urgently, turns are wanted.
        strategy: Key of a strategy, or `auto`; None: nothing is trained.

    Yields:
        `Finished` for each setting, `Picked`, and notes that say how far it is.
    """
    items, options = [Item(training, runtime) for training in trainings], Options(strategy or AUTO)
    total = sum(training.epochs for training in trainings)
    done, began = 0, time.monotonic()
    for update in updates(items, engine, store, cancel, options, request):
        if isinstance(update, Finished | Picked):
            yield update
        if isinstance(update, Continued) or (isinstance(update, Finished) and update.cached):
            done += len(update.curve.epochs)
        elif isinstance(update, Progress) and isinstance(update.event, Epoch):
            done += 1
            yield Note(_how_far(done, total, time.monotonic() - began))
        elif isinstance(update, ToTrain):
            if strategy is None:
                return
            began = time.monotonic()
        elif not isinstance(update, Finished | Picked) and (note := note_of(update)) is not None:  # type: ignore[arg-type]
            yield note


cached = partial(search, strategy=None)


def _how_far(done: int, total: int, spent_s: float) -> str:
    """Progress in epochs, with the seconds left after the first second."""
    left_s = spent_s / done * (total - done)
    return f"{done:,} of {total:,} epochs" + (f", about {left_s:.0f} s left" if spent_s > 1 and done < total else "")


def search_frame(found: Mapping[Training, Curve]) -> pd.DataFrame:
    """A row for each finished setting: its four numbers, epochs, validation accuracy, whether it diverged, and seconds.

    Columns: `line` (from 0, in the order of `found`), those of `DIMENSIONS`, `epochs` (as many as were trained),
    `accuracy`, `diverged`, `train_s`, and `chance`, the accuracy up to which a network did not learn.
    """
    rows = []
    for training, curve in found.items():
        last, hidden = curve.epochs[-1], training.network.hidden
        rows.append(
            {
                "line": len(rows),
                "learning_rate": training.learning_rate,
                "batch_size": training.batch_size,
                "width": max(hidden, default=0),
                "depth": len(hidden),
                "epochs": len(curve.epochs),
                "accuracy": last.validation_accuracy,
                "diverged": last.diverged_step is not None,
                "train_s": sum(epoch.train_s for epoch in curve.epochs),
                "chance": training.data.chance,
            }
        )
    columns = ["line", *DIMENSIONS, "epochs", "accuracy", "diverged", "train_s", "chance"]
    return pd.DataFrame(rows, columns=columns)


def losses_frame(found: Mapping[Training, Curve], points: int = 60) -> pd.DataFrame:
    """Losses of all settings at common places: a row for each place, with `model`, `step` and `loss`.

    Each loss is the mean over its part of the training, or that of a neighbouring step where it has none; one that is
    not finite stays so, and what was not trained is missing.

    Args:
        found: Curves by training.
        points: Rows of the training with the most epochs; a shorter one has its share of them.

    Returns:
        `model` is the place in `found`, from 0; `step` the middle of the part, in epochs.
    """
    longest = max((training.epochs for training in found), default=1)
    parts = []
    for number, curve in enumerate(found.values()):
        n_epochs = len(curve.epochs)
        n_points = max(1, round(points * n_epochs / longest))
        edges = np.linspace(0, len(curve.losses), n_points + 1).round().astype(int)
        # A part without a step has the loss of the next one, or of the last.
        sums = np.add.reduceat(curve.losses.astype(float), np.minimum(edges[:-1], len(curve.losses) - 1))
        counts = np.maximum(np.diff(edges), 1)
        steps = (np.arange(n_points) + 0.5) * longest / points
        parts.append(pd.DataFrame({"model": number, "step": steps, "loss": sums / counts}))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["model", "step", "loss"])
