"""The race: seconds per epoch by library and batch size, in a table that fills as cells are measured."""

import html
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import marimo as mo
import numpy as np

from lib.formatting import counted, justified, minute, percent, seconds, times
from lib.labs.why_slower import how_it_trains
from lib.model.backends.registry import BACKENDS, Runtime, usable_runtimes
from lib.model.spec import N_TRAIN, Network
from lib.sweeps.experiments import published
from lib.sweeps.experiments.anatomy_of_a_step import ceilings, measure_ceilings
from lib.sweeps.experiments.backend_race import (
    BATCH_SIZES,
    BUDGET_S,
    EPOCHS,
    NETWORK,
    PART_S,
    ROUNDS,
    TARGETS,
    Cell,
    Learned,
    Needed,
    Standing,
    all_cells,
    learn,
    learned,
    needed,
    plan,
    race,
    standings,
    trials,
)
from lib.sweeps.experiments.recorded_machines import (
    Machine,
    Seconds,
    card_of,
    exactly,
    gpu_runtimes,
    named,
    recorded_gpus,
)
from lib.sweeps.storage.records import Kind, Record, current
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import State
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.comparison import Estimate
from lib.timing.diagnosis import disturbed_measurement, tiny_work_on_a_gpu
from lib.timing.prediction.workload import Ceiling, step_floors
from lib.timing.profiling.request import ONE_CALL
from lib.ui import layout
from lib.ui.controls import FASTEST, Controls, batch_size, dropdown, hidden
from lib.ui.lab import Asked, Drawing, Page, Shown
from lib.ui.url_state import text
from lib.ui.views.chart import Chart, alt, pd, styled
from lib.ui.views.markup import quiet

VIEWS = {"seconds per epoch": "seconds", "seconds to the target accuracy": "target"}
SCALES = {
    "seconds": "an epoch; stronger colours mean longer",
    "target": "to the target accuracy; stronger colours mean longer",
}
NOTHING_YET = "Nothing is measured here yet: press “Race”. Below are recorded and published figures of other machines."
UNIT = "s"  # of every time in the table
LEAST_GROUND = 0.15  # lowest level, so that every measured cell has a background
_PUBLISHED = {
    ("keras-tensorflow", "gpu"): "Keras on TensorFlow, Quadro RTX 5000",
    ("keras-tensorflow", "cpu"): "Keras on TensorFlow, CPU",
    ("numpy", "cpu"): "NumPy, CPU",
    ("jax-step", "cpu"): "JAX, one call a step, CPU",
}


class Race(Controls):
    AGAIN = "Race", "Measure all cells, or continue where it stopped"
    hidden = hidden()
    size = batch_size("Your batch size", 32)
    view = dropdown("Show", "seconds", VIEWS, full_width=True)
    target = dropdown("Target accuracy", 0.95, {f"{target:.0%}": target for target in TARGETS})

    @property
    def network(self) -> Network:
        return Network.parse(self.hidden)

    @property
    def sizes(self) -> list[int]:
        return sorted({*BATCH_SIZES, self.size})

    def cells(self) -> list[Cell]:
        return all_cells(usable_runtimes(), self.sizes, self.network)


class Raced:
    """The state of a race: results, failures, and the repetitions left.

    Args:
        cells: The cells of the race.
        stored: Records from before.
        known: Validation accuracies after each epoch, by training.
        items: Records and trainings of this race so far.
    """

    def __init__(
        self, cells: Sequence[Cell], stored: Sequence[Record], known: Learned, items: Sequence[Any] = ()
    ) -> None:
        self.network = cells[0].network if cells else NETWORK
        made = [item for item in items if isinstance(item, Record)]
        records = [*stored, *made]
        self.cells, self.standings, self.failed = cells, standings(cells, records), failures(cells, records)
        failed_now = failures(cells, made)  # earlier failures are retried
        repetitions = {cell: one.repetitions for cell, one in self.standings.items()}
        self.left = [
            cell
            for number, cell in enumerate(plan(cells, []))
            if repetitions.get(cell, 0) <= number // len(cells) and cell not in failed_now
        ]
        self.learned: Learned = {**known, **dict(item for item in items if isinstance(item, tuple))}

    @property
    def time_left_s(self) -> float | None:
        """Estimated seconds of the repetitions left; None before any cell was measured.

        A measured cell takes `EPOCHS` epochs, but no longer than the budget; other cells take the median of those.
        """
        if not self.standings:
            return None
        spent = {
            cell: min(EPOCHS * one.quartiles_s[1], BUDGET_S + PART_S) + 0.3 for cell, one in self.standings.items()
        }
        usual = float(np.median(list(spent.values())))
        return sum(spent.get(cell, usual) for cell in self.left)


