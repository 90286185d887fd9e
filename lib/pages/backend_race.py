"""Where marimo and the race meet: buttons, the table while it fills, and the chosen cell."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial

import marimo as mo

from lib.backends.registry import usable_runtimes
from lib.experiments.backend_race import (
    BATCH_SIZES,
    NETWORK,
    ROUNDS,
    Cell,
    Standing,
    all_cells,
    failures,
    plan,
    race,
    records_and_notes,
    standings,
    time_left_s,
)
from lib.experiments.background import BackgroundTask
from lib.experiments.peak_rates import ceilings, measure_ceilings, product_rates
from lib.experiments.time_to_accuracy import TARGETS, TrialTrained, learn, learned, trials
from lib.formatting import seconds
from lib.pages import layout
from lib.pages.controls import Controls, day, dropdown, number, runtime, runtimes
from lib.pages.stage import Stage, button, stop_button
from lib.pages.streaming import paint_while_it_runs, refuse
from lib.pages.url_state import Address, Setting
from lib.pages.widgets import RaceTable
from lib.profiling.step_breakdown import ONE_CALL
from lib.spec import N_TRAIN, Training
from lib.storage.frames import records_frame
from lib.storage.records import Kind, Record
from lib.storage.store import Store
from lib.timing.roofline import step_floor
from lib.views import backend_race, roofline
from lib.views.markup import quiet
from lib.workers.cancel import Cancel
from lib.workers.engine import Engine
from lib.workers.notes import Note, State
from lib.workers.queue import Request, Urgency


def fill(
    begun: "Plan", engine: Engine, store: Store, cancel: Cancel, request: Request
) -> Iterator[Record | TrialTrained | Note]:
    """Measure the peak rates once, make the repetitions, then count the epochs that accuracies need.

    Yields:
        Records of the race and finished trainings as they are stored, and notes on what is measured or waited for.

    Raises:
        WorkerDied: A worker ended while it trained; the text says what to do.
        TrainingFailed: A backend could not train; the text says why.
    """
    yield from measure_ceilings(usable_runtimes(), engine, store, cancel, request)
    yield from records_and_notes(race(begun.left, engine, store, cancel, request))
    if begun.trials and not cancel.is_set():
        yield from learn(begun.trials, engine, store, cancel, request)


@dataclass(frozen=True)
class Plan:
    """The state of a race: its cells, the records that are there, the repetitions left, and the accuracies known."""

    cells: list[Cell]
    records: list[Record]
    left: list[Cell]
    learned: dict[Training, tuple[float, ...]]
    failed: dict[Cell, str]  # why there is no figure

    @classmethod
    def now(cls, engine: Engine, store: Store) -> "Plan":
        """The state by what is stored now; no accuracies while the engine does not know which images there are."""
        cells, records = all_cells(usable_runtimes()), store.records(Kind.RACE)
        failed = failures(cells, store.records(Kind.FAILURE))
        return cls(cells, records, plan(cells, records), learned(store, NETWORK, engine.known_facts()), failed)

    @property
    def trials(self) -> list[Training]:
        """Trainings that are still to be made, to count the epochs to an accuracy."""
        return [training for training in trials(NETWORK) if training not in self.learned]

    def after(self, items: Sequence[Record | TrialTrained]) -> "Plan":
        """The state after these records and trainings, in the order in which they were made."""
        records = [item for item in items if isinstance(item, Record) and item.kind == Kind.RACE]
        failed = failures(self.cells, [item for item in items if isinstance(item, Record)])
        trained = {item.training: item.accuracies for item in items if isinstance(item, TrialTrained)}
        made = Counter(tuple(record.subject[name] for name in _IDENTITY) for record in records)
        left = []
        for cell in self.left:
            identity = tuple(cell.subject[name] for name in _IDENTITY)
            made[identity] -= 1
            left += [cell] if made[identity] < 0 and cell not in failed else []
        return Plan(self.cells, [*self.records, *records], left, self.learned | trained, self.failed | failed)


_IDENTITY = ("backend", "device", "precision", "batch_size", "hidden")  # of a cell, in its records
_BUTTONS = ("start", "stop")
MAX_PRICE_PER_H = 1000


def _controls() -> Controls:
    usable, beside = runtimes(), "keras-tensorflow/cpu"
    return Controls(
        dropdown("race.view", "Show", "seconds", backend_race.VIEWS),
        dropdown("race.beside", "… than", beside if beside in usable.values() else next(iter(usable.values())), usable),
        dropdown("race.target", "Target accuracy", 0.95, {f"{target:.0%}": target for target in TARGETS}),
        number("race.price", "$ per hour for this machine", 0.0, 0, MAX_PRICE_PER_H, step=0.001),
        day("race.dated", "price of", date.today()),
    )


def settings() -> dict[str, Setting]:
    """What the controls may say, by name."""
    return _controls().settings


def panel(address: Address, stage: Stage) -> mo.ui.dictionary:
    """View, runtime to compare with, target and price, as the address says, and the two buttons."""
    start = button("Race", "Measure all cells, or go on where it stopped")
    return _controls().panel(address, start=start, stop=stop_button(stage))


def controls(panel: mo.ui.dictionary) -> mo.Html:
    """The panel in a row, the buttons first.

    It has a cell of its own: a frame that replaces a button while it is pressed swallows the press.
    """
    ordered = sorted(panel.elements, key=lambda name: name not in _BUTTONS)
    rows = "".join(f"<div>{panel.elements[name].text}</div>" for name in ordered)
    return mo.Html(f'<div class="race-controls">{rows}</div>')


def follow(stage: Stage, widget: RaceTable, panel: mo.ui.dictionary) -> None:
    """Show what is stored; where “Race” was pressed, race on and fill the table as cells are measured."""
    try:
        values = _controls().checked(panel.value)
    except ValueError as error:
        return refuse(stage, "", error)
    paint = _Painter(widget, values)
    if presses := values["start"]:

        def make(_: bool):
            begun = Plan.now(stage.engine, stage.store)
            return (begun,), partial(fill, begun)

        stage.begin_if_new("race", presses, Request(stage.viewer, Urgency.NOW), make)
    if stage.running is None:
        stage.next_showing()
        paint(Plan.now(stage.engine, stage.store), State.NOT_RUNNING)
    else:
        paint_while_it_runs(stage, stage.running, partial(paint.race, stage.running, *stage.began_with))


@dataclass(frozen=True)
class _Painter:
    """Draws a state of the race into the table and the cell."""

    widget: RaceTable
    values: dict

    def race(self, running: BackgroundTask[Record | TrialTrained], begun: Plan) -> int:
        """Draw what is known now; the version that was drawn."""
        now = running.view()
        self(begun.after(now.items), now.state, now.problem, now.note)
        return now.version

    def __call__(self, plan: Plan, state: State, problem: str = "", note: str = "") -> None:
        known = standings(plan.cells, plan.records)
        view, beside, target, price, dated = (
            self.values[name] for name in ("view", "beside", "target", "price", "dated")
        )
        shown = backend_race.Shown(view, runtime(beside), price, dated, target, plan.learned)
        running = plan.left[0] if plan.left and state.under_way else None
        self.widget.table = backend_race.table(usable_runtimes(), BATCH_SIZES, known, shown, running, plan.failed)
        mo.output.replace(mo.Html(self._head(plan, known, shown, state, problem, note)))

    def _head(
        self, at: Plan, known: dict[Cell, Standing], shown: backend_race.Shown, state: State, problem: str, note: str
    ) -> str:
        repetitions, trainings = len(plan(at.cells, [])), len(trials(NETWORK))
        left_s = time_left_s(at.left, known) if state.under_way else None
        made = sum(min(ROUNDS, standing.repetitions) for standing in known.values())
        words = (
            (f"{note} · " if note else "")
            + f"{made} of {repetitions} repetitions, {len(at.learned)} of {trainings} trainings to an accuracy"
            + (f", about {seconds(left_s)} left" if left_s else "")
        )
        line = layout.state_line(state, made + len(at.learned), repetitions + trainings, words, problem)
        return f'<div class="race-head">{line}{layout.sentence(backend_race.sentence(known, shown))}</div>'


def detail(store: Store, key: str) -> mo.Html:
    """The chosen cell in full, and which runtimes are missing in the table, or are no GPU.

    Args:
        store: Where its repetitions and the peak rates are looked up.
        key: From `lib.views.backend_race.key_of`; empty where no cell is chosen.
    """
    known = standings(all_cells(usable_runtimes()), store.records(Kind.RACE))
    standing = next((one for cell, one in known.items() if backend_race.key_of(cell) == key), None)
    best = ceilings(standing.cell.runtime, store) if standing is not None else None
    floor = None
    if standing is not None and best is not None:
        cell = standing.cell
        calls = cell.batch_size / N_TRAIN if cell.runtime.backend in ONE_CALL else 1.0
        floor = step_floor(NETWORK, cell.batch_size, best, cell.runtime.backend, calls)
    text = backend_race.detail(standing, floor)
    if standing is not None:
        chart = backend_race.blocks_chart(standing)
        text += layout.framed(chart.title, chart)
    if standing is not None and best is not None:
        products = product_rates(standing.cell.runtime.device, store)
        chart = roofline.chart(known, standing.cell, best.copy_bytes_per_s, products)
        text += layout.framed(chart.title, chart) + quiet(roofline.sentence(standing, products))
    return mo.Html(f'<div class="race-detail">{text}</div>{layout.software(usable_runtimes())}{layout.missing()}')


def record(store: Store) -> mo.Html:
    """Every repetition in the store, those of imported machines too, as a table that is built when it is opened."""
    rows = layout.lazy_table("every repetition that was stored", lambda: records_frame(store.records(Kind.RACE)))
    return mo.vstack([mo.md("## The record"), rows])
