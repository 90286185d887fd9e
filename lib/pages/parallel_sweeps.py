"""Where marimo and the notebook on sweeps meet: three experiments, each with its controls, its task and its painter."""

import html
from collections.abc import Callable
from functools import partial

import marimo as mo

from lib.backends.registry import DEFAULT, Runtime, unavailable
from lib.experiments import parallel_sweeps
from lib.experiments.background import BackgroundTask
from lib.experiments.parallel_sweeps import COUNTS, Compared, Mixed, Point
from lib.hardware.optional import free_memory_bytes
from lib.pages import layout
from lib.pages.streaming import Stage, paint_while_it_runs, refuse, say
from lib.pages.url_state import Address, Setting, by_name, checked, choice
from lib.spec import BATCH_SIZES
from lib.views import parallel_sweeps as view
from lib.views import recorded_gpus
from lib.views.chart import Chart
from lib.workers.notes import State
from lib.workers.queue import Request, Urgency

SPREADS = tuple(round(0.1 * k, 1) for k in range(11))


def _button(label: str, tooltip: str, on_click: Callable[[int], int] = lambda n: n + 1) -> mo.ui.button:
    return mo.ui.button(label=label, value=0, on_click=on_click, tooltip=tooltip)


def _stop(stage: Stage) -> mo.ui.button:
    return _button("Stop", "Stop; what is measured is kept", lambda n: stage.stop() or n + 1)


def settings() -> dict[str, Setting]:
    """What the controls of the three experiments may say."""
    devices = [device for device in ("cpu", "gpu") if unavailable(Runtime(DEFAULT, device)) is None]
    return by_name(
        choice("compare.epochs", 3, tuple(range(1, 11))),
        choice("count.most", 32, COUNTS[1:]),
        choice("count.size", 32, BATCH_SIZES),
        choice("count.device", "cpu", devices),
        choice("mixed.spread", 0.3, SPREADS),
        choice("mixed.size", 32, BATCH_SIZES),
    )


def _slider(label: str, setting: Setting, address: Address) -> mo.ui.slider:
    steps, value = list(setting.options), address.read(setting)
    return mo.ui.slider(steps=steps, value=value, label=label, show_value=True, debounce=True, full_width=True)


def _dictionary(elements: dict, prefix: str, address: Address) -> mo.ui.dictionary:
    save = address.save(prefix)
    buttons = ("stop", "again")
    return mo.ui.dictionary(
        elements, on_change=lambda values: save({name: v for name, v in values.items() if name not in buttons})
    )


def _request(stage: Stage) -> Request:
    """With the page they come in its order; a control that is moved later goes first."""
    return Request(stage.viewer, Urgency.NOW if stage.asked else Urgency.IN_ORDER)


def _begin_if_asked(stage: Stage, asked: tuple, make: Callable) -> BackgroundTask:
    """The task for these settings: the one that is there, or a new one in its place, made from a cancel and a claim."""
    if stage.running is None or stage.asked != asked:
        request = _request(stage)
        stage.asked = asked
        stage.begin(lambda cancel: make(cancel, request))
    assert stage.running is not None, "begun above"
    return stage.running


def _draw(controls: str, figures: list[tuple[str, Chart | str]], line: str, sentence: str, below: str = "") -> None:
    drawn = "".join(
        layout.figure(caption, figure)
        if isinstance(figure, Chart)
        else f'<figure class="lab-figure"><figcaption>{html.escape(caption)}</figcaption>{figure}</figure>'
        for caption, figure in figures
    )
    mo.output.replace(layout.page(controls, drawn + line + layout.sentence(sentence) + below))


# The article's comparison.


def comparison_panel(address: Address, stage: Stage) -> mo.ui.dictionary:
    elements = {
        "epochs": _slider("Epochs of each of five rates", settings()["compare.epochs"], address),
        "again": _button("Time Keras too", "Time what is missing, Keras too: that takes a minute or more"),
        "stop": _stop(stage),
    }
    return _dictionary(elements, "compare", address)


def comparison(stage: Stage, panel: mo.ui.dictionary, controls: mo.Html) -> None:
    """Show what is kept for this number of epochs; measure the rest when asked."""
    try:
        values = checked(settings(), "compare", panel.value)
    except ValueError as error:
        return refuse(stage, controls.text, error)
    epochs, pressed = values["epochs"], values["again"]
    cached = parallel_sweeps.compared(stage.store, epochs)
    missing = [method for method in parallel_sweeps.methods() if method.key not in cached]
    asked = (epochs, pressed)
    if stage.running is None or stage.asked != asked:
        with_keras = bool(stage.asked) and pressed != stage.asked[1]
        todo = [method for method in missing if with_keras or not method.key.startswith("keras")]
        stage.began_with = (cached, bool(todo))
        engine, store, request = stage.engine, stage.store, _request(stage)
        stage.asked = asked
        stage.begin(lambda cancel: parallel_sweeps.compare(todo, epochs, engine, store, cancel, request))
    assert stage.running is not None, "begun above"
    paint_while_it_runs(
        stage, stage.running, partial(_paint_comparison, stage.running, *stage.began_with, epochs, controls.text)
    )


