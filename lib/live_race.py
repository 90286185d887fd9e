"""Where marimo and the race meet: buttons, the table while it fills, and the chosen cell."""

import html
import threading
import weakref
from collections.abc import Callable

import marimo as mo

from lib import race_view
from lib.address import Address
from lib.backends import Way, all_ways, unavailable
from lib.ceilings import ceilings, measure_ceilings
from lib.charts import Chart
from lib.engine import Engine, TrainingFailed, WorkerDied
from lib.experiments import missing_backends, seconds
from lib.race import BATCH_SIZES, KIND, NETWORK, Cell, Standing, all_cells, plan, race, standings, time_left_s
from lib.roofline import step_floor
from lib.spec import N_TRAIN
from lib.store import Store
from lib.turns import Claim, Urgency
from lib.widgets import RaceTable


def usable_ways() -> list[Way]:
    return [way for way in all_ways() if unavailable(way) is None]


class RaceRun:
    """A race in a thread, and what is known so far. The thread does not hold the stage, whose end is what cancels it."""

    def __init__(self, engine: Engine, store: Store, cancel: threading.Event) -> None:
        self.cells = all_cells(usable_ways())
        self.records = store.records(KIND)
        self.left = plan(self.cells, self.records)
        self.state, self.problem, self.version = "Training" if self.left else "Done", "", 0
        self.changed = threading.Condition()
        if self.left:
            threading.Thread(target=self._fill, args=(engine, store, cancel), daemon=True, name="race").start()

    def over_at(self, version: int) -> bool:
        """Whether the race is over, and this version shows it."""
        with self.changed:
            return self.state != "Training" and self.version == version

    def _fill(self, engine: Engine, store: Store, cancel: threading.Event) -> None:
        try:
            measure_ceilings(usable_ways(), engine, store, cancel)
            for visit in race(list(self.left), engine, store, cancel, Claim(urgency=Urgency.NOW)):
                with self.changed:
                    self.records.append(visit.record)
                    self.left = self.left[1:]
                    self._tell()
            self._end("Stopped" if cancel.is_set() else "Done")
        except (WorkerDied, TrainingFailed, OSError) as error:
            self._end("Failed", str(error))
        except Exception as error:
            self._end("Failed", f"The race ended by a fault of this program ({type(error).__name__}: {error}).")
            raise

    def _end(self, state: str, problem: str = "") -> None:
        with self.changed:
            self.state, self.problem = state, problem
            self._tell()

    def _tell(self) -> None:
        self.version += 1
        self.changed.notify_all()


class Stage:
    """One viewer's race: begun by a button, stopped by another or by the end of the session."""

    def __init__(self, engine: Engine, store: Store) -> None:
        self.engine, self.store = engine, store
        self.race: RaceRun | None = None
        self.starts = 0
        self._cancel = threading.Event()
        self._shown = [0]

    def stop(self) -> None:
        self._cancel.set()

    def begin(self) -> None:
        self._cancel.set()
        self._cancel = threading.Event()
        weakref.finalize(self, self._cancel.set)
        self.race = RaceRun(self.engine, self.store, self._cancel)

    def next_showing(self) -> Callable[[], bool]:
        self._shown[0] += 1
        shown, number = self._shown, self._shown[0]
        return lambda: shown[0] == number


def panel(address: Address, stage: Stage) -> mo.ui.dictionary:
    """View, what to compare with, price, and the two buttons."""
    ways = {way.label: f"{way.backend}/{way.device}" for way in usable_ways()}
    view = str(address.choice("race.view", "seconds", list(race_view.VIEWS.values())))
    beside = str(address.choice("race.beside", "keras-tensorflow/cpu", list(ways.values())))
    named = {value: label for label, value in ways.items()}
    save = address.save("race")
    elements = {
        "view": mo.ui.dropdown(race_view.VIEWS, value=next(k for k, v in race_view.VIEWS.items() if v == view), label="Show"),
        "beside": mo.ui.dropdown(ways, value=named.get(beside, next(iter(ways))), label="… than"),
        "price": mo.ui.number(0, 1000, step=0.001, value=_price(address), label="$ an hour for this machine"),
        "start": mo.ui.button(label="Race", value=0, on_click=lambda n: n + 1, tooltip="Measure all cells, or go on where it stopped"),
        "stop": mo.ui.button(label="Stop", value=0, on_click=lambda n: stage.stop() or n + 1, tooltip="Stop; what is measured is kept"),
    }  # fmt: skip
    return mo.ui.dictionary(
        elements, on_change=lambda values: save({name: values[name] for name in ("view", "beside", "price")})
    )


