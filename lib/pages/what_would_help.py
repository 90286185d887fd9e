"""Connects the remedies to marimo: what is trained, what would help it, and a button for each remedy."""

from functools import partial

import marimo as mo

from lib.experiments import what_would_help
from lib.experiments.background import BackgroundTask, Watched
from lib.experiments.calibration import Trained
from lib.experiments.live_calibration import LiveCalibrations, ways
from lib.experiments.what_would_help import Applied, Findings
from lib.formatting import sentence
from lib.pages import layout
from lib.pages.controls import Controls, dropdown, number, runtime, settings_of, slider, text
from lib.pages.live_calibration import controls as calibration_controls
from lib.pages.live_calibration import live
from lib.pages.stage import Stage, button, stop_button
from lib.pages.streaming import paint_figures, paint_while_it_runs, refuse
from lib.pages.url_state import Address, Setting
from lib.prediction.question import MOST_NETWORKS, Question
from lib.prediction.remedies import Remedy
from lib.spec import BATCH_SIZES, Network
from lib.storage.store import Store
from lib.views import what_would_help as view
from lib.views.markup import quiet
from lib.workers.notes import State
from lib.workers.queue import Request, Urgency

CALIBRATIONS = "known"  # prefix of the settings of their panel
USUAL = "jax-step/cpu"
# Each remedy's button, by its name in the panel; the table has them.
BUTTONS = {f"apply_{one.name.lower()}": one for one in Remedy}


def _controls() -> Controls:
    offered = {one.label: one.address for one in ways() if not one.together}
    usual = USUAL if USUAL in offered.values() else next(iter(offered.values()))
    return Controls(
        text("remedy.hidden", "Hidden layers", "128", Network.parse, "256, 128, 64"),
        slider("remedy.size", "Batch size", 32, BATCH_SIZES),
        dropdown("remedy.by", "Trained today by", usual, offered, True),
        number("remedy.networks", "Networks to be trained", 8, 1, MOST_NETWORKS, whole=True),
    )


def settings() -> dict[str, Setting]:
    """What the controls may say, by name."""
    return settings_of([_controls(), calibration_controls(CALIBRATIONS)])


def panel(address: Address, stage: Stage) -> mo.ui.dictionary:
    """What is trained and how, a button for each remedy, and the two others."""
    buttons = {
        name: button(view.NAMES[remedy], "Apply it, and measure a step with it and without")
        for name, remedy in BUTTONS.items()
    }
    again = button("Measure all", "Apply each remedy, and measure a step with it")
    return _controls().panel(address, **buttons, stop=stop_button(stage), again=again)


def news(stage: Stage) -> Watched:
    """What changes whenever the calibrations of the stage's store do, or what is measured on the stage."""
    found = Watched(State.MEASURING)
    live(stage).followed_by(found)
    return found


def show(stage: Stage, changes: Watched, panel: mo.ui.dictionary, controls: mo.Html) -> None:
    """Show what each remedy is predicted to do, and measure those whose buttons were pressed; a script measures all.

    Args:
        stage: Where it is measured.
        changes: From `news`.
        panel: From `panel`.
        controls: Its elements, without `BUTTONS`.
    """
    try:
        values = _controls().checked(panel.value)
        question = Question(Network.parse(values["hidden"]), values["size"], networks=values["networks"])
    except ValueError as error:
        return refuse(stage, controls.text, error)
    by, calibrations = Trained(runtime(values["by"])), live(stage)
    asked, presses = (question, by), tuple(values[name] for name in (*BUTTONS, "again"))

    def make(pressed: bool):
        chosen = _chosen(stage, asked, presses) if pressed else [] if stage.streams else list(Remedy)
        return (chosen,), partial(what_would_help.apply, question, by, chosen, calibrations)

    running = stage.begin_if_new(asked, presses, Request(stage.viewer, Urgency.NOW), make)
    running.followed_by(changes)
    buttons = {remedy: panel[name].text for name, remedy in BUTTONS.items()}
    (chosen,) = stage.began_with
    paint = partial(_paint, stage.store, changes, running, calibrations, question, by, chosen, controls.text, buttons)
    paint_while_it_runs(stage, running, paint, changes)


def _chosen(stage: Stage, asked: tuple, presses: tuple) -> list[Remedy]:
    """What is measured now: the remedies that were waited for, and those whose buttons were pressed since."""
    counts = [one != before for one, before in zip(presses, stage.asked[-1], strict=True)]
    pressed = [remedy for remedy, new in zip([*BUTTONS.values()], counts, strict=False) if new or counts[-1]]
    if stage.asked[0] != asked or stage.running is None:
        return pressed
    now = stage.running.view()
    done = [item.remedy for item in now.items if isinstance(item, Applied)]
    waited_for = [one for one in stage.began_with[0] if one not in done and now.state is not State.STOPPED]
    return list(dict.fromkeys([*waited_for, *pressed]))


def _paint(
    store: Store,
    changes: Watched,
    running: BackgroundTask,
    calibrations: LiveCalibrations,
    question: Question,
    by: Trained,
    chosen: list[Remedy],
    controls: str,
    buttons: dict[Remedy, str],
) -> int:
    version, now = changes.version, running.view()
    found = what_would_help.findings(question, by, calibrations.view().items, store)
    figures = {"how many times as fast each remedy is": view.gains_chart(found.before, found.measured, found.outcomes)}
    done = sum(isinstance(item, Applied) for item in now.items)
    state = now.state
    if not chosen and state is State.DONE:
        state = State.SAVED if any(one.measured for one in found.outcomes) else State.NOT_RUNNING
    words = now.note or view.measured_words(found.outcomes)
    line = layout.state_line(state, done, len(chosen), words, now.problem)
    paint_figures(now, figures, view.legend() + line, _said(found), _below(found, by, buttons), controls)
    return version


def _said(found: Findings) -> str:
    if found.before is None:
        return ""
    return view.remedies_sentence(found.before, found.measured, found.outcomes)


def _below(found: Findings, by: Trained, buttons: dict[Remedy, str]) -> str:
    if found.before is None:
        return layout.problems([sentence(found.problem)])
    return (
        view.remedies_table(found.before, found.measured, found.outcomes, buttons)
        + view.steps_parts(found.before, found.outcomes)
        + layout.problems(view.warnings(found.before, found.outcomes))
        + quiet(view.FAIR)
        + quiet(view.disturbed(found.measured, found.outcomes))
        + layout.software([by.runtime])
    )
