"""Connects the random search to marimo: its ranges, its buttons, and what is drawn while settings come."""

from collections.abc import Callable
from functools import partial

import marimo as mo
import pandas as pd

from lib.backends.environment_variables import device_count
from lib.backends.registry import DEFAULT, Runtime
from lib.data.own.prepared import Prepared
from lib.experiments.background import BackgroundTask
from lib.experiments.exported_rows import Takeaway, takeaway_of_search
from lib.experiments.own_data import not_used, on, search_on_mnist_too, search_winners, that_fit
from lib.pages import layout
from lib.pages.controls import Controls, backend, dropdown, number, several, slider, span
from lib.pages.stage import Stage, button, stop_button
from lib.pages.streaming import paint_while_it_runs, painted, refuse
from lib.pages.url_state import Address, Setting
from lib.spec import BATCH_SIZES, RATE_STEPS, Training
from lib.storage.records import Curve
from lib.storage.store import Store
from lib.sweeps import random_search
from lib.sweeps.events import Finished, Picked
from lib.sweeps.strategies import AUTO, POOLED, QUICKEST, STRATEGIES, backends_for, quickest_runtime
from lib.views import random_search as view
from lib.views.own_data import COMPARE, COMPARE_MEANS, search_winner_sentence
from lib.views.random_search import Dimension
from lib.workers.engine import Engine
from lib.workers.notes import State
from lib.workers.queue import Request, Urgency

COUNTS = (16, 32, 64, 128, 256, 512, 1024)
EPOCHS = (1, 2, 3, 4, 6, 8, 16)
WIDTHS = (16, 32, 64, 128, 256, 512)
DEPTHS = (1, 2, 3, 4)
MAX_SEED = 9999
BUTTONS = ("stop", "again", "mnist")  # of the panel: what they say is no setting


def _strategies() -> dict[str, str]:
    """Those that can be chosen here, by their names on the page."""
    found = {"chosen by measuring": AUTO} | {
        s.label: key for key, s in STRATEGIES.items() if key != "cluster" and {DEFAULT, QUICKEST} & {*backends_for(s)}
    }
    alone = device_count("cpu") < 2
    return {label: key for label, key in found.items() if not (alone and key in ("sharded", *POOLED))}


def _controls() -> Controls:
    usual = random_search.Space()
    return Controls(
        slider("search.count", "Settings", 64, COUNTS),
        slider("search.epochs", "Epochs", 3, EPOCHS),
        span("search.rates", "Learning rates", usual.rates, RATE_STEPS),
        several("search.sizes", "Batch sizes", usual.batch_sizes, BATCH_SIZES),
        several("search.widths", "Neurons of a layer", usual.widths, WIDTHS),
        several("search.depths", "Hidden layers", usual.depths, DEPTHS),
        number("search.seed", "Drawn with seed", 0, 0, MAX_SEED, whole=True),
        backend("search.backend", quickest_runtime().backend),
        dropdown("search.strategy", "Strategy", AUTO, _strategies(), full_width=True),
    )


def settings() -> dict[str, Setting]:
    """What the controls of the search may say, by name."""
    return _controls().settings


def panel(address: Address, stage: Stage) -> mo.ui.dictionary:
    """What is drawn from, how many settings, how they are trained, and the two buttons."""
    return _controls().panel(
        address,
        stop=stop_button(stage, "Stop; what is trained is saved"),
        again=button("Search", "Train the settings that are not saved yet"),
        mnist=button(COMPARE, COMPARE_MEANS),
    )


def trainings_of(values: dict, own: Prepared | None = None) -> list[Training]:
    """The settings that the controls ask for, on MNIST or on data that somebody brought, for which batch sizes that are
    larger than the data are left out; the same values give the same settings.

    Raises:
        ValueError: The values cannot be used; the text is a sentence for the person.
    """
    space = random_search.Space(
        (values["rates"][0], values["rates"][1]),
        that_fit(own, values["sizes"]),
        tuple(values["widths"]),
        tuple(values["depths"]),
    )
    drawn = random_search.draw(space, values["count"], values["epochs"], values["seed"])
    return [on(own, training) for training in drawn]