def failures(cells: Sequence[Cell], records: Sequence[Record]) -> dict[Cell, str]:
    """Why cells could not be measured, from the latest valid `FAILURE` record of each; other cells are missing."""
    found = {cell: current(records, Kind.FAILURE, cell.subject, cell.runtime) for cell in cells}
    return {cell: "; ".join(of_cell[-1].warnings) for cell, of_cell in found.items() if of_cell}


def fill(begun: Raced, engine: Engine, store: Store, cancel: Cancel, request: Request) -> Iterator[Any]:
    """Measure the peak rates once, make the repetitions, then count the epochs that each accuracy takes.

    Raises:
        TrainingFailed: A backend could not train; the text says why.
    """
    yield from measure_ceilings(usable_runtimes(), engine, store, cancel, request)
    yield from race(begun.left, engine, store, cancel, request)
    todo = [training for training in trials(begun.network) if training not in begun.learned]
    if todo and not cancel.is_set():
        yield from learn(todo, engine, store, cancel, request)


def racing(page: Page, shown_table: mo.ui.anywidget) -> tuple[Callable[[Race], Asked], Callable[[Shown], Drawing]]:
    engine, store = page.engine, page.store

    def stored(at: Race) -> tuple[list[Cell], list[Record], Learned]:
        records = [*store.records(Kind.RACE), *store.records(Kind.FAILURE)]
        return at.cells(), records, learned(store, at.network, engine.known_facts())

    def ask(at: Race) -> Asked:
        def make(pressed: bool) -> tuple[tuple, Callable]:
            begun = stored(at) if pressed else None
            return (begun,), partial(fill, Raced(*begun)) if begun else lambda *_: iter(())

        return Asked((at.network, at.size), make)

    def draw(shown: Shown) -> Drawing:
        at, now, (begun,) = shown.at, shown.now, shown.known
        raced = Raced(*(begun or stored(at)), now.items)
        state = now.state if begun or now.state is State.FAILED else State.NOT_RUNNING
        running = raced.left[0] if raced.left and state.under_way else None
        shown_table.widget.table = table(usable_runtimes(), raced, at, running, page.today)
        said = sentence(raced, at, page.today)
        line = _state_line(raced, state, now.note, now.problem)
        return Drawing(
            f'<div class="race-head">{layout.sentence(said or NOTHING_YET)}{line}</div>{shown_table.text}', said
        )

    return ask, draw


def _state_line(raced: Raced, state: State, note: str, problem: str) -> str:
    repetitions, trainings = ROUNDS * len(raced.cells), len(trials(raced.network))
    made = sum(min(ROUNDS, one.repetitions) for one in raced.standings.values())
    left_s, rest = raced.time_left_s or 0.0, "left" if state.under_way else "for the rest"
    left = seconds(left_s) if left_s < 90 else f"{left_s / 60:.0f} minutes"
    words = (
        (f"{note} · " if note else "")
        + f"{made} of {repetitions} repetitions, {len(raced.learned)} of {trainings} trainings to an accuracy"
        + f", about {left} {rest}" * bool(left_s)
    )
    return layout.state_line(state, made + len(raced.learned), repetitions + trainings, words, problem)


# The table.


def key_of(cell: Cell) -> str:
    """A cell's key in the widget, parsed by `cell_of`: `backend/device/precision/batch size/hidden layers`."""
    one = cell.runtime
    return f"{one.backend}/{one.device}/{one.precision}/{cell.batch_size}/{','.join(map(str, cell.network.hidden))}"


def cell_of(key: str) -> Cell | None:
    """Parse a key; None for any other text, such as the empty key of no selection."""
    try:
        *runtime, size, hidden = key.split("/")
        cell = Cell(Runtime(*runtime), int(size), Network.parse(hidden))
    except (TypeError, ValueError):
        return None
    return cell if cell.runtime in usable_runtimes() else None


