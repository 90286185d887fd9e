"""Where marimo and the claims meet: the table, and a button that measures what it still needs."""

from functools import partial

import marimo as mo

from lib.backends.registry import usable_runtimes
from lib.experiments.background import BackgroundTask
from lib.experiments.claims import CLAIMS, known, measure_missing, progress, stood_on
from lib.pages import layout
from lib.pages.streaming import Stage, button, paint_while_it_runs, say, stop_button
from lib.storage.records import Record
from lib.views import claims as view
from lib.workers.notes import State
from lib.workers.queue import Request, Urgency


def buttons(stage: Stage) -> mo.ui.dictionary:
    return mo.ui.dictionary(
        {
            "start": button("Measure what is missing", "A few minutes"),
            "stop": stop_button(stage),
        }
    )


def show(stage: Stage, panel: mo.ui.dictionary) -> None:
    """The table, and while it is measured the state above it."""
    starts = int(str(panel.value["start"]))
    if starts and stage.asked != (starts,):
        stage.asked, stage.began_with = (starts,), (stage.store.records(),)
        engine, store, request = stage.engine, stage.store, Request(urgency=Urgency.NOW)
        stage.begin(lambda cancel: measure_missing(engine, store, cancel, request))
    if stage.running is None:
        stage.next_showing()
        _draw(stage.store.records(), "")
    else:
        paint_while_it_runs(stage, stage.running, partial(_paint, stage.running, *stage.began_with))


def _paint(running: BackgroundTask[Record], began_with: list[Record]) -> int:
    now = running.view()
    records = [*began_with, *now.items]
    done, total = progress(records)
    words = now.note or f"{done} of {total} measurements are there"
    _draw(records, layout.state_line(now.state, done, total, words, now.problem))
    return now.version


def _draw(records: list[Record], state: str) -> None:
    done, total = progress(records)
    here = known(usable_runtimes(), records)
    judged = [claim.judge(here) for claim in CLAIMS]
    words = view.sentence(judged)
    state = state or layout.state_line(
        State.SAVED if done == total else State.NOT_RUNNING, done, total, f"{done} of {total} measurements are there"
    )
    table = view.table(CLAIMS, judged)
    mo.output.replace(
        mo.Html(
            f'{state}<p class="lab-sentence" aria-live="polite">{words}</p>{table}{layout.disturbed(stood_on(records))}'
        )
    )
    say(words)