def _price(address: Address) -> float:
    return float(str(address.read("race.price", 0.0, _number)))


def _number(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1000:
        raise ValueError("expected 0 to 1000")
    return value


def controls(panel: mo.ui.dictionary) -> mo.Html:
    """The panel in a row. It has a cell of its own: a frame that replaces a button while it is pressed swallows the press."""
    return mo.Html(
        '<div class="race-controls">' + "".join(f"<div>{e.text}</div>" for e in panel.elements.values()) + "</div>"
    )


def follow(stage: Stage, widget: RaceTable, panel: mo.ui.dictionary) -> None:
    """Show what is kept; where “Race” was pressed, race on and fill the table while cells come."""
    values = panel.value
    latest = stage.next_showing()
    if values["start"] != stage.starts:
        stage.starts = values["start"]
        stage.begin()
    paint = _Painter(widget, values)
    if stage.race is None:
        cells = all_cells(usable_ways())
        records = stage.store.records(KIND)
        paint(standings(cells, records), "Not running", plan(cells, records))
    else:
        painted = paint.race(stage.race)
        if not stage.race.over_at(painted):  # it may have ended while it was painted
            mo.Thread(target=_keep_painting, args=(stage.race, paint, latest, painted), daemon=True).start()


def _keep_painting(run: RaceRun, paint: "_Painter", latest: Callable[[], bool], painted: int) -> None:
    while not run.over_at(painted):
        with run.changed:
            changed = run.changed.wait_for(lambda painted=painted: run.version != painted, 1.0)
        if not latest() or mo.current_thread().should_exit:
            return
        if changed:
            painted = paint.race(run)


class _Painter:
    """Draws a state of the race into the table and the cell."""

    def __init__(self, widget: RaceTable, values: dict) -> None:
        self._widget, self._values = widget, values

    def race(self, run: RaceRun) -> int:
        """Draw what is known now; the version that was drawn."""
        with run.changed:
            version, records = run.version, list(run.records)
            state, left, problem = run.state, list(run.left), run.problem
        self(standings(run.cells, records), state, left, problem)
        return version

    def __call__(self, known: dict[Cell, Standing], state: str, left: list[Cell], problem: str = "") -> None:
        backend, _, device = str(self._values["beside"]).partition("/")
        running = left[0] if left and state == "Training" else None
        self._widget.table = race_view.table(
            usable_ways(),
            BATCH_SIZES,
            known,
            self._values["view"],
            Way(backend, device),
            float(self._values["price"] or 0),
            running,
        )
        mo.output.replace(mo.Html(self._head(known, state, left, problem)))

    def _head(self, known: dict[Cell, Standing], state: str, left: list[Cell], problem: str) -> str:
        total = len(plan(all_cells(usable_ways()), []))
        left_s = time_left_s(left, known) if state == "Training" else None
        words = f"{total - len(left)} of {total} visits" + (f", about {seconds(left_s)} left" if left_s else "")
        kind = {"Not running": "waiting"}.get(state, state.lower())
        missing = "".join(
            f"<li><b>{html.escape(way.label)}</b>: {html.escape(reason)}; {html.escape(remedy)}.</li>"
            for way, reason, remedy in missing_backends()
        )
        parts = [
            f'<div class="lab-state lab-{kind}"><b>{state}</b><progress max="1" value="{1 - len(left) / total:.3f}" aria-label="progress">'
            f"</progress><span>{words}</span></div>",
            f'<p class="lab-problem" role="alert">{html.escape(problem)}</p>' if problem else "",
            f'<p class="lab-sentence" aria-live="polite">{html.escape(race_view.sentence(known))}</p>',
            f'<ul class="lab-note lab-missing">{missing}</ul>' if missing else "",
        ]
        return "".join(parts)


def detail(store: Store, key: str) -> mo.Html:
    """The chosen cell in full."""
    cells = all_cells(usable_ways())
    chosen = next((cell for cell in cells if race_view.key_of(cell) == key), None)
    standing = standings([chosen], store.records(KIND)).get(chosen) if chosen is not None else None
    floor = None
    if chosen is not None and (known := ceilings(chosen.way, store)) is not None:
        calls = 1.0 if chosen.way.backend != "jax-epoch" else chosen.batch_size / N_TRAIN
        floor = step_floor(NETWORK, chosen.batch_size, known, chosen.way.backend, calls)
    text = race_view.detail(standing, floor)
    if standing is not None:
        text += (
            f'<figure class="lab-figure">{mo.as_html(Chart(race_view.blocks_chart(standing), "epochs")).text}</figure>'
        )
    return mo.Html(f'<div class="race-detail">{text}</div>')
