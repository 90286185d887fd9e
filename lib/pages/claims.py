"""Where marimo and the claims meet: the table, and a button that measures what it still needs."""

from collections.abc import Iterator
from functools import partial

import marimo as mo

from lib.backends.registry import unavailable, usable_ways
from lib.experiments.anatomy_of_a_step import measure_tasks
from lib.experiments.backend_race import Cell, plan, race, records_and_notes, records_of
from lib.experiments.background import Filling
from lib.experiments.claims import CELLS, CLAIMS, GPU_CELLS, Judgement, Verdict, anatomy_tasks, known, summary
from lib.pages import layout
from lib.pages.filling import Stage, paint_while_it_fills, say
from lib.storage.records import Record
from lib.storage.store import Store
from lib.views import recorded_gpus
from lib.workers.cancel import Cancel
from lib.workers.engine import Engine
from lib.workers.notes import Note
from lib.workers.queue import Claim, Urgency

_CSS = {Verdict.HOLDS: "holds", Verdict.NOT_HERE: "not-here", Verdict.CORRECTED: "corrected", Verdict.OPEN: "open", Verdict.NO_GPU: "open"}  # fmt: skip


def buttons(stage: Stage) -> mo.ui.dictionary:
    return mo.ui.dictionary(
        {
            "start": mo.ui.button(label="Measure what is missing", value=0, on_click=lambda n: n + 1, tooltip="About two minutes"),
            "stop": mo.ui.button(label="Stop", value=0, on_click=lambda n: stage.stop() or n + 1, tooltip="Stop; what is measured is kept"),
        }
    )  # fmt: skip


def cells_to_visit(records: list[Record]) -> list[Cell]:
    """The race's cells that a claim stands on, and that can be measured here: one visit each."""
    cells = [cell for cell in (*CELLS, *GPU_CELLS) if unavailable(cell.way) is None]
    return plan(cells, [record for record in records if record.kind == "race"], rounds=1)


def measure_missing(engine: Engine, store: Store, cancel: Cancel, claim: Claim) -> Iterator[Record | Note]:
    """What the claims need and the store does not have."""
    records = store.records()
    cells = cells_to_visit(records)
    yield from records_and_notes(race(cells, engine, store, cancel, claim))
    todo = [task for task in anatomy_tasks(usable_ways()) if not task.complete(records)]
    yield from measure_tasks(todo, engine, store, cancel, claim)


def show(stage: Stage, panel: mo.ui.dictionary) -> None:
    """The table, and while it is measured the state above it."""
    starts = int(str(panel.value["start"]))
    if starts and stage.asked != (starts,):
        stage.asked, stage.began_with = (starts,), (stage.store.records(),)
        engine, store, claim = stage.engine, stage.store, Claim(urgency=Urgency.NOW)
        stage.begin(lambda cancel: measure_missing(engine, store, cancel, claim))
    if stage.filling is None:
        stage.next_showing()
        _draw(stage.store.records(), "")
    else:
        paint_while_it_fills(stage, stage.filling, partial(_paint, stage.filling, *stage.began_with))


def _paint(filling: Filling[Record], began_with: list[Record]) -> int:
    now = filling.view()
    records = [*began_with, *now.items]
    done, total = _progress(records)
    words = now.note or f"{done} of {total} measurements are there"
    _draw(records, layout.state_line(now.state, done, total, words, now.problem))
    return now.version


def _progress(records: list[Record]) -> tuple[int, int]:
    """How much of what the claims need is there, and how much that is."""
    wanted = anatomy_tasks(usable_ways())
    cells = [cell for cell in (*CELLS, *GPU_CELLS) if unavailable(cell.way) is None]
    left = len(cells_to_visit(records)) + sum(not task.complete(records) for task in wanted)
    total = len(cells) + len(wanted)
    return total - left, total


def _shown(records: list[Record]) -> list[Record]:
    """Those that a claim stands on."""
    visits = [visit for cell in (*CELLS, *GPU_CELLS) for visit in records_of(cell, records)]
    return visits + [record for task in anatomy_tasks(usable_ways()) for record in task.found(records).values()]


def _draw(records: list[Record], state: str) -> None:
    done, total = _progress(records)
    here = known(usable_ways(), records)
    rows, verdicts, source = [], [], ""
    for claim in CLAIMS:
        judged = claim.judge(here)
        verdicts.append(judged.verdict)
        if claim.source != source:
            source = claim.source
            rows.append(f'<tr class="claim-source"><th colspan="4" scope="colgroup">{layout.inline(source)}</th></tr>')
        rows.append(
            f'<tr><td class="claim-text">{layout.inline(claim.text)}</td><td>{layout.inline(judged.measured)}</td>'
            f'<td><span class="claim claim-{_CSS[judged.verdict]}">{judged.verdict.value}</span><br><small>{judged.verdict.follows_from}</small></td><td class="claim-why">{layout.inline(_why(judged))}</td></tr>'
        )
    words = summary(verdicts)
    state = state or layout.state_line(
        "From store" if done == total else "Not running", done, total, f"{done} of {total} measurements are there"
    )
    mo.output.replace(
        mo.Html(
            f'{state}<p class="lab-sentence" aria-live="polite">{words}</p><div class="lab-scroll"><table class="lab-table claims">'
            "<tr><th>claimed</th><th>measured here, or corrected</th><th>verdict</th><th>why</th></tr>"
            f"{''.join(rows)}</table></div>{layout.disturbed(_shown(records))}"
        )
    )
    say(words)


def _why(judged: Judgement) -> str:
    """The reason, and what recorded cards say where this machine has none."""
    note = recorded_gpus.epoch_note(judged.recorded_at) if judged.recorded_at is not None else ""
    return f"{judged.why} {note}".rstrip()