def _paint_comparison(running: BackgroundTask, cached: dict, began: bool, epochs: int, controls: str) -> int:
    now = running.view()
    known = cached | {item.method: item.record for item in now.items if isinstance(item, Compared)}
    methods = parallel_sweeps.methods()
    state = State.SAVED if not began and now.state is State.DONE else now.state
    words = now.note or f"{len(known)} of {len(methods)} strategies timed, once each"
    if now.state is State.DONE and len(known) < len(methods):
        words += "; Keras takes a minute or more: press “Time Keras too”"
    figure = view.comparison_chart(methods, known)
    sentence = view.comparison_sentence(known, epochs)
    caption = f"five learning rates, {epochs} epochs each, batch size 32, evaluation included"
    below = view.disturbance([flag for record in known.values() for flag in record.warnings])
    line = layout.state_line(state, len(known), len(methods), words, now.problem)
    _draw(controls, [(caption, figure)], line, sentence, below + view.published_table(known))
    if now.over:
        say(sentence)
    return now.version


# More and more networks.


def count_panel(address: Address, stage: Stage) -> mo.ui.dictionary:
    known = settings()
    device = known["count.device"]
    elements = {
        "most": _slider("Networks at once, up to", known["count.most"], address),
        "size": _slider("Batch size", known["count.size"], address),
        "device": mo.ui.dropdown(list(device.options), value=address.read(device), label="Device"),
        "stop": _stop(stage),
        "again": _button("Measure again", "Measure all of it once more; the spread is drawn"),
    }
    return _dictionary(elements, "count", address)


def saturation(stage: Stage, panel: mo.ui.dictionary, controls: mo.Html) -> None:
    """Measure what is not kept for these sliders, and draw it as it comes."""
    try:
        values = checked(settings(), "count", panel.value)
    except ValueError as error:
        return refuse(stage, controls.text, error)
    most, size, device = values["most"], values["size"], values["device"]
    engine, store = stage.engine, stage.store
    again = bool(stage.asked) and stage.asked[-1] != values["again"]
    free_bytes = free_memory_bytes()
    running = _begin_if_asked(
        stage,
        (most, size, device, values["again"]),
        lambda cancel, request: parallel_sweeps.saturation(
            most, size, engine, store, cancel, request, device, free_bytes, again
        ),
    )
    paint_while_it_runs(stage, running, partial(_paint_saturation, running, most, controls.text))


def _paint_saturation(running: BackgroundTask, most: int, controls: str) -> int:
    now = running.view()
    points = [item for item in now.items if isinstance(item, Point)]
    total = 3 * len([count for count in COUNTS if count <= most]) - 2
    words = now.note or f"{len(points)} points"
    sentence = view.saturation_sentence(points) if now.over else ""
    figure = view.saturation_chart(points, most)
    line = layout.state_line(now.state, total if now.over else len(points), total, words, now.problem)
    below = view.disturbance([flag for point in points for flag in point.disturbed]) + layout.quiet(
        recorded_gpus.models_note()
    )
    _draw(controls, [("milliseconds of an epoch, for each network", figure)], line, sentence, below)
    if now.over:
        say(sentence)
    return now.version


# More and more different networks.


def mixed_panel(address: Address, stage: Stage) -> mo.ui.dictionary:
    known = settings()
    elements = {
        "spread": _slider("How different: 0 all alike, 1 from 16 to 512 neurons", known["mixed.spread"], address),
        "size": _slider("Batch size", known["mixed.size"], address),
        "stop": _stop(stage),
        "again": _button("Measure again", "Measure all of it once more"),
    }
    return _dictionary(elements, "mixed", address)


def mixed(stage: Stage, panel: mo.ui.dictionary, controls: mo.Html) -> None:
    """Eight networks, padded or not."""
    try:
        values = checked(settings(), "mixed", panel.value)
    except ValueError as error:
        return refuse(stage, controls.text, error)
    spread, size = values["spread"], values["size"]
    engine, store = stage.engine, stage.store
    again = bool(stage.asked) and stage.asked[-1] != values["again"]
    running = _begin_if_asked(
        stage,
        (spread, size, values["again"]),
        lambda cancel, request: parallel_sweeps.mixed(spread, size, engine, store, cancel, request, again),
    )
    paint_while_it_runs(stage, running, partial(_paint_mixed, running, spread, controls.text))


def _paint_mixed(running: BackgroundTask, spread: float, controls: str) -> int:
    now = running.view()
    found = [item for item in now.items if isinstance(item, Mixed)]
    sentence = view.mixed_sentence(found)
    figures = [
        (
            "neurons of the eight networks, in the width that all are padded to",
            view.shapes_figure(parallel_sweeps.different(spread)),
        ),
        ("seconds of an epoch of all eight, from measured steps", view.mixed_chart(found)),
    ]
    line = layout.state_line(now.state, len(found), 4, now.note or f"{len(found)} strategies", now.problem)
    _draw(controls, figures, line, sentence, view.disturbance([flag for one in found for flag in one.disturbed]))
    if now.over:
        say(sentence)
    return now.version
