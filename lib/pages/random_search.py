"""Where marimo and the random search meet: its ranges, its button, and what is drawn while settings come."""

import html
from functools import partial

import marimo as mo

from lib.backends.registry import DEFAULT, Runtime, device_count
from lib.experiments.background import BackgroundTask
from lib.pages import layout
from lib.pages.streaming import Stage, button, paint_while_it_runs, refuse, say, stop_button
from lib.pages.url_state import Address, Setting, by_name, checked, choice, choices, ends, number
from lib.spec import BATCH_SIZES, RATE_STEPS, Training
from lib.sweeps import random_search
from lib.sweeps.events import Finished, Picked
from lib.sweeps.importance import Dimension, importance
from lib.sweeps.strategies import AUTO, POOLED, STRATEGIES
from lib.sweeps.successive_halving import cost_epochs, rungs
from lib.views import random_search as view
from lib.views.chart import Chart
from lib.workers.notes import State
from lib.workers.queue import Request, Urgency

COUNTS = (16, 32, 64, 128, 256, 512, 1024)
EPOCHS = (1, 2, 3, 4, 6, 8, 16)
WIDTHS = (16, 32, 64, 128, 256, 512)
DEPTHS = (1, 2, 3, 4)
MAX_SEED = 9999
_SAVED = ("count", "epochs", "rates", "sizes", "widths", "depths", "seed", "halving", "strategy")


def _strategies() -> dict[str, str]:
    """Those that can be chosen here, by their names on the page."""
    found = {"chosen by measuring": AUTO} | {s.label: key for key, s in STRATEGIES.items() if key != "cluster"}
    alone = device_count("cpu") < 2
    return {label: key for label, key in found.items() if not (alone and key in ("sharded", *POOLED))}


def settings() -> dict[str, Setting]:
    """What the controls of the search may say."""
    usual = random_search.Space()
    return by_name(
        choice("search.count", 64, COUNTS),
        choice("search.epochs", 3, EPOCHS),
        ends("search.rates", usual.rates, RATE_STEPS),
        choices("search.sizes", usual.batch_sizes, BATCH_SIZES),
        choices("search.widths", usual.widths, WIDTHS),
        choices("search.depths", usual.depths, DEPTHS),
        number("search.seed", 0, 0, MAX_SEED, whole=True),
        choice("search.strategy", AUTO, list(_strategies().values())),
        choice("search.halving", False, (False, True)),
    )


def panel(address: Address, stage: Stage) -> mo.ui.dictionary:
    """What is drawn from, how many, how they are trained, and the two buttons."""
    known, save, strategies = settings(), address.save("search"), _strategies()

    def several(label: str, name: str) -> mo.ui.multiselect:
        setting = known[f"search.{name}"]
        named = {str(option): option for option in setting.options}
        value = [str(option) for option in address.read(setting)]
        return mo.ui.multiselect(named, value=value, label=label, full_width=True)

    def slider(label: str, name: str) -> mo.ui.slider:
        setting = known[f"search.{name}"]
        steps, value = list(setting.options), address.read(setting)
        return mo.ui.slider(steps=steps, value=value, label=label, show_value=True, debounce=True, full_width=True)

    rates, seed = address.read(known["search.rates"]), address.read(known["search.seed"])
    strategy, halving = address.read(known["search.strategy"]), address.read(known["search.halving"])
    elements = {
        "count": slider("Settings", "count"),
        "epochs": slider("Epochs", "epochs"),
        "rates": mo.ui.range_slider(
            steps=list(RATE_STEPS), value=rates, label="Learning rates", show_value=True, full_width=True
        ),
        "sizes": several("Batch sizes", "sizes"),
        "widths": several("Neurons of a layer", "widths"),
        "depths": several("Hidden layers", "depths"),
        "seed": mo.ui.number(0, MAX_SEED, step=1, value=seed, label="Drawn with seed"),
        "strategy": mo.ui.dropdown(
            strategies, value=next(k for k, v in strategies.items() if v == strategy), label="Trained", full_width=True
        ),
        "halving": mo.ui.checkbox(value=halving, label="Stop the worst early"),
        "stop": stop_button(stage, "Stop; what is trained is kept"),
        "again": button("Search", "Train the settings that are not kept yet"),
    }
    return mo.ui.dictionary(elements, on_change=lambda values: save({name: values[name] for name in _SAVED}))