def table(
    runtimes: Sequence[Runtime], raced: Raced, at: Race, running: Cell | None = None, program: str = FASTEST
) -> dict:
    """Columns and rows for the widget: measured rows, then recorded and published ones in the same form.

    Args:
        runtimes: One row each.
        raced: The state of the race.
        at: Selects the figures, the network and the batch sizes.
        running: The cell that is being measured.
        program: The reader's own (see `controls.today`), marked as such.

    Returns:
        Each cell has a text, an explanation, a state, a key, and a `level` from `LEAST_GROUND` to 1 on the scale of the
        chosen view, None if not measured; `best` marks the best figure of a column.
    """
    figures, values = _figures(raced, at)
    columns = [[cell for cell in values if cell.batch_size == size] for size in at.sizes]
    best = {min(column, key=values.__getitem__) for column in columns if len(column) > 1}
    levels: dict[Cell, float] = {}
    scale = None
    if values:
        low, high = (end(values, key=values.__getitem__) for end in (min, max))
        ends = np.log([values[low], values[high]])
        levels = {
            cell: round(float(np.interp(np.log(value), ends, (LEAST_GROUND, 1.0))), 3) for cell, value in values.items()
        }
        scale = {name: figures[one][0].removeprefix("≤ ") for name, one in (("low", low), ("high", high))} | {
            "words": SCALES[at.view]
        }
    rows = []
    for row in runtimes:
        cells = [
            _cell(cell, figures.get(cell), raced, running) | {"level": levels.get(cell), "best": cell in best}
            for cell in (Cell(row, size, at.network) for size in at.sizes)
        ]
        label = _label(row, row.label) + " (yours)" * (row.address == program)
        rows.append({"label": label, "group": "", "cells": cells})
    if at.view == "seconds":
        rows += _rows_of_others(at)
    return {"corner": "batch size", "columns": [f"{size:,}" for size in at.sizes], "rows": rows, "scale": scale}


def _rows_of_others(at: Race) -> list[dict]:
    rows = [
        {
            "label": _label(runtime, runtime.short_label if runtime.device == "gpu" else runtime.label),
            "group": f"{card_of(machine)}, recorded",
            "cells": [_recorded_cell(machine, runtime, at, size) for size in at.sizes],
        }
        for machine in recorded_gpus()
        for runtime in gpu_runtimes(machine)
        if any(machine.epoch(runtime, size, at.network) for size in at.sizes)
    ]
    for of, by_size in published.EPOCH_S.items() if at.network == NETWORK else ():
        texts = [f"{by_size[size]:g} s" if size in by_size else "" for size in at.sizes]
        cells = [_cell_of_others(text, "published, not measured here") for text in texts]
        rows.append({"label": _PUBLISHED[of], "group": "published", "cells": cells})
    return rows


def _label(runtime: Runtime, name: str) -> str:
    """The label; on a card it mentions batches that come from the host, because backends differ in that."""
    backend = BACKENDS.get(runtime.backend)
    feeds = backend is not None and runtime.device != "cpu" and not backend.holds_images
    return f"{name}, batches from the host" if feeds else name


def _figures(raced: Raced, at: Race) -> tuple[dict[Cell, "Figure"], dict[Cell, float]]:
    figures = {cell: _FIGURES[at.view](standing, raced, at) for cell, standing in raced.standings.items()}
    return figures, {cell: value for cell, (_, _, value) in figures.items() if value is not None}


def _cell(cell: Cell, figure: "Figure | None", raced: Raced, running: Cell | None) -> dict:
    if figure is None:
        why_not = "" if cell == running else raced.failed.get(cell, "")
        text, state = ("…", "running") if cell == running else ("failed" if why_not else "–", "waiting")
        return {"text": text, "title": why_not or "not measured yet", "state": state, "key": ""}
    text, title, value = figure
    scaled = raced.standings[cell].scaled
    state = "waiting" if value is None else "running" if cell == running else "scaled" if scaled else "done"
    return {"text": text, "title": title, "state": state, "key": key_of(cell)}


def _recorded_cell(machine: Machine, runtime: Runtime, at: Race, size: int) -> dict:
    known = machine.epoch(runtime, size, at.network)
    text = justified(known.middle, known.low, known.high, unit=UNIT) if known else "–"
    return _cell_of_others(text, f"{named(machine)}, not measured here")


def _cell_of_others(text: str, title: str) -> dict:
    return {"text": text, "title": title, "state": "published", "level": None, "best": False, "key": ""}


Figure = tuple[str, str, float | None]  # text, explanation, and value on the view's scale


def _epoch(standing: Standing, _raced: Raced, _at: Race) -> Figure:
    low, middle, high = standing.quartiles_s
    title = (
        f"{seconds(middle)} per epoch ({seconds(low)} to {seconds(high)}), {len(standing.epoch_s)} epochs in"
        f" {counted(standing.repetitions, 'repetition')}"
    )
    return "≤ " * bool(standing.warnings) + justified(middle, low, high, unit=UNIT), title, middle


