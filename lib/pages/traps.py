"""The traps: batch size and device, what is measured for them, and how it is drawn."""

from lib.experiments import traps
from lib.experiments.anatomy_of_a_step import AnatomyTask
from lib.experiments.peak_rates import ceilings
from lib.hardware.machine import this_machine
from lib.pages import layout
from lib.pages.lab import Drawing, Shown
from lib.pages.panel import Controls, dropdown, slider
from lib.spec import BATCH_SIZES
from lib.views import recorded_gpus
from lib.views import traps as view


class Traps(Controls):
    """Of the one section."""

    size = slider("Batch size", 32, BATCH_SIZES)
    device = dropdown(
        "Device", "cpu", lambda: {view.device_label(one): one for one in traps.devices()}, full_width=True
    )


def tasks(at: Traps) -> list[AnatomyTask]:
    """What is measured."""
    return traps.tasks(at.device, at.size)


def draw(shown: Shown) -> Drawing:
    """Every sample of every wrong way beside the right one."""
    *_, task = shown.tasks
    found = traps.measurements(task, shown.records)
    known, runtime = view.pairs(found), task.runtime
    ceiling = ceilings(runtime, shown.section.page.store)
    peak_flops_per_s = ceiling.product_flops_per_s if ceiling else None
    sentence = f"{view.sentence(known)} {view.occupancy(found, runtime.device) if known else ''}".strip()
    caption = f"one step of 784→128→10 by {view.step_of(runtime.device)}: every sample, and the median"
    table = view.traps_table(known, traps.NETWORK, shown.at.size, peak_flops_per_s, this_machine().cores)
    return Drawing(
        layout.framed(caption, view.traps_chart(known))
        + shown.state_line(len(known), len(view.TRAPS), "traps")
        + layout.said(sentence),
        sentence,
        (table if known else "")
        + layout.disturbed(list(task.found(shown.records).values()))
        + layout.software([runtime])
        + layout.quiet(view.missing_note(traps.no_adapter()))
        + layout.quiet(recorded_gpus.step_note()),
    )
