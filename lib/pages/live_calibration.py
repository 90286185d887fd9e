"""Connects this machine's calibrations to marimo: which ways to train are calibrated, a button to stop, how far it is.

Every page that predicts has one such panel, and watches the same calibrations.
"""

from functools import partial

import marimo as mo

from lib.experiments import live_calibration
from lib.experiments.background import BackgroundTask
from lib.experiments.calibration import Trained
from lib.experiments.live_calibration import LiveCalibrations, live_in, unasked, ways
from lib.pages import layout
from lib.pages.controls import Controls, several
from lib.pages.stage import Stage, button, stop_button
from lib.pages.streaming import paint_while_it_runs, painted, refuse
from lib.pages.url_state import Address
from lib.views import live_calibration as view


def live(stage: Stage) -> LiveCalibrations:
    """The calibrations of the stage's store; sections that predict watch them."""
    return live_in(stage.store.path)


def by_address() -> dict[str, Trained]:
    """This machine's ways to train as an address writes them, such as `numpy/cpu`."""
    return {one.address: one for one in ways()}


def controls(prefix: str) -> Controls:
    """The ways that are calibrated; `prefix` is the page's own, as no two pages share a setting."""
    options = {one.label: written for written, one in by_address().items()}
    return Controls(several(f"{prefix}.ways", "Calibrate", tuple(one.address for one in unasked()), options))


def panel(prefix: str, given: Address, stage: Stage) -> mo.ui.dictionary:
    """The choice of ways, and the two buttons."""
    again = button("Calibrate again", "Measure what is missing, and once more what something disturbed")
    return controls(prefix).panel(given, stop=stop_button(stage), again=again)


def show(prefix: str, stage: Stage, panel: mo.ui.dictionary, shown: mo.Html) -> None:
    """Calibrate the chosen ways, and say how far that is and how good."""
    try:
        values = controls(prefix).checked(panel.value)
    except ValueError as error:
        return refuse(stage, shown.text, error)
    known = by_address()
    chosen = tuple(known[written] for written in values["ways"])
    found = live(stage)

    def make(again: bool):
        done, total = view.progress(found.view().items, chosen)
        return (done == total and not again,), partial(live_calibration.measure, chosen, found, again=again)

    running = stage.begin_if_new(chosen, values["again"], stage.request(), make)
    paint_while_it_runs(stage, running, partial(_paint, running, found, chosen, *stage.began_with, shown.text))


def _paint(
    running: BackgroundTask, found: LiveCalibrations, chosen: tuple[Trained, ...], saved: bool, controls: str
) -> int:
    now, standings = running.view(), found.view().items
    done, total = view.progress(standings, chosen)
    words = f"{done} of {total} steps measured" + (f"; {now.note}" if now.note else "")
    line = layout.state_line(layout.saved_or(now.state, saved), done, total, words, now.problem)
    said = view.calibrated_sentence(standings)
    problems = view.problems(standings, chosen)
    content = line + layout.problems(problems) + layout.sentence(said) + view.calibrations_table(standings)
    return painted(now, layout.page(controls, content).text, " ".join([said, *problems]))