def trainings_of(values: dict) -> list[Training]:
    """What the controls ask for. Raises ValueError with a sentence."""
    space = random_search.Space(
        (values["rates"][0], values["rates"][1]),
        tuple(values["sizes"]),
        tuple(values["widths"]),
        tuple(values["depths"]),
    )
    return random_search.draw(space, values["count"], values["epochs"], values["seed"])


def show(stage: Stage, panel: mo.ui.dictionary, controls: mo.Html) -> None:
    """Show what is kept of these settings; train the rest when asked."""
    try:
        values = checked(settings(), "search", panel.value)
        trainings = trainings_of(values)
    except ValueError as error:
        refuse(stage, controls.text, error)
        return
    pressed = values.pop("again")
    values.pop("stop")
    asked = (repr(sorted(values.items(), key=str)), pressed)
    if stage.running is None or stage.asked != asked:
        trains = (bool(stage.asked) and pressed != stage.asked[1]) or not stage.streams
        stage.asked, stage.began_with = asked, (trains,)
        engine, store, request = stage.engine, stage.store, Request(stage.viewer, Urgency.NOW)
        strategy, halving = str(values["strategy"]), bool(values["halving"])
        if trains:
            stage.begin(
                lambda cancel: random_search.search(trainings, engine, store, cancel, request, strategy, halving)
            )
        else:
            stage.begin(lambda cancel: random_search.cached(trainings, engine, store, cancel, request))
    assert stage.running is not None, "begun above"
    paint_while_it_runs(stage, stage.running, partial(_paint, stage, stage.running, trainings, values, controls.text))


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


def _paint(stage: Stage, running: BackgroundTask, trainings: list[Training], values: dict, controls: str) -> int:
    now = running.view()
    done = {item.index: item.curve for item in now.items if isinstance(item, Finished)}
    picked = next((item for item in now.items if isinstance(item, Picked)), None)
    (trains,) = stage.began_with
    over = now.over
    state = now.state
    if not trains and state is not State.FAILED:
        state = State.SAVED if len(done) == len(trainings) else State.NOT_RUNNING
    words = now.note or f"{len(done):,} of {len(trainings):,} settings" + (
        "" if trains or len(done) == len(trainings) else ": press “Search”"
    )
    line = layout.state_line(state, len(done), len(trainings), words, now.problem)
    if picked is not None:
        line += f'<p class="lab-note">{html.escape(_how(picked, values, len(trainings)))}</p>'
    rows, dimensions = random_search.search_frame(trainings, done), _dimensions(values)
    found = importance(rows, dimensions) if over and dimensions else None
    sentence = view.search_sentence(rows, dimensions, found) if len(rows) and found is not None else ""
    above, below = [], []
    if dimensions:
        above.append(("each line a setting; colour is its accuracy", view.parallel_coordinates(rows, dimensions)))
    if found is not None and len(found):
        below.append(("how much each setting mattered", view.importance_chart(found)))
    if len(done) > 1 and over:
        density = view.curves_density(random_search.losses_frame(trainings, done), trainings[0].epochs, "epoch")
        below.append((density.title, density))
    said = f'<p class="lab-sentence" aria-live="polite">{html.escape(sentence)}</p>' if sentence else ""
    pair = f'<div class="lab-pair">{_figures(below)}</div>' if below else ""
    mo.output.replace(mo.Html(layout.page(controls, _figures(above) + line + said + pair).text))
    if over:
        say(sentence)
    return now.version


def _figures(captioned: list[tuple[str, Chart]]) -> str:
    return "".join(
        f'<figure class="lab-figure"><figcaption>{html.escape(caption)}</figcaption>{mo.as_html(chart).text}</figure>'
        for caption, chart in captioned
    )


def _how(picked: Picked, values: dict, count: int) -> str:
    """How the settings are trained, and why so."""
    text = picked.why if values["strategy"] == AUTO else STRATEGIES[picked.strategy].says
    if values["halving"]:
        plan = rungs(count, values["epochs"])
        stages = ", ".join(f"{rung.settings:,} for {rung.epochs}" for rung in plan)
        saved = count * values["epochs"] / cost_epochs(plan)
        text = (
            f"Successive halving, settings for epochs: {stages}; {saved:.1f} times fewer epochs than all. First: {text}"
        )
    return f"{text}. {Runtime(DEFAULT).label}."
