"""Where marimo and the anatomy of a step meet: two sliders, what is measured for them, and how it is drawn."""

import html
from functools import partial

import marimo as mo

from lib.backends.registry import Runtime, usable_runtimes
from lib.experiments.anatomy_of_a_step import AnatomyTask, measure_tasks, tasks
from lib.experiments.background import BackgroundTask
from lib.pages import layout
from lib.pages.streaming import Stage, button, paint_while_it_runs, refuse, say, stop_button
from lib.pages.url_state import Address, Setting, by_name, checked, choice, choices
from lib.spec import BATCH_SIZES, Network
from lib.storage.records import Kind
from lib.views import anatomy_of_a_step as view
from lib.views import recorded_gpus
from lib.views.markup import on_demand
from lib.workers.notes import State
from lib.workers.queue import Request, Urgency

WIDTHS = (16, 32, 64, 128, 256, 512, 1024)
ARTICLE = (32, 128)  # batch size and width of the published table


def _runtimes() -> dict[str, str]:
    """The runtimes that can run here, as an address writes them, by their labels."""
    return {runtime.label: f"{runtime.backend}/{runtime.device}" for runtime in usable_runtimes()}


def settings() -> dict[str, Setting]:
    """What the controls may say."""
    runtimes = list(_runtimes().values())
    return by_name(
        choice("step.size", ARTICLE[0], BATCH_SIZES),
        choice("step.width", ARTICLE[1], WIDTHS),
        choices("step.by", runtimes, runtimes),
    )


def panel(address: Address, stage: Stage) -> mo.ui.dictionary:
    """Batch size, width, and the two buttons."""
    save, known, runtimes = address.save("step"), settings(), _runtimes()
    size, width, chosen = (address.read(known[name]) for name in ("step.size", "step.width", "step.by"))
    elements = {
        "size": mo.ui.slider(
            steps=list(BATCH_SIZES), value=size, label="Batch size", show_value=True, debounce=True, full_width=True
        ),
        "width": mo.ui.slider(
            steps=list(WIDTHS),
            value=width,
            label="Neurons of the hidden layer",
            show_value=True,
            debounce=True,
            full_width=True,
        ),
        "by": mo.ui.multiselect(
            runtimes,
            value=[label for label, key in runtimes.items() if key in chosen],
            label="Trained by",
            full_width=True,
        ),
        "stop": stop_button(stage),
        "again": button("Measure again", "Measure all of it anew"),
    }
    return mo.ui.dictionary(
        elements, on_change=lambda values: save({name: values[name] for name in ("size", "width", "by")})
    )


def show(stage: Stage, panel: mo.ui.dictionary, controls: mo.Html) -> None:
    """Show what is kept for these sliders, and measure what is missing."""
    try:
        values = checked(settings(), "step", panel.value)
    except ValueError as error:
        return refuse(stage, controls.text, error)
    size, width = values["size"], values["width"]
    chosen = [Runtime(*key.split("/")) for key in values["by"]]
    wanted = tasks(chosen, Network((width,)), size)
    asked = (size, width, tuple(chosen), values["again"])
    again = bool(stage.asked) and stage.asked[-1] != values["again"]
    if stage.running is None or stage.asked != asked:
        stage.asked = asked
        cached = stage.store.records(Kind.ANATOMY)
        missing = wanted if again else [task for task in wanted if not task.complete(cached)]
        request = Request(urgency=Urgency.NOW)
        store, engine = stage.store, stage.engine
        running = stage.begin(lambda cancel: measure_tasks(missing, engine, store, cancel, request))
        stage.began_with = (cached, not missing)
    else:
        running = stage.running
    cached, complete = stage.began_with
    paint = partial(_paint, running, wanted, cached, complete, size, width, controls.text)
    paint_while_it_runs(stage, running, paint)


def _paint(
    running: BackgroundTask,
    wanted: list[AnatomyTask],
    cached: list,
    complete: bool,
    size: int,
    width: int,
    controls: str,
) -> int:
    now = running.view()
    records = [*cached, *now.items]
    operations = [task for task in wanted if task.examination.kind == "operations"]
    parts = [task for task in wanted if task.examination.kind == "parts"]
    known = view.splits(parts, records)
    done = sum(task.complete(records) for task in wanted)
    words = now.note or (f"{done} of {len(wanted)} examinations" if wanted else "choose at least one backend")
    state = State.SAVED if complete and now.state is State.DONE else now.state
    when = f", measured {max(r.measured_at for r in records)[:16]} UTC" if complete and records else ""
    sentence = view.sentence(known, size)
    figure = view.parts_chart(known, [task.runtime for task in parts])
    result = "".join(
        (
            (
                '<figure class="lab-figure"><figcaption>where a step goes; the mark is the step as it was measured'
                f"</figcaption>{mo.as_html(figure).text}</figure>"
            ),
            layout.state_line(state, done, len(wanted), words + when, now.problem),
            f'<p class="lab-sentence" aria-live="polite">{html.escape(sentence)}</p>' if sentence else "",
            on_demand("the parts, and how each is known", view.experiments_table(parts, records)) if known else "",
        )
    )
    shown = [record for task in wanted for record in task.found(records).values()]
    table = view.operations_table(operations, parts, records, (size, width) == ARTICLE)
    mo.output.replace(
        mo.Html(
            layout.page(controls, result).text
            + mo.md("## Operation by operation").text
            + '<p class="lab-note">One call after another, each waited for; medians, with quartiles on'
            f" hover.</p>{table}" + layout.disturbed(shown) + layout.quiet(recorded_gpus.step_note())
        )
    )
    if now.over:
        say(sentence)
    return now.version