def _to_target(standing: Standing, raced: Raced, at: Race) -> Figure:
    """Epochs of the runs that reached the target, times the seconds of an epoch with its evaluation."""
    runs = needed(raced.learned, standing.cell.training.network, standing.cell.batch_size, at.target)
    if runs is None:
        return "–", "the epochs it needs are not counted yet: counting follows the race", None
    words = f"{at.target:.0%} accuracy: {runs.words}"
    if not runs.reached:
        return "not reached", words, None
    one = to_accuracy(Seconds(*standing.quartiles_s), _evaluation_s(standing, raced.standings), runs)
    share = "" if len(runs.reached) == len(runs.epochs) else f" ({len(runs.reached)} of {len(runs.epochs)})"
    title = (
        f"{seconds(one.middle)} ({seconds(one.low)} to {seconds(one.high)}), including evaluation after each epoch;"
        f" {words}"
    )
    return justified(one.middle, one.low, one.high, unit=UNIT) + share, title, one.middle


def to_accuracy(epoch: Seconds, evaluation_s: float, counted: Needed) -> Seconds:
    """Seconds of the judged runs that reached an accuracy: their epochs, each with its evaluation.

    The ends are the fewest epochs at the first quartile and the most epochs at the third. The relative errors of the
    epoch's time and of the number of epochs add in quadrature.
    """
    one = epoch.plus(exactly(evaluation_s))
    least, middle, most = (counted.reached[i] for i in (0, len(counted.reached) // 2, -1))
    epochs = Estimate.of(counted.reached)  # varies from seed to seed
    error, n = math.hypot(one.estimate.error, epochs.error), min(one.estimate.n, epochs.n)
    estimate = replace(one.estimate.times(middle), error=error, n=n)
    return Seconds(one.low * least, one.middle * middle, one.high * most, epoch.n, estimate)


def _evaluation_s(standing: Standing, known: Mapping[Cell, Standing]) -> float:
    """Of this cell, or else of the same runtime at other batch sizes: evaluation does not depend on them."""
    alike = [s.evaluation_s for cell, s in known.items() if cell.runtime == standing.cell.runtime and s.evaluation_s]
    return standing.evaluation_s or (float(np.median(alike)) if alike else 0.0)


_FIGURES: dict[str, Callable[[Standing, Raced, Race], Figure]] = {"seconds": _epoch, "target": _to_target}


# The sentence.

_BEST = {
    "seconds": "Fastest{so_far} at batch size {size}: {runtime}, {figure} per epoch{gain}.",
    "target": "Fastest to {target} accuracy, which is what counts: {runtime} at batch size {size}, {figure}.",
}
_OF_ALL = "Fastest at any batch size: {runtime} at {size}, {figure}."
_NOTHING = (
    "The epochs each batch size needs are counted after the race; until then, what reaches the accuracy first is"
    " unknown."
)


def sentence(raced: Raced, at: Race, program: str = FASTEST) -> str:
    if not raced.standings:
        return ""
    _, values = _figures(raced, at)
    if not values:
        return _NOTHING
    best = min(values, key=values.__getitem__)
    yours = [one for one in values if one.batch_size == at.size and at.view == "seconds"]
    cell = min(yours or values, key=values.__getitem__)
    so_far = f" of the {len(yours)} measured so far" * (len(yours) < len({one.runtime for one in raced.cells}))
    mine = next((one for one in yours if one.runtime.address == program), cell)
    gain = f", {times(values[mine] / values[cell])} times as fast as your {mine.runtime.label}" * (mine != cell)
    said = [_told(_BEST[at.view], cell, values, at, so_far=so_far, gain=gain), how_it_trains(cell.runtime)]
    return " ".join(said + [_told(_OF_ALL, best, values, at)] * (best.batch_size != cell.batch_size))


def _told(words: str, cell: Cell, values: Mapping[Cell, float], at: Race, **more: str) -> str:
    figure, target = seconds(values[cell]), f"{at.target:.0%}"
    return words.format(runtime=cell.runtime.label, size=f"{cell.batch_size:,}", figure=figure, target=target, **more)


# Details of a cell.


def _check_cell(key: str) -> None:
    if key and cell_of(key) is None:
        raise ValueError("expected a cell of the table, such as jax-epoch/cpu/float32/32/128; choose one")


CELL = text("race.cell", "", _check_cell)


def one_cell(page: Page, key: str) -> mo.Html:
    """The chosen cell in full, and runtimes that are missing or software adapters. The address keeps the choice.

    Args:
        page: Its store has the cell's repetitions and the peak rates.
        key: From `key_of`; empty where no cell is chosen.
    """
    page.address.save("race", {"cell": key} if key != page.address.read(CELL) else {})
    cell, store = cell_of(key), page.store
    standing = standings([cell], store.records(Kind.RACE)).get(cell) if cell is not None else None
    text = quiet("Choose a cell in the table to see its epochs, their spread and a verdict.")
    if standing is not None:
        text = _detail(standing, store)
    return mo.Html(f'<div class="race-detail">{text}</div>{layout.software(usable_runtimes())}{layout.missing()}')


def _detail(standing: Standing, store: Store) -> str:
    cell, best, arithmetic_s = standing.cell, ceilings(standing.cell.runtime, store), None
    lines = _of_epochs(standing)
    n_steps = N_TRAIN // cell.batch_size
    step_s = standing.quartiles_s[1] / n_steps
    if best is not None:
        calls = cell.batch_size / N_TRAIN if cell.runtime.backend in ONE_CALL else 1.0
        floors_s = step_floors(cell.network, cell.batch_size, best, cell.runtime.backend, calls)
        arithmetic_s = floors_s[Ceiling.PRODUCT]
        by = max(floors_s, key=floors_s.__getitem__)
        floor_s = floors_s[by]
        rest = "the rest is overhead" if step_s >= floor_s else "it skips products, such as those with zeros"
        lines.append(
            f"The least this machine could take for all products is {seconds(n_steps * floor_s)} per epoch, set"
            f" by {by.value}: the cell takes {times(step_s / floor_s)} times that; {rest}."
        )
        if not best.cache_bytes and by is Ceiling.COPY:
            lines.append(
                "This device's cache size is unknown, so all parameters count as moved in each step: if they fit into"
                " the cache, a step can take less than that."
            )
    tiny = arithmetic_s is not None and cell.runtime.on_gpu and tiny_work_on_a_gpu(step_s, arithmetic_s)
    lines += [html.escape(said) for said in (tiny, disturbed_measurement(standing.spread)) if said]
    lines += [html.escape(warning[:1].upper() + warning[1:] + ".") for warning in standing.warnings]
    chart = epochs_chart(standing)
    said = "".join(f'<p class="lab-note">{line}</p>' for line in lines)
    return said + layout.framed(chart.title, chart)


def _of_epochs(standing: Standing) -> list[str]:
    low, middle, high = standing.quartiles_s
    lines = [
        f"<b>{html.escape(standing.cell.runtime.label)}</b>, batch size {standing.cell.batch_size:,}:"
        f" {justified(middle, low, high)} per epoch (quartiles {seconds(low)} to {seconds(high)},"
        f" {len(standing.epoch_s)} epochs in {counted(standing.repetitions, 'repetition')}, last"
        f" {minute(standing.measured_at)})."
    ]
    if standing.first_accuracy is not None:
        lines.append(
            f"After its first epoch it recognises {percent(standing.first_accuracy)} of the validation images, with"
            f" products in {standing.cell.runtime.precision}."
        )
    if standing.scaled:
        lines.append("An epoch takes so long here that half a second of steps was measured at a time and scaled.")
    return lines


def epochs_chart(standing: Standing) -> Chart:
    low, middle, high = standing.quartiles_s
    rows = pd.DataFrame({"epoch": np.arange(1, len(standing.epoch_s) + 1), "seconds": standing.epoch_s})
    color = BACKENDS[standing.cell.runtime.backend].color
    band = alt.Chart(pd.DataFrame({"low": [low], "high": [high]})).mark_rect(opacity=0.15, color=color)
    y = alt.Y("seconds:Q", scale=alt.Scale(zero=True), axis=alt.Axis(tickCount=5), title="seconds per epoch")
    x = alt.X("epoch:Q", axis=alt.Axis(tickMinStep=1, format="d"), title="timed epoch, in order")
    points = alt.Chart(rows).mark_point(filled=True, size=50, color=color, opacity=1)
    rule = alt.Chart(pd.DataFrame({"seconds": [middle]})).mark_rule(color=color)
    chart = band.encode(y=alt.Y("low:Q", title="seconds per epoch"), y2="high:Q") + rule.encode(y=y)
    chart += points.encode(x=x, y=y, tooltip=["epoch", alt.Tooltip("seconds:Q", format=".4g")])
    return Chart(styled(chart, height=160), "epochs")
