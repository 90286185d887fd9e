"""Connects the notebook on sweeps to marimo: three experiments, each with its controls, its task and its painter."""

from functools import partial

import marimo as mo

from lib.experiments import parallel_sweeps
from lib.experiments.background import BackgroundTask
from lib.experiments.parallel_sweeps import COUNTS, Compared, Mixed, Point
from lib.hardware.device_memory import usable_memory_bytes
from lib.pages import layout
from lib.pages.controls import Controls, device, settings_of, slider
from lib.pages.stage import Stage, button, stop_button
from lib.pages.streaming import paint_figures, paint_while_it_runs, refuse
from lib.pages.url_state import Address, Setting
from lib.spec import BATCH_SIZES
from lib.views import parallel_sweeps as view
from lib.views import recorded_gpus
from lib.workers.notes import State
from lib.workers.queue import Request, Urgency

SPREADS = tuple(round(0.1 * k, 1) for k in range(11))


def _panels() -> dict[str, Controls]:
    return {
        "compare": Controls(slider("compare.epochs", "Epochs of each of five rates", 3, range(1, 11))),
        "count": Controls(
            slider("count.most", "Networks at once, up to", 32, COUNTS[1:]),
            slider("count.size", "Batch size", 32, BATCH_SIZES),
            device("count.device"),
        ),
        "mixed": Controls(
            slider("mixed.spread", "How different: 0 all alike, 1 from 16 to 512 neurons", 0.3, SPREADS),
            slider("mixed.size", "Batch size", 32, BATCH_SIZES),
        ),
    }


def settings() -> dict[str, Setting]:
    """What the controls of the three experiments may say, by name."""
    return settings_of(_panels().values())


def _request(stage: Stage) -> Request:
    """With the page they come in its order; a control that is moved later goes first."""
    return Request(stage.viewer, Urgency.NOW if stage.asked else Urgency.IN_ORDER)


# The article's comparison.


def comparison_panel(address: Address, stage: Stage) -> mo.ui.dictionary:
    """The number of epochs, and the two buttons."""
    tooltip = "Time what is missing, Keras too: that takes a minute or more"
    return _panels()["compare"].panel(address, again=button("Time Keras too", tooltip), stop=stop_button(stage))


def comparison(stage: Stage, panel: mo.ui.dictionary, controls: mo.Html) -> None:
    """Show what is stored for this number of epochs, and time the rest; Keras only where its button was pressed."""
    try:
        values = _panels()["compare"].checked(panel.value)
    except ValueError as error:
        return refuse(stage, controls.text, error)
    epochs = values["epochs"]

    def make(with_keras: bool):
        cached = parallel_sweeps.compared(stage.store, epochs)
        todo = [
            method
            for method in parallel_sweeps.methods()
            if method.key not in cached and (with_keras or not method.by_keras)
        ]
        return (cached, bool(todo)), partial(parallel_sweeps.compare, todo, epochs)

    running = stage.begin_if_new(epochs, values["again"], _request(stage), make)
    paint_while_it_runs(stage, running, partial(_paint_comparison, running, *stage.began_with, epochs, controls.text))


def _paint_comparison(running: BackgroundTask, cached: dict, began: bool, epochs: int, controls: str) -> int:
    now = running.view()
    known = cached | {item.method: item.record for item in now.items if isinstance(item, Compared)}
    methods = parallel_sweeps.methods()
    words = now.note or f"{len(known)} of {len(methods)} strategies timed, once each"
    if now.state is State.DONE and len(known) < len(methods):
        words += "; Keras takes a minute or more: press “Time Keras too”"
    return paint_figures(
        now,
        {
            f"five learning rates, {epochs} epochs each, batch size 32, evaluation included": view.comparison_chart(
                methods, known
            )
        },
        layout.state_line(layout.saved_or(now.state, not began), len(known), len(methods), words, now.problem),
        view.comparison_sentence(methods, known, epochs),
        view.disturbance([flag for record in known.values() for flag in record.warnings]) + view.published_table(known),
        controls,
    )


# More and more networks.


def count_panel(address: Address, stage: Stage) -> mo.ui.dictionary:
    """The largest number of networks, the batch size, the device, and the two buttons."""
    again = button("Measure again", "Measure all of it once more; the spread is drawn")
    return _panels()["count"].panel(address, stop=stop_button(stage), again=again)


def saturation(stage: Stage, panel: mo.ui.dictionary, controls: mo.Html) -> None:
    """Measure what is not stored for these controls, and draw it as it comes."""
    try:
        values = _panels()["count"].checked(panel.value)
    except ValueError as error:
        return refuse(stage, controls.text, error)
    most, size, device = values["most"], values["size"], values["device"]
    work = partial(parallel_sweeps.saturation, most, size, device=device, free_bytes=usable_memory_bytes(device))
    running = stage.begin_if_new(
        (most, size, device), values["again"], _request(stage), lambda again: ((), partial(work, again=again))
    )
    paint_while_it_runs(stage, running, partial(_paint_saturation, running, most, controls.text))


def _paint_saturation(running: BackgroundTask, most: int, controls: str) -> int:
    now = running.view()
    points = [item for item in now.items if isinstance(item, Point)]
    total = 3 * len([count for count in COUNTS if count <= most]) - 2
    done, words = total if now.over else len(points), now.note or f"{len(points)} points"
    return paint_figures(
        now,
        {"milliseconds of an epoch, for each network": view.saturation_chart(points, most)},
        layout.state_line(now.state, done, total, words, now.problem),
        view.saturation_sentence(points) if now.over else "",
        view.disturbance([flag for point in points for flag in point.disturbed])
        + layout.quiet(recorded_gpus.models_note()),
        controls,
    )


# More and more different networks.


def mixed_panel(address: Address, stage: Stage) -> mo.ui.dictionary:
    """How different the networks are, the batch size, and the two buttons."""
    again = button("Measure again", "Measure all of it once more")
    return _panels()["mixed"].panel(address, stop=stop_button(stage), again=again)


def mixed(stage: Stage, panel: mo.ui.dictionary, controls: mo.Html) -> None:
    """Time the eight networks, padded or not, and draw it as it comes."""
    try:
        values = _panels()["mixed"].checked(panel.value)
    except ValueError as error:
        return refuse(stage, controls.text, error)
    spread, size = values["spread"], values["size"]
    work = partial(parallel_sweeps.mixed, spread, size)
    running = stage.begin_if_new(
        (spread, size), values["again"], _request(stage), lambda again: ((), partial(work, again=again))
    )
    paint_while_it_runs(stage, running, partial(_paint_mixed, running, spread, controls.text))


def _paint_mixed(running: BackgroundTask, spread: float, controls: str) -> int:
    now = running.view()
    found = [item for item in now.items if isinstance(item, Mixed)]
    shapes = view.shapes_figure(parallel_sweeps.different(spread))
    return paint_figures(
        now,
        {
            "neurons of the eight networks, in the width that all are padded to": shapes,
            "seconds of an epoch of all eight, from measured steps": view.mixed_chart(found),
        },
        layout.state_line(now.state, len(found), 4, now.note or f"{len(found)} strategies", now.problem),
        view.mixed_sentence(found),
        view.disturbance([flag for one in found for flag in one.disturbed]),
        controls,
    )
