"""Connects the claims to marimo: the table, and a button that measures what is missing for it."""

from functools import partial

import marimo as mo

from lib.backends.registry import usable_runtimes
from lib.experiments.background import BackgroundTask
from lib.experiments.claims import CLAIMS, known, measure_missing, progress, stood_on
from lib.pages import layout
from lib.pages.stage import Stage, button, stop_button
from lib.pages.streaming import paint_while_it_runs, say
from lib.storage.records import Record
from lib.views import claims as view
from lib.workers.notes import State
from lib.workers.queue import Request, Urgency


def buttons(stage: Stage) -> mo.ui.dictionary:
    """The buttons that start and stop the measurement."""
    start = button("Measure what is missing", "A few minutes")
    return mo.ui.dictionary({"start": start, "stop": stop_button(stage)})


def show(stage: Stage, panel: mo.ui.dictionary) -> None:
    """Show the table, and, while what is missing is measured, the progress above it."""
    if presses := panel.value["start"]:
        request = Request(stage.viewer, Urgency.NOW)
        stage.begin_if_new("claims", presses, request, lambda _: ((stage.store.records(),), measure_missing))
    if stage.running is None:
        stage.next_showing()
        _draw(stage.store.records())
    else:
        paint_while_it_runs(stage, stage.running, partial(_paint, stage.running, *stage.began_with))


def _paint(running: BackgroundTask[Record], began_with: list[Record]) -> int:
    now = running.view()
    _draw([*began_with, *now.items], now.state, now.note, now.problem)
    return now.version


def _draw(records: list[Record], state: State | None = None, note: str = "", problem: str = "") -> None:
    done, total = progress(records)
    state = state or (State.SAVED if done == total else State.NOT_RUNNING)
    line = layout.state_line(state, done, total, note or f"{done} of {total} measurements are there", problem)
    here = known(usable_runtimes(), records)
    judged = [claim.judge(here) for claim in CLAIMS]
    words = view.sentence(judged)
    mo.output.replace(
        mo.Html(line + layout.said(words) + view.table(CLAIMS, judged) + layout.disturbed(stood_on(records)))
    )
    say(words)