def show(
    stage: Stage,
    panel: mo.ui.dictionary,
    controls: mo.Html,
    own: Prepared | None = None,
) -> None:
    """Show what is stored of these settings, and train the rest where “Search” was pressed; a script always trains.

    Args:
        stage: Where it is shown, and whose engine trains.
        panel: From `panel`.
        controls: What moves it, drawn beside the charts.
        own: Data that somebody brought; None: MNIST.
    """
    try:
        values = _controls().checked(panel.value)
        trainings = trainings_of(values, own)
    except ValueError as error:
        return refuse(stage, controls.text, error)
    runtime = on_mnist = Runtime(values["backend"])
    on_what = "" if own is None else f"On {own.about.name}: {own.about.n_train:,} training rows."
    for left_out, reason, _ in not_used(own, [runtime]):
        runtime = Runtime(DEFAULT)
        on_what += f" Trained by {runtime.label}, not by {left_out.label}: {reason}."

    presses = values["again"], values["mnist"]

    def make(again: bool):
        if again and presses[1] != stage.asked[-1][1]:
            return (True,), partial(search_on_mnist_too, trainings, runtime, on_mnist)
        if again or not stage.streams:
            return (True,), partial(random_search.search, trainings, runtime, strategy=values["strategy"])
        return (False,), partial(random_search.cached, trainings, runtime)

    said = repr({name: value for name, value in values.items() if name not in BUTTONS} | {"data": own})
    running = stage.begin_if_new(said, presses, Request(stage.viewer, Urgency.NOW), make)
    menu = ""
    if stage.menu is not None and stage.streams:
        stage.menu.now, menu = partial(_takeaway, running, trainings, stage.engine, own), stage.menu.text
    values |= {"sizes": sorted({training.batch_size for training in trainings}), "runtime": runtime}
    parts = (controls.text, menu, layout.quiet(on_what))
    # Not the stage itself: whatever paints in a thread would keep it, and it ends what runs when nobody has it.
    after = partial(_winner, stage.store, stage.engine, own, on_mnist, panel["mnist"].text)
    paint = partial(_paint, running, *stage.began_with, trainings, values, parts, after)
    paint_while_it_runs(stage, running, paint)


def _winner(
    store: Store,
    engine: Engine,
    own: Prepared | None,
    on_mnist: Runtime,
    button: str,
    done: dict[Training, Curve],
    rows: pd.DataFrame,
    dimensions: list[Dimension],
) -> str:
    """Whether the data change which settings win, and a button that trains them on MNIST where that is not known."""
    if own is None:
        return ""
    found = search_winners(done, own, on_mnist, store, engine.known_facts())
    offer = f'<div class="lab-buttons">{button}</div>' if found.on_mnist is None else ""
    return layout.said(search_winner_sentence(own.about.name, found, rows, dimensions)) + offer


def _dimensions(values: dict) -> list[Dimension]:
    """Those of which more than one value is drawn."""
    found = [
        ("learning_rate", list(values["rates"]), True, False, "learning rate"),
        ("batch_size", values["sizes"], True, True, "batch size"),
        ("width", values["widths"], True, True, "neurons"),
        ("depth", values["depths"], False, True, "hidden layers"),
    ]
    return [
        Dimension(column, min(options), max(options), log, whole, label)
        for column, options, log, whole, label in found
        if min(options) < max(options)
    ]


def _paint(
    running: BackgroundTask,
    trains: bool,
    trainings: list[Training],
    values: dict,
    parts: tuple[str, str, str],
    after: Callable[[dict[Training, Curve], pd.DataFrame, list[Dimension]], str],
) -> int:
    now, done = running.view(), _done(running, trainings)
    picked = next((item for item in now.items if isinstance(item, Picked)), None)
    complete, state = len(done) == len(trainings), now.state
    if not trains and state is not State.FAILED:
        state = State.SAVED if complete else State.NOT_RUNNING
    press = "" if trains or complete else ": press “Search”"
    words = now.note or f"{len(done):,} of {len(trainings):,} settings{press}"
    line = layout.state_line(state, len(done), len(trainings), words, now.problem)
    if picked is not None:
        line += layout.note(f"{picked.why}. {values['runtime'].label}.").text
    rows, dimensions = random_search.search_frame(done), _dimensions(values)
    sentence = view.search_sentence(rows, dimensions) if now.over else ""
    lines = layout.framed("each line a setting; colour is its accuracy", view.parallel_coordinates(rows, dimensions))
    winner = after(done, rows, dimensions) if complete and now.over else ""
    controls, menu, on_what = parts
    return painted(
        now, layout.page(controls, on_what + lines + line + layout.said(sentence) + winner, menu).text, sentence
    )


def _done(running: BackgroundTask, trainings: list[Training]) -> dict[Training, Curve]:
    """The settings that are trained, in the order in which they were drawn."""
    finished = {item.item.training: item.curve for item in running.view().items if isinstance(item, Finished)}
    return {training: finished[training] for training in trainings if training in finished}


def _takeaway(running: BackgroundTask, trainings: list[Training], engine: Engine, own: Prepared | None) -> Takeaway:
    return takeaway_of_search(_done(running, trainings), engine.known_facts() if own is None else own.facts)
