"""The random search section: its search space, its training, and its drawing while results arrive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from lib.formatting import counted, percent
from lib.model.backends.registry import DEFAULT, Runtime, device_count
from lib.model.data.prepared import Prepared
from lib.model.spec import BATCH_SIZES, RATE_STEPS, Training
from lib.once import once
from lib.sweeps.experiments import mnist_training as random_search
from lib.sweeps.experiments.exported_script import takeaway_of_search
from lib.sweeps.experiments.mnist_training import not_used, on, that_fit
from lib.sweeps.storage.records import Curve
from lib.sweeps.sweep import AUTO, POOLED, QUICKEST, STRATEGIES, Finished, Picked, backends_for, quickest_runtime
from lib.sweeps.workers.messages import State
from lib.ui import layout
from lib.ui.controls import Controls, backend, dropdown, number, several, slider, span
from lib.ui.lab import Asked, Drawing, Shown, Work
from lib.ui.own_data import OwnData
from lib.ui.views.chart import ERROR_DOMAIN, ERRORS, Chart, alt, nice_above, ordered_palette, pd, row_color, styled

COUNTS = (16, 32, 64, 128, 256, 512, 1024)
EPOCHS = (1, 2, 3, 4, 6, 8, 16)
WIDTHS = (16, 32, 64, 128, 256, 512)
DEPTHS = (1, 2, 3, 4)
MAX_SEED = 9999


def _strategies() -> dict[str, str]:
    found = {"the quickest expected": AUTO} | {
        s.label: key for key, s in STRATEGIES.items() if key != "cluster" and {DEFAULT, QUICKEST} & {*backends_for(s)}
    }
    alone = device_count("cpu") < 2
    return {label: key for label, key in found.items() if not (alone and key in ("sharded", *POOLED))}


class SearchControls(Controls):
    AGAIN = "Search", "Train the settings that are not saved yet"
    EXPORTS = True
    count = slider("Settings", 64, COUNTS)
    epochs = slider("Epochs", 3, EPOCHS)
    rates = span("Learning rates", random_search.Space().rates, RATE_STEPS)
    sizes = several("Batch sizes", random_search.Space().batch_sizes, BATCH_SIZES)
    widths = several("Neurons per layer", random_search.Space().widths, WIDTHS)
    depths = several("Hidden layers", random_search.Space().depths, DEPTHS)
    seed = number("Drawn with seed", 0, 0, MAX_SEED, whole=True)
    backend = backend(lambda: quickest_runtime().backend)
    strategy = dropdown("Strategy", AUTO, _strategies, full_width=True)


def trainings_of(values: dict, own: Prepared | None = None) -> list[Training]:
    """The settings drawn for these control values; equal values give equal settings.

    On own data, batch sizes larger than the data are dropped.

    Raises:
        ValueError: The values cannot be used; the message is a sentence for the viewer.
    """
    space = random_search.Space(
        (values["rates"][0], values["rates"][1]),
        that_fit(own, values["sizes"]),
        tuple(values["widths"]),
        tuple(values["depths"]),
    )
    drawn = random_search.draw(space, values["count"], values["epochs"], values["seed"])
    return [on(own, training) for training in drawn]


def search(own: OwnData) -> tuple[Callable[[SearchControls], Asked], Callable[[Shown], Drawing]]:
    """Build the section's job and its drawing.

    A page shows cached settings until “Search” is pressed; a script always trains.
    """

    def runtimes(at: SearchControls) -> tuple[Runtime, str]:
        runtime, data = Runtime(at.backend), own.data
        on_what = "" if data is None else f"On {data.about.name}: {data.about.n_train:,} training rows."
        for left_out, reason, _ in not_used(data, [runtime]):
            runtime = Runtime(DEFAULT)
            on_what += f" Trained by {runtime.label}, not by {left_out.label}: {reason}."
        return runtime, on_what

    def ask(at: SearchControls) -> Asked:
        trainings, (runtime, _), section = trainings_of(at.values, own.data), runtimes(at), own.page.sections["search"]

        def make(again: bool) -> tuple[tuple, Work]:
            if again or not section.stage.streams:
                return (True,), partial(random_search.search, trainings, runtime, strategy=at.strategy)
            return (False,), partial(random_search.search, trainings, runtime)

        return Asked((at, own.data), make)

    def draw(shown: Shown) -> Drawing:
        at, stage, data = shown.at, shown.section.stage, own.data
        trainings, (runtime, on_what) = trainings_of(at.values, data), runtimes(at)
        done = _done(shown.now.items, trainings)
        if stage.menu is not None:
            stage.menu.now = partial(
                takeaway_of_search, done, stage.engine.known_facts() if data is None else data.facts
            )
        values = at.values | {"sizes": sorted({training.batch_size for training in trainings}), "runtime": runtime}
        rows, dimensions = random_search.search_frame(done), _dimensions(values)
        sentence = search_sentence(rows, dimensions) if shown.now.over else ""
        lines = layout.framed(
            "each line is a setting; colour shows its accuracy", parallel_coordinates(rows, dimensions)
        )
        line = _state_line(shown, len(done), len(trainings), runtime)
        return Drawing(layout.quiet(on_what) + layout.said(sentence) + lines + line, sentence)

    return ask, draw


def _state_line(shown: Shown, n_done: int, n_wanted: int, runtime: Runtime) -> str:
    now, (trains,), complete = shown.now, shown.known, n_done == n_wanted
    picked, state = next((item for item in now.items if isinstance(item, Picked)), None), now.state
    if not trains and state is not State.FAILED:
        state = State.SAVED if complete else State.NOT_RUNNING
    press = "" if trains or complete else ": press “Search”"
    words = now.note or f"{n_done:,} of {n_wanted:,} settings{press}"
    line = layout.state_line(state, n_done, n_wanted, words, now.problem)
    return line + (layout.quiet(f"{picked.why}. {runtime.label}.") if picked is not None else "")


def _dimensions(values: dict) -> list[Dimension]:
    found = [
        ("learning_rate", "learning rate", list(values["rates"]), True, False),
        ("batch_size", "batch size", values["sizes"], True, True),
        ("width", "neurons", values["widths"], True, True),
        ("depth", "hidden layers", values["depths"], False, True),
    ]
    return [
        Dimension(column, name, min(options), max(options), log, whole)
        for column, name, options, log, whole in found
        if min(options) < max(options)
    ]


def _done(items: Sequence[object], trainings: Sequence[Training]) -> dict[Training, Curve]:
    finished = {item.item.training: item.curve for item in items if isinstance(item, Finished)}
    return {training: finished[training] for training in trainings if training in finished}


ACCURACY = "accuracy"
_GREY = "#8a8f98"
_BELOW = -0.07  # lines of diverged settings end here, below the accuracy axis
_PAPER = "var(--background, Canvas)"  # the page's background, for halos that set text off from lines in light and dark


@dataclass(frozen=True)
class Dimension:
    """A searched setting and its range.

    >>> Dimension("depth", "hidden layers", 1, 3, whole=True).height(np.array([1, 2, 3])).tolist()
    [0.0, 0.5, 1.0]
    """

    column: str  # in the frame of settings
    name: str
    low: float  # below `high`, and above 0 if the axis is logarithmic
    high: float
    log: bool = False
    whole: bool = False

    def height(self, values: np.ndarray) -> np.ndarray:
        """Positions on the axis, clipped to it: 0 at its foot to 1 at its top, float of the same shape."""
        along = np.log if self.log else np.asarray
        low, high = along(self.low), along(self.high)
        return np.clip((along(np.asarray(values, dtype=float)) - low) / (high - low), 0.0, 1.0)

    def text(self, value: float) -> str:
        return f"{value:,.0f}" if self.whole else f"{value:.2g}"


def parallel_coordinates(frame: pd.DataFrame, dimensions: Sequence[Dimension]) -> Chart:
    """One line per setting across an axis per dimension; the last axis and the colour show accuracy.

    Args:
        frame: One row per finished setting: the dimensions' columns, `accuracy` (0 to 1) and `diverged`.
        dimensions: In the order of the axes.
    """
    dimensions = tuple(dimensions)
    # The best is drawn last, on top.
    known = frame.sort_values(["diverged", ACCURACY], ascending=[False, True])
    n_diverged = int(np.count_nonzero(known["diverged"]))
    rows = _line_rows(known, dimensions)
    last = rows.loc[rows["setting"] == len(known) - 1, ["x", "y", "text", "color"]]
    best = last.to_dict("records") if n_diverged < len(known) else []
    spec = dict(_parallel_frame(dimensions))
    spec["datasets"] = {
        "rows": rows.to_csv(index=False, float_format="%.6g", lineterminator="\n"),
        "best": best,
        "ticks": _tick_rows(dimensions, best, n_diverged),
        "axes": [{"x": name, "low": 0, "high": 1} for name in _names(dimensions)],
    }
    title = f"validation accuracy of {len(known):,} settings"
    return Chart(spec, title + (f"; {n_diverged:,} diverged, dashed" if n_diverged else ""))


def _names(dimensions: tuple[Dimension, ...]) -> list[str]:
    return [one.name for one in dimensions] + [ACCURACY]


def _line_rows(known: pd.DataFrame, dimensions: tuple[Dimension, ...]) -> pd.DataFrame:
    """One row per setting and axis: x and y (0 to 1), the next axis's x2 and y2, `text`, and the tooltip's values."""
    diverged = known["diverged"].to_numpy(bool)
    ends = _accuracy_height(known[ACCURACY].to_numpy(dtype=float, na_value=0.0))
    # Squared, because 90 to 99 %, where a search is decided, is half of the axis and should get most of the colours.
    colors = np.where(diverged, _GREY, np.array(ordered_palette(65))[np.rint(64 * ends**2).astype(int)])
    ends[diverged] = _BELOW
    shared = pd.DataFrame({"setting": np.arange(len(known)), "color": colors})
    for one in dimensions:
        shared[one.column] = [one.text(value) for value in known[one.column]]
    shared["outcome"] = [
        "diverged" if failed else percent(value) for failed, value in zip(diverged, known[ACCURACY], strict=True)
    ]
    places = [(one.name, one.height(known[one.column].to_numpy()), shared[one.column]) for one in dimensions]
    places.append((ACCURACY, ends, shared["outcome"]))
    parts = [
        shared.assign(x=name, y=y, text=text, x2=next_name, y2=next_y)
        for (name, y, text), (next_name, next_y, _) in zip(places, [*places[1:], ("", np.nan, None)], strict=True)
    ]
    return pd.concat(parts, ignore_index=True)


def _accuracy_height(accuracy: np.ndarray) -> np.ndarray:
    """Position on the accuracy axis, logarithmic in 1 − accuracy."""
    low, high = np.log(ERROR_DOMAIN)
    missing = np.clip(1 - accuracy, min(ERROR_DOMAIN), max(ERROR_DOMAIN))
    return (np.log(missing) - low) / (high - low)


def _tick_rows(dimensions: tuple[Dimension, ...], best: list[dict], n_diverged: int) -> list[dict]:
    rows = [
        {"x": one.name, "y": float(y), "text": one.text(value)}
        for one in dimensions
        for value, y in zip(_ticks(one), one.height(np.array(_ticks(one))), strict=True)
    ]
    heights = _accuracy_height(1 - np.array(ERRORS))
    rows += [
        {"x": ACCURACY, "y": float(y), "text": f"{100 * (1 - error):.0f}\u202f%"}
        for y, error in zip(heights, ERRORS, strict=True)
    ]
    rows += [{"x": ACCURACY, "y": _BELOW, "text": "diverged"}] if n_diverged else []
    taken = {row["x"]: (row["y"], row["text"]) for row in best}
    return [row for row in rows if not _covered(row, *taken.get(row["x"], (-1.0, "")))]


def _covered(row: dict, y: float, text: str) -> bool:
    return row["text"] == text or (row["x"] == ACCURACY and abs(row["y"] - y) < 0.06)


def _ticks(one: Dimension) -> list[float]:
    """At most seven values in the range: powers of two or ten, or round steps.

    >>> _ticks(Dimension("batch_size", "", 8, 512, log=True, whole=True))
    [8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0]
    >>> _ticks(Dimension("learning_rate", "", 1e-3, 1, log=True)), _ticks(Dimension("depth", "", 1, 4, whole=True))
    ([0.001, 0.01, 0.1, 1.0], [1.0, 2.0, 3.0, 4.0])
    """
    if one.log:
        found = (2.0 if one.whole else 10.0) ** np.arange(-40, 40)
        found = found[(found > one.low * 0.999) & (found < one.high * 1.001)]
    else:
        step = max(nice_above((one.high - one.low) / 6), 1.0 if one.whole else 0.0)
        found = step * np.arange(np.ceil(one.low / step), np.floor(one.high / step + 1e-9) + 1)
    if len(found) < 2:
        found = np.array([one.low, one.high])
    return [float(f"{value:.6g}") for value in found[:: -(-len(found) // 7)]]


@once
def _parallel_frame(dimensions: tuple[Dimension, ...]) -> dict:
    names = _names(dimensions)
    axis = alt.Axis(
        orient="top",
        labelAngle=0,
        labelExpr="split(datum.label, ' ')",
        labelPadding=22,
        domain=False,
        ticks=False,
        grid=False,
        labelFontWeight=600,
        labelOverlap=False,
    )
    x = alt.X("x:N", sort=names, scale=alt.Scale(type="point", domain=names, padding=0.5), axis=axis, title=None)
    y = alt.Y("y:Q", scale=alt.Scale(domain=[_BELOW, 1], nice=False), axis=None)
    tooltip = [alt.Tooltip(f"{one.column}:N", title=one.name) for one in dimensions]
    tooltip.append(alt.Tooltip("outcome:N", title="validation accuracy"))
    base = alt.Chart(alt.NamedData("rows", format=alt.CsvDataFormat(type="csv")))
    base = base.encode(x=x, y=y, detail="setting:N", color=row_color())
    pointed = alt.selection_point("pointed", on="pointerover", clear="pointerout", fields=["setting"], empty=False)
    dash = alt.condition("datum.outcome === 'diverged'", alt.value([4, 3]), alt.value([1, 0]))
    thick = alt.condition(pointed, alt.value(3.5), alt.value(1.2))
    seen = alt.condition(pointed, alt.value(1), alt.value(0.65))
    lines = base.mark_line().encode(strokeDash=dash, strokeWidth=thick, opacity=seen)
    # Wide and invisible, so that lines are easy to hit. Rules, because a line shows its tooltip only at its corners.
    between = base.transform_filter("datum.y2 !== null").mark_rule(strokeWidth=9, opacity=0.001)
    hit = between.encode(x2="x2:N", y2="y2:Q", tooltip=tooltip).add_params(pointed)
    uprights = alt.Chart(alt.NamedData("axes")).mark_rule(color="currentColor", opacity=0.5)
    uprights = uprights.encode(x=x, y=alt.Y("low:Q", axis=None), y2="high:Q")
    best = alt.Chart(alt.NamedData("best")).encode(x=x, y=y, color=row_color())
    winner = best.mark_line(strokeWidth=4.5) + best.mark_point(filled=True, size=70, opacity=1)
    ticks = alt.Chart(alt.NamedData("ticks")).encode(x=x, y=y, text="text:N")
    inner, last = f"datum.x !== '{ACCURACY}'", f"datum.x === '{ACCURACY}'"
    texts = [
        *_with_halo(ticks.transform_filter(inner), align="right", dx=-5, fontSize=10),
        *_with_halo(ticks.transform_filter(last), align="left", dx=7, fontSize=10),
        *_with_halo(best.encode(text="text:N"), align="left", dx=7, fontSize=12, fontWeight=700),
    ]
    spec = styled(alt.layer(uprights, lines, winner, hit, *texts), height=300)
    spec["config"]["padding"] = spec["config"]["padding"] | {"right": 14, "bottom": 10}
    return spec


def _with_halo(texts: alt.Chart, **options: Any) -> list[alt.Chart]:
    outline = texts.mark_text(stroke=_PAPER, strokeWidth=3.5, strokeJoin="round", color=_PAPER, **options)
    return [outline.encode(color=alt.value(_PAPER)), texts.mark_text(**options).encode(color=alt.value("currentColor"))]


def search_sentence(frame: pd.DataFrame, dimensions: Sequence[Dimension]) -> str:
    """The best setting, and how many failed; empty without results.

    `frame` is as in `parallel_coordinates`, plus `chance`, the accuracy up to which a network did not learn.
    """
    if frame.empty:
        return ""
    finite = frame[~frame["diverged"]]
    learnt = finite[finite[ACCURACY] > finite["chance"]]
    parts = [f"None of {len(frame):,} learnt"]
    if len(learnt):
        best = learnt.sort_values(ACCURACY).to_dict("records")[-1]
        parts = [f"Best of {len(frame):,}: {percent(best[ACCURACY])} with {setting_in_words(best, dimensions)}"]
    n_diverged, n_stuck = len(frame) - len(finite), len(finite) - len(learnt)
    parts += [f"{n_diverged:,} diverged"] if n_diverged else []
    parts += [f"{n_stuck:,} did not learn"] if n_stuck else []
    return "; ".join(parts) + "."


def setting_in_words(row: dict, dimensions: Sequence[Dimension]) -> str:
    texts = {one.column: f"{one.name} {one.text(row[one.column])}" for one in dimensions}
    if {"depth", "width"} <= texts.keys():
        del texts["depth"]
        texts["width"] = f"{counted(int(row['depth']), 'hidden layer')} of {int(row['width']):,}"
    return ", ".join(texts.values())
