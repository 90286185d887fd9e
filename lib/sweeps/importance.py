"""How much each setting of a random search mattered for its accuracy, and how sure that is. Numbers only, no charts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lib.spec import CHANCE_ACCURACY

ACCURACY = "accuracy"
MIN_SETTINGS = 16  # of fewer, each is left out of too few trees to be judged by them
N_TREES, N_SHUFFLES, N_RESAMPLES = 200, 20, 1000
EXPLAINS = 0.25  # out-of-bag R² that a forest must surely have before what it leans on means anything
SETTINGS_PER_DIMENSION = 10  # Loeppky, Sacks and Welch, “Choosing the sample size of a computer experiment”, 2009


@dataclass(frozen=True)
class Dimension:
    """A setting that is searched: the column of its values, and its range.

    Args:
        column: In the frame of settings.
        low: Lower end of the range.
        high: Upper end of the range.
        log: Whether its axis is logarithmic.
        whole: Whether its values are whole numbers.
        label: What it is called; empty: its column, with spaces.

    Raises:
        ValueError: Not `low < high`, or a logarithmic axis that does not begin above 0.

    >>> Dimension("depth", 1, 3, whole=True).height(np.array([1, 2, 3])).tolist()
    [0.0, 0.5, 1.0]
    """

    column: str
    low: float
    high: float
    log: bool = False
    whole: bool = False
    label: str = ""

    def __post_init__(self) -> None:
        if not self.low < self.high or (self.log and self.low <= 0):
            least = "0 < low < high, because the axis is logarithmic" if self.log else "low < high"
            raise ValueError(f"{self.column}: expected {least}, got {self.low:g} to {self.high:g}; widen the range")

    @property
    def name(self) -> str:
        """What it is called: its label, else its column with spaces."""
        return self.label or self.column.replace("_", " ")

    def height(self, values: np.ndarray) -> np.ndarray:
        """Where values stand on the axis, clipped to it: 0 at its foot to 1 at its top, float of the same shape."""
        along = np.log if self.log else np.asarray
        low, high = along(self.low), along(self.high)
        return np.clip((along(np.asarray(values, dtype=float)) - low) / (high - low), 0.0, 1.0)

    def text(self, value: float) -> str:
        """A value as it is shown: whole, or with two digits."""
        return f"{value:,.0f}" if self.whole else f"{value:.2g}"


def settled(frame: pd.DataFrame) -> pd.DataFrame:
    """The settings whose outcome is known, with a column `error`: 1 − accuracy.

    Args:
        frame: A row for each setting, with `accuracy` (0 to 1, missing while unknown) and `diverged`.

    Returns:
        A copy of the rows that diverged or have an accuracy. `stuck` says which of the latter did not learn, by the
        column `chance` where there is one. `error` is at least 1e-4, and 0.9, that of chance, for
        what diverged or did not learn.
    """
    known = frame.loc[frame["diverged"].astype(bool) | frame[ACCURACY].notna()].copy()
    known["diverged"] = known["diverged"].astype(bool)
    accuracy = known[ACCURACY].astype(float)
    known["stuck"] = ~known["diverged"] & (accuracy <= known.get("chance", CHANCE_ACCURACY))
    known["error"] = np.where(known["diverged"] | known["stuck"], 0.9, np.maximum(1 - accuracy, 1e-4))
    return known


def importance(frame: pd.DataFrame, dimensions: Sequence[Dimension]) -> pd.DataFrame:
    """How much worse a random forest predicts the error of a setting once a dimension is shuffled.

    The forest is fitted to log10(1 − accuracy), at chance for what diverged or did not learn. Importance is the R² lost
    when the dimension is shuffled among the settings, each predicted only by the trees that have not seen it (Breiman,
    “Random forests”, 2001): on the rows that a forest was fitted to, noise would seem to matter as well. Whether it
    means anything: `tells`.

    Args:
        frame: A row for each setting: see `settled`, and a column for each dimension.
        dimensions: Those that were searched.

    Returns:
        A row for each dimension, the most important first: `dimension` (its name), `importance`, `low` and `high`, the
        95 % interval over resamples of the settings, the forest staying as it is. Empty with fewer than `MIN_SETTINGS`
        settled rows, or no dimension. `attrs["settings"]` is the number of settled rows; where there are rows,
        `attrs["out_of_bag_r2"]` is the R² that is there to lose, and `attrs["r2_interval"]` its interval over the same
        resamples.
    """
    known = settled(frame)
    found = pd.DataFrame(columns=["dimension", "importance", "low", "high"])
    found.attrs["settings"] = len(known)
    if len(known) < MIN_SETTINGS or not dimensions:
        return found
    inputs = np.stack(
        [one.height(known[one.column].to_numpy()) for one in dimensions], axis=1
    )  # (settings, dimensions)
    target = np.log10(known["error"].to_numpy(dtype=float))
    squares, shuffled = _out_of_bag_squares(inputs, target)
    lost = shuffled - squares  # (dimensions, settings)
    rng = np.random.default_rng(1)
    drawn = rng.integers(0, len(target), (N_RESAMPLES, len(target)))
    variance = np.maximum(target[drawn].var(axis=1), 1e-12)
    low, high = np.percentile(lost[:, drawn].mean(axis=2) / variance, [2.5, 97.5], axis=1)
    total = max(target.var(), 1e-12)
    found = pd.DataFrame(
        {
            "dimension": [one.name for one in dimensions],
            "importance": lost.mean(axis=1) / total,
            "low": low,
            "high": high,
        }
    ).sort_values("importance", ascending=False, ignore_index=True)
    varies = target.var() > 0
    r2_low, r2_high = np.percentile(1 - squares[drawn].mean(axis=1) / variance, [2.5, 97.5]) if varies else (0.0, 0.0)
    found.attrs["out_of_bag_r2"] = float(1 - squares.mean() / total) if varies else 0.0
    found.attrs["r2_interval"] = (float(r2_low), float(r2_high))
    found.attrs["settings"] = len(known)
    return found


def tells(found: pd.DataFrame) -> bool:
    """Whether what `importance` found means anything.

    The forest must surely explain enough (the lower end of the interval of R² is above `EXPLAINS`), and the first
    dimension must matter more than by chance (the lower end of its interval is above 0).
    """
    return bool(len(found)) and found.attrs["r2_interval"][0] > EXPLAINS and bool(found["low"].iloc[0] > 0)


def settings_needed(found: pd.DataFrame, n_dimensions: int) -> int | None:
    """About how many settings it would take to tell what mattered, where `tells` says that these do not.

    `SETTINGS_PER_DIMENSION` a dimension at least. Beyond that: where R² is above `EXPLAINS`, as many as bring the lower
    end of its interval there, which narrows with the root of their number; where only the interval reaches above it,
    twice as many as there are.

    Args:
        found: What `importance` returned.
        n_dimensions: How many dimensions were searched.

    Returns:
        A number of settings, all in all; None where no number would do, because what is searched explains too little.
    """
    least, n = SETTINGS_PER_DIMENSION * n_dimensions, found.attrs["settings"]
    if found.empty:
        return least
    r2, (low, high) = found.attrs["out_of_bag_r2"], found.attrs["r2_interval"]
    if high <= EXPLAINS and n >= least:
        return None
    enough = n * ((r2 - low) / (r2 - EXPLAINS)) ** 2 if r2 > EXPLAINS else 2 * n if high > EXPLAINS else least
    return int(max(least, 8 * np.ceil(min(enough, 4 * n) / 8), n + 8))


def _out_of_bag_squares(inputs: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Squared errors of a forest's out-of-bag predictions, (settings,), and with each dimension shuffled.

    The second is (dimensions, settings), the mean over `N_SHUFFLES` shuffles. `inputs` is (settings, dimensions),
    `target` (settings,).
    """
    from sklearn.ensemble import RandomForestRegressor  # 0.7 s, which the page's first chart need not wait for

    n, n_dimensions = inputs.shape
    rng = np.random.default_rng(0)
    copies = np.repeat(
        inputs[None], 1 + n_dimensions * N_SHUFFLES, axis=0
    )  # (as it is, then each shuffle; settings, dimensions)
    for copy, column in zip(copies[1:], np.repeat(np.arange(n_dimensions), N_SHUFFLES), strict=True):
        copy[:, column] = rng.permutation(copy[:, column])
    forest = RandomForestRegressor(N_TREES, min_samples_leaf=2, random_state=0).fit(inputs, target)
    total, count = np.zeros(copies.shape[:2]), np.zeros(n)
    for tree, seen in zip(forest.estimators_, forest.estimators_samples_, strict=True):
        left_out = np.bincount(seen, minlength=n) == 0
        total[:, left_out] += tree.predict(copies[:, left_out].reshape(-1, n_dimensions)).reshape(len(copies), -1)
        count += left_out
    squares = (total / np.maximum(count, 1) - target) ** 2  # (copies, settings)
    return squares[0], squares[1:].reshape(n_dimensions, N_SHUFFLES, n).mean(axis=1)
