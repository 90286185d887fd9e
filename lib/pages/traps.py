"""Connects the traps to marimo: batch size and device, what is measured for them, and how it is drawn."""

from functools import partial

import marimo as mo

from lib.experiments import traps
from lib.experiments.anatomy_of_a_step import AnatomyTask
from lib.experiments.background import BackgroundTask
from lib.experiments.peak_rates import ceilings
from lib.hardware.machine import this_machine
from lib.pages import layout
from lib.pages.controls import Controls, dropdown, slider
from lib.pages.stage import Stage, button, stop_button
from lib.pages.streaming import paint_while_it_runs, painted, refuse
from lib.pages.url_state import Address, Setting
from lib.spec import BATCH_SIZES
from lib.storage.records import Kind, Record
from lib.storage.store import Store
from lib.views import recorded_gpus
from lib.views import traps as view
from lib.workers.queue import Request, Urgency


def _controls() -> Controls:
    usable = {view.device_label(one): one for one in traps.devices()}
    return Controls(
        slider("traps.size", "Batch size", 32, BATCH_SIZES),
        dropdown("traps.device", "Device", "cpu", usable, full_width=True),
    )


def settings() -> dict[str, Setting]:
    """What the controls may say, by name."""
    return _controls().settings


def panel(address: Address, stage: Stage) -> mo.ui.dictionary:
    """Batch size and device, as the address says, and the two buttons."""
    return _controls().panel(address, stop=stop_button(stage), again=button("Measure again", "Measure all of it anew"))


def show(stage: Stage, panel: mo.ui.dictionary, controls: mo.Html) -> None:
    """Show the traps for this batch size and device: what is stored, or what is measured now."""
    try:
        values = _controls().checked(panel.value)
    except ValueError as error:
        return refuse(stage, controls.text, error)
    task = traps.task_of(values["device"], values["size"])

    def make(again: bool):
        cached = stage.store.records(Kind.ANATOMY)
        complete = len(view.pairs(traps.measurements(task, cached))) == len(view.TRAPS) and not again
        return (cached, complete), partial(traps.measure, task, complete)

    running = stage.begin_if_new(task, values["again"], Request(stage.viewer, Urgency.NOW), make)
    paint_while_it_runs(stage, running, partial(_paint, stage.store, running, task, *stage.began_with, controls.text))


def _paint(
    store: Store, running: BackgroundTask, task: AnatomyTask, cached: list[Record], complete: bool, controls: str
) -> int:
    now, device = running.view(), task.runtime.device
    records = [*cached, *now.items]
    found = traps.measurements(task, records)
    known = view.pairs(found)
    words = now.note or f"{len(known)} of {len(view.TRAPS)} traps"
    ceiling = ceilings(task.runtime, store)
    sentence = f"{view.sentence(known)} {view.occupancy(found, device) if known else ''}".strip()
    table = view.traps_table(
        known,
        traps.NETWORK,
        task.examination.batch_size,
        ceiling.product_flops_per_s if ceiling else None,
        this_machine().cores,
    )
    caption = f"one step of 784→128→10 by {view.step_of(device)}: every sample, and the median"
    result = (
        layout.framed(caption, view.traps_chart(known))
        + layout.state_line(layout.saved_or(now.state, complete), len(known), len(view.TRAPS), words, now.problem)
        + layout.said(sentence)
    )
    below = (
        (table if known else "")
        + layout.disturbed(list(task.found(records).values()))
        + layout.software([task.runtime])
        + layout.quiet(view.missing_note(traps.no_adapter()))
        + layout.quiet(recorded_gpus.step_note())
    )
    return painted(now, layout.page(controls, result).text + below, sentence)
