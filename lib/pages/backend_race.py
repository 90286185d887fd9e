"""Where marimo and the race meet: buttons, the table while it fills, and the chosen cell."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial

import marimo as mo

from lib.backends.registry import Runtime, usable_runtimes
from lib.experiments.backend_race import (
    BATCH_SIZES,
    KIND,
    NETWORK,
    Cell,
    Standing,
    all_cells,
    plan,
    race,
    records_and_notes,
    standings,
    time_left_s,
)
from lib.experiments.background import BackgroundTask
from lib.experiments.peak_rates import ceilings, measure_ceilings
from lib.experiments.time_to_accuracy import TARGETS, TrialTrained, learn, learned, trials
from lib.formatting import seconds
from lib.pages import layout
from lib.pages.streaming import Stage, button, paint_while_it_runs, refuse, stop_button
from lib.pages.url_state import Address, Setting, by_name, checked, choice, day, number
from lib.pages.widgets import RaceTable
from lib.spec import N_TRAIN, Training
from lib.storage.frames import records_frame
from lib.storage.records import Record
from lib.storage.store import Store
from lib.timing.roofline import step_floor
from lib.views import backend_race
from lib.views.chart import Chart
from lib.workers.cancel import Cancel
from lib.workers.engine import Engine
from lib.workers.notes import Note, State
from lib.workers.queue import Request, Urgency


def fill(
    begun: "Plan", engine: Engine, store: Store, cancel: Cancel, request: Request
) -> Iterator[Record | TrialTrained | Note]:
    """Measure the ceilings once, make the repetitions, then count the epochs that accuracies need."""
    yield from measure_ceilings(usable_runtimes(), engine, store, cancel, request)
    yield from records_and_notes(race(begun.left, engine, store, cancel, request))
    if begun.trials and not cancel.is_set():
        yield from learn(begun.trials, engine, store, cancel, request)


@dataclass(frozen=True)
class Plan:
    """What a race began with."""

    cells: list[Cell]
    records: list[Record]
    left: list[Cell]
    learned: dict[Training, tuple[float, ...]]

    @classmethod
    def now(cls, engine: Engine, store: Store) -> "Plan":
        cells, records = all_cells(usable_runtimes()), store.records(KIND)
        return cls(cells, records, plan(cells, records), learned(store, NETWORK, engine.known_facts()))

    @property
    def trials(self) -> list[Training]:
        """Trainings that are still to make."""
        return [training for training in trials(NETWORK) if training not in self.learned]

    def after(self, items: Sequence[Record | TrialTrained]) -> "Plan":
        """The same with what has come since."""
        records = [item for item in items if isinstance(item, Record)]
        trained = {item.training: item.accuracies for item in items if isinstance(item, TrialTrained)}
        return Plan(self.cells, [*self.records, *records], self.left[len(records) :], self.learned | trained)


_SAVED = ("view", "beside", "target", "price", "dated")
MAX_PRICE_PER_H = 1000


def _runtimes() -> dict[str, str]:
    """The runtimes that can run here, as an address writes them, by their labels."""
    return {runtime.label: f"{runtime.backend}/{runtime.device}" for runtime in usable_runtimes()}


def settings() -> dict[str, Setting]:
    """What the controls may say."""
    runtimes = list(_runtimes().values())
    beside = "keras-tensorflow/cpu"
    return by_name(
        choice("race.view", "seconds", list(backend_race.VIEWS.values())),
        choice("race.beside", beside if beside in runtimes else runtimes[0], runtimes),
        choice("race.target", 0.95, TARGETS),
        number("race.price", 0.0, 0, MAX_PRICE_PER_H),
        day("race.dated", date.today()),
    )


def panel(address: Address, stage: Stage) -> mo.ui.dictionary:
    """The two buttons, then view, what to compare with, and price."""
    save, known, runtimes = address.save("race"), settings(), _runtimes()
    view, beside, target, price, dated = (address.read(known[f"race.{name}"]) for name in _SAVED)
    named = {value: label for label, value in runtimes.items()}
    elements = {
        "start": button("Race", "Measure all cells, or go on where it stopped"),
        "stop": stop_button(stage),
        "view": mo.ui.dropdown(
            backend_race.VIEWS, value=next(k for k, v in backend_race.VIEWS.items() if v == view), label="Show"
        ),
        "beside": mo.ui.dropdown(runtimes, value=named[beside], label="… than"),
        "target": mo.ui.dropdown({f"{t:.0%}": t for t in TARGETS}, value=f"{target:.0%}", label="Target accuracy"),
        "price": mo.ui.number(0, MAX_PRICE_PER_H, step=0.001, value=price, label="$ per hour for this machine"),
        "dated": mo.ui.date(value=dated, label="price of"),
    }
    return mo.ui.dictionary(elements, on_change=lambda values: save({name: values[name] for name in _SAVED}))


def controls(panel: mo.ui.dictionary) -> mo.Html:
    """The panel in a row.

    It has a cell of its own: a frame that replaces a button while it is pressed swallows the press.
    """
    return mo.Html(
        '<div class="race-controls">' + "".join(f"<div>{e.text}</div>" for e in panel.elements.values()) + "</div>"
    )


def follow(stage: Stage, widget: RaceTable, panel: mo.ui.dictionary) -> None:
    """Show what is kept; where “Race” was pressed, race on and fill the table while cells come."""
    try:
        values = checked(settings(), "race", panel.value)
    except ValueError as error:
        return refuse(stage, "", error)
    starts = values["start"]
    paint = _Painter(widget, values)
    if starts and stage.asked != (starts,):
        begun = Plan.now(stage.engine, stage.store)
        engine, store, request = stage.engine, stage.store, Request(urgency=Urgency.NOW)
        stage.asked, stage.began_with = (starts,), (begun,)
        stage.begin(lambda cancel: fill(begun, engine, store, cancel, request))
    if stage.running is None:
        stage.next_showing()
        begun = Plan.now(stage.engine, stage.store)
        paint(begun, State.NOT_RUNNING)
    else:
        paint_while_it_runs(stage, stage.running, partial(paint.race, stage.running, *stage.began_with))


class _Painter:
    """Draws a state of the race into the table and the cell."""

    def __init__(self, widget: RaceTable, values: dict) -> None:
        self._widget, self._values = widget, values

    def race(self, running: BackgroundTask[Record | TrialTrained], begun: Plan) -> int:
        """Draw what is known now; the version that was drawn."""
        now = running.view()
        self(begun.after(now.items), now.state, now.problem, now.note)
        return now.version

    def __call__(self, plan: Plan, state: State, problem: str = "", note: str = "") -> None:
        known = standings(plan.cells, plan.records)
        view, beside, target, price, dated = (self._values[name] for name in _SAVED)
        shown = backend_race.Shown(view, Runtime(*beside.split("/")), price, dated, target, plan.learned)
        running = plan.left[0] if plan.left and state.under_way else None
        self._widget.table = backend_race.table(usable_runtimes(), BATCH_SIZES, known, shown, running)
        mo.output.replace(mo.Html(self._head(plan, known, shown, state, problem, note)))

    def _head(
        self, at: Plan, known: dict[Cell, Standing], shown: backend_race.Shown, state: State, problem: str, note: str
    ) -> str:
        repetitions, trainings = len(plan(at.cells, [])), len(trials(NETWORK))
        left_s = time_left_s(at.left, known) if state.under_way else None
        words = (
            f"{repetitions - len(at.left)} of {repetitions} repetitions, {len(at.learned)} of {trainings} trainings to"
            " an accuracy"
        )
        words = f"{note} · {words}" if note else words
        words += f", about {seconds(left_s)} left" if left_s else ""
        done, total = repetitions - len(at.left) + len(at.learned), repetitions + trainings
        line = layout.state_line(state, done, total, words, problem)
        return f'<div class="race-head">{line}{layout.sentence(backend_race.sentence(known, shown))}</div>'


def detail(store: Store, key: str) -> mo.Html:
    """The chosen cell in full, and what is missing in the table."""
    cells = all_cells(usable_runtimes())
    chosen = next((cell for cell in cells if backend_race.key_of(cell) == key), None)
    standing = standings([chosen], store.records(KIND)).get(chosen) if chosen is not None else None
    floor = None
    if chosen is not None and (known := ceilings(chosen.runtime, store)) is not None:
        calls = 1.0 if chosen.runtime.backend != "jax-epoch" else chosen.batch_size / N_TRAIN
        floor = step_floor(NETWORK, chosen.batch_size, known, chosen.runtime.backend, calls)
    text = backend_race.detail(standing, floor)
    if standing is not None:
        chart = mo.as_html(Chart(backend_race.blocks_chart(standing), "epochs")).text
        text += f'<figure class="lab-figure">{chart}</figure>'
    return mo.Html(f'<div class="race-detail">{text}</div>{layout.missing()}')


def record(store: Store) -> mo.Html:
    """All that was ever measured for a race on this machine and those imported, as a table that is made when it is
    opened."""
    table = {"every repetition that was kept": lambda: mo.ui.table(records_frame(store.records(KIND)), selection=None)}
    return mo.vstack([mo.md("## The record"), mo.accordion(table, lazy=True)])
