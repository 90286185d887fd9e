"""Where marimo and the traps meet."""

import html
from functools import partial

import marimo as mo

from lib.backends.registry import DEFAULT, Runtime, unavailable
from lib.experiments import traps
from lib.experiments.anatomy_of_a_step import AnatomyTask
from lib.experiments.background import BackgroundTask
from lib.experiments.peak_rates import ceilings
from lib.hardware.machine import this_machine
from lib.pages import layout
from lib.pages.streaming import Stage, button, paint_while_it_runs, refuse, say, stop_button
from lib.pages.url_state import Address, Setting, by_name, checked, choice
from lib.spec import BATCH_SIZES
from lib.storage.records import Kind
from lib.views import recorded_gpus
from lib.views import traps as view
from lib.workers.notes import State
from lib.workers.queue import Request, Urgency


def settings() -> dict[str, Setting]:
    """What the controls may say."""
    devices = [device for device in ("cpu", "gpu") if unavailable(Runtime(DEFAULT, device)) is None]
    return by_name(choice("traps.size", 32, BATCH_SIZES), choice("traps.device", "cpu", devices))


def panel(address: Address, stage: Stage) -> mo.ui.dictionary:
    """Batch size, device where there are two, and the two buttons."""
    save, known = address.save("traps"), settings()
    size, device = known["traps.size"], known["traps.device"]
    elements = {
        "size": mo.ui.slider(
            steps=list(BATCH_SIZES),
            value=address.read(size),
            label="Batch size",
            show_value=True,
            debounce=True,
            full_width=True,
        ),
        "device": mo.ui.dropdown(list(device.options), value=address.read(device), label="Device"),
        "stop": stop_button(stage),
        "again": button("Measure again", "Measure all of it anew"),
    }
    return mo.ui.dictionary(
        elements, on_change=lambda values: save({name: values[name] for name in ("size", "device")})
    )


def show(stage: Stage, panel: mo.ui.dictionary, controls: mo.Html) -> None:
    """Show the traps for this batch size: what is kept, or what is measured now."""
    try:
        values = checked(settings(), "traps", panel.value)
    except ValueError as error:
        return refuse(stage, controls.text, error)
    task = traps.task_of(values["device"], values["size"])
    asked = (task, values["again"])
    again = bool(stage.asked) and stage.asked[-1] != values["again"]
    if stage.running is None or stage.asked != asked:
        cached = stage.store.records(Kind.ANATOMY)
        complete = len(view.pairs(traps.measurements(task, cached))) == len(view.TRAPS) and not again
        stage.asked, stage.began_with = asked, (cached, complete)
        engine, store, request = stage.engine, stage.store, Request(urgency=Urgency.NOW)
        stage.begin(lambda cancel: traps.measure(task, complete, engine, store, cancel, request))
    assert stage.running is not None, "begun above"
    paint_while_it_runs(stage, stage.running, partial(_paint, stage, stage.running, task, controls.text))


def _paint(stage: Stage, running: BackgroundTask, task: AnatomyTask, controls: str) -> int:
    now = running.view()
    cached, complete = stage.began_with
    found = traps.measurements(task, [*cached, *now.items])
    known = view.pairs(found)
    state = State.SAVED if complete and now.state is State.DONE else now.state
    words = now.note or f"{len(known)} of {len(view.TRAPS)} traps"
    ceiling = ceilings(task.runtime, stage.store)
    sentence = " ".join(
        filter(None, [view.sentence(known), view.occupancy(found, task.runtime.device) if known else ""])
    )
    table = view.traps_table(
        known,
        traps.NETWORK,
        task.examination.batch_size,
        ceiling.product_flops_per_s if ceiling else None,
        this_machine().cores,
    )
    figure = mo.as_html(view.traps_chart(known)).text
    result = (
        '<figure class="lab-figure"><figcaption>one step of 784→128→10 by JAX: every sample, and the'
        f" median</figcaption>{figure}</figure>"
        + layout.state_line(state, len(known), len(view.TRAPS), words, now.problem)
        + (f'<p class="lab-sentence" aria-live="polite">{html.escape(sentence)}</p>' if sentence else "")
    )
    mo.output.replace(
        mo.Html(
            layout.page(controls, result).text
            + (table if known else "")
            + layout.disturbed(list(task.found([*cached, *now.items]).values()))
            + layout.quiet(recorded_gpus.step_note())
        )
    )
    if now.over:
        say(sentence)
    return now.version
