"""Connects the notebook on input pipelines to marimo: what feeds a step, where it runs, what creating a model takes."""

from collections.abc import Iterator, Sequence
from functools import partial

import marimo as mo

from lib.backends.registry import DEVICES, Runtime, unavailable
from lib.experiments import input_pipeline
from lib.experiments.background import BackgroundTask
from lib.experiments.input_pipeline import (
    MODELS,
    NETWORK,
    PREPROCESSING_MS,
    ROWS,
    SIZES,
    TENSORFLOW,
    PipelineTask,
    Raised,
)
from lib.hardware.optional import free_memory_bytes
from lib.pages import layout
from lib.pages.controls import Controls, checkbox, dropdown, settings_of, slider
from lib.pages.stage import Stage, button, stop_button
from lib.pages.streaming import paint_while_it_runs, painted, refuse
from lib.pages.url_state import Address, Setting
from lib.profiling.request import FEEDS, Pipeline
from lib.storage.records import Kind, Record
from lib.storage.store import Store
from lib.views import input_pipeline as view
from lib.views import recorded_gpus
from lib.views.markup import on_demand
from lib.workers.cancel import Cancel
from lib.workers.queue import Request, Urgency

_LOCK = {"compiled code, which releases the lock": False, "Python, which holds the lock": True}


def _controls() -> Controls:
    feeds = {label: feed for backend in FEEDS for feed, label in FEEDS[backend].items()}
    devices = [one for one in DEVICES if one == "cpu" or unavailable(Runtime(TENSORFLOW, one)) is None]
    return Controls(
        slider("feed.ms", "Preprocessing, ms an image", 0.2, PREPROCESSING_MS),
        dropdown("feed.lock", "Preprocessing by", False, _LOCK, full_width=True),
        slider("feed.size", "Batch size", 32, SIZES),
        slider("feed.rows", "Rows", 1_000, ROWS),
        dropdown("feed.device", "Device", "cpu", devices),
        dropdown("feed.look", "Your pipeline", "tf.data", feeds, full_width=True),
        checkbox("feed.same", "The same images in each epoch", False),
    )


def settings() -> dict[str, Setting]:
    """What the controls may say, by name."""
    return settings_of([_controls()])


def _request(stage: Stage) -> Request:
    """With the page they come in its order; a control that is moved later goes first."""
    return Request(stage.viewer, Urgency.NOW if stage.asked else Urgency.IN_ORDER)


def feeds_panel(address: Address, stage: Stage) -> mo.ui.dictionary:
    """The pipeline's settings, and three buttons."""
    return _controls().panel(
        address,
        apply=button("Apply what would help", "Measure your pipeline and the suggested one in turns"),
        stop=stop_button(stage),
        again=button("Measure again", "Measure all feeds anew"),
    )


def chosen(panel: mo.ui.dictionary) -> tuple[Pipeline, str, bool]:
    """The reader's pipeline, the device, and whether the images are the same in each epoch, as the panel says.

    Raises:
        ValueError: A value cannot be used, or there is not enough memory; the text is a sentence for the person.
    """
    values = _controls().checked(panel.value)
    pipeline = Pipeline(values["look"], values["rows"], values["size"], values["ms"], values["lock"])
    input_pipeline.check_memory(pipeline, free_memory_bytes())
    return pipeline, values["device"], values["same"]


def feeds(stage: Stage, panel: mo.ui.dictionary, controls: mo.Html) -> None:
    """Measure every feed with the panel's settings, and where its button was pressed what would help the reader's."""
    try:
        mine, device, same = chosen(panel)
    except ValueError as error:
        return refuse(stage, controls.text, error)
    wanted = input_pipeline.tasks(mine, device)
    presses = (panel.value["again"], panel.value["apply"])

    def make(pressed: bool):
        before = stage.asked[-1] if pressed else presses
        again, applied = (one != other for one, other in zip(presses, before, strict=True))
        cached = stage.store.records(Kind.PIPELINE)
        todo = wanted if again else [task for task in wanted if not task.found(cached)]
        then = partial(_applied, wanted, mine, stage.store, same) if applied else lambda: None
        return (cached, not todo and not applied), partial(input_pipeline.measure, todo, then)

    running = stage.begin_if_new(tuple(wanted), presses, _request(stage), make)
    paint = partial(_paint_feeds, running, wanted, mine, same, *stage.began_with, controls.text)
    paint_while_it_runs(stage, running, paint)


def _applied(wanted: Sequence[PipelineTask], mine: Pipeline, store: Store, same: bool) -> PipelineTask | None:
    """The reader's pipeline and what would help it, to be measured in turns; None where nothing would."""
    known = input_pipeline.known(wanted, store.records(Kind.PIPELINE))
    return _pair(wanted, mine, input_pipeline.remedy(mine, known, same))


def _pair(wanted: Sequence[PipelineTask], mine: Pipeline, remedy: Pipeline | None) -> PipelineTask | None:
    runtime = next((task.runtime for task in wanted if task.pipelines == (mine,)), None)
    return PipelineTask(runtime, (mine, remedy)) if runtime is not None and remedy is not None else None


def _paint_feeds(
    running: BackgroundTask,
    wanted: Sequence[PipelineTask],
    mine: Pipeline,
    same: bool,
    cached: list[Record],
    complete: bool,
    controls: str,
) -> int:
    now = running.view()
    records = [*cached, *(item for item in now.items if isinstance(item, Record))]
    raised = {item.pipeline: item.why for item in now.items if isinstance(item, Raised)}
    pipelines = [task.pipelines[0] for task in wanted]
    known = input_pipeline.known(wanted, records)
    remedy = input_pipeline.remedy(mine, known, same)
    pair = _pair(wanted, mine, remedy)
    sentence = view.sentence(mine, known, remedy, same)
    applied = view.applied_sentence(pair.found(records)) if pair is not None else ""
    words = now.note or f"{len(known)} of {len(wanted)} feeds"
    caption = f"a batch of {mine.batch_size:,} images, {mine.preprocessing_ms:g} ms of preprocessing each"
    result = (
        layout.figure(caption, view.feeds_chart(pipelines, known))
        + view.legend()
        + layout.state_line(
            layout.saved_or(now.state, complete), len(known) + len(raised), len(wanted), words, now.problem
        )
        + layout.sentence(sentence)
        + layout.said(applied)
        + view.raised_list(raised)
        + on_demand("Table", view.feeds_table(pipelines, known, raised))
        + on_demand("How this was measured", f"<p>{_HOW}</p>")
    )
    below = layout.disturbed([record for task in wanted for record in task.latest(records).values()])
    below += _not_here(mine, wanted) + layout.quiet(recorded_gpus.feeds_note())
    return painted(now, layout.page(controls, result).text + below, f"{sentence} {applied}".strip())


_HOW = (
    "Medians of up to nine rounds, in each of which the step alone, the data set alone and both together are timed on"
    " some batches, after the first two of a fresh iterator; slow batches have fewer rounds. The step is one call of"
    " Keras' compiled step, or PyTorch's eager one, and its loss is read each time, so that nothing is queued. It waits"
    " while the next batch is asked for and not there yet. The preprocessing is a hash of the image's bytes, by"
    " compiled code that releases the interpreter's lock, or a loop over them in Python, which holds it; both leave the"
    " image as it is, and are repeated as often as makes the chosen time on one core that nothing else uses. “arrays”"
    " are sliced in the loop; “generator” and “PyDataset” are read as Keras' fit reads them; “tf.data” maps image by"
    " image, and then makes batches; each variant differs from it in one thing, and AUTOTUNE maps in parallel"
    " and prefetches."
)


def _not_here(mine: Pipeline, wanted: Sequence[PipelineTask]) -> str:
    """HTML: the libraries whose feeds are missing, and how to get them."""
    there = {task.runtime.backend for task in wanted}
    missing = {backend: unavailable(Runtime(backend)) for backend in FEEDS if backend not in there}
    notes = [f"{Runtime(backend).label}: {why.reason}; {why.remedy}." for backend, why in missing.items() if why]
    if mine.feed not in {task.pipelines[0].feed for task in wanted}:
        notes.append(f"“{mine.label}” cannot be measured here; choose another feed.")
    return layout.quiet(" ".join(notes))


# Where operations run, and what creating a model takes.


def small_panel(stage: Stage) -> mo.ui.dictionary:
    """Two buttons."""
    return mo.ui.dictionary({"stop": stop_button(stage), "again": button("Measure again", "Measure it anew")})


def placement(stage: Stage, panel: mo.ui.dictionary, controls: mo.Html) -> None:
    """Run one step, and show where TensorFlow placed its operations."""
    if (why := unavailable(Runtime(TENSORFLOW))) is not None:
        return mo.output.replace(layout.page(controls.text, layout.quiet(f"Not measured: {why.reason}; {why.remedy}.")))
    device = input_pipeline.placement_device()

    def make(again: bool):
        known = {} if again else input_pipeline.placement(stage.store.records(Kind.PIPELINE), device)
        work = partial(input_pipeline.measure_placement, device)
        return (bool(known),), _nothing if known else work

    running = stage.begin_if_new(device, panel.value["again"], _request(stage), make)
    paint_while_it_runs(
        stage, running, partial(_paint_placement, stage.store, running, *stage.began_with, controls.text)
    )


def _nothing(*_: object) -> Iterator[Record]:
    return iter(())


def _paint_placement(store: Store, running: BackgroundTask, complete: bool, controls: str) -> int:
    now = running.view()
    placed = input_pipeline.placement(store.records(Kind.PIPELINE), input_pipeline.placement_device())
    sentence = view.placement_sentence(placed)
    result = layout.state_line(
        layout.saved_or(now.state, complete), int(bool(placed)), 1, now.note, now.problem
    ) + layout.sentence(sentence)
    below = on_demand("Operation by operation", view.placement_table(placed)) if placed else ""
    return painted(now, layout.page(controls, result + below).text, sentence)


def models(stage: Stage, panel: mo.ui.dictionary, controls: mo.Html) -> None:
    """Build and clone a small and a large model, each in a fresh process, and show what that took."""
    if (why := unavailable(Runtime(TENSORFLOW))) is not None:
        return mo.output.replace(layout.page(controls.text, layout.quiet(f"Not measured: {why.reason}; {why.remedy}.")))
    device = input_pipeline.placement_device()

    def make(again: bool):
        known = input_pipeline.models(stage.store.records(Kind.PIPELINE), device)
        todo = [network for network in MODELS if again or network not in known]
        return (not todo,), partial(input_pipeline.measure_models, todo, device)

    running = stage.begin_if_new(device, panel.value["again"], _request(stage), make)
    paint_while_it_runs(stage, running, partial(_paint_models, stage.store, running, *stage.began_with, controls.text))


def _paint_models(store: Store, running: BackgroundTask, complete: bool, controls: str) -> int:
    now = running.view()
    found = input_pipeline.models(store.records(Kind.PIPELINE), input_pipeline.placement_device())
    sentence = view.models_sentence(found)
    result = (
        layout.state_line(layout.saved_or(now.state, complete), len(found), len(MODELS), now.note, now.problem)
        + layout.sentence(sentence)
        + view.models_table(found)
    )
    return painted(now, layout.page(controls, result).text, sentence)


# The checklist.


def checklist(stage: Stage, panel: mo.ui.dictionary, others: Sequence[BackgroundTask | None]) -> None:
    """Show the articles' advice with what was measured, and again when one after another of these tasks has ended."""
    try:
        mine, device, _ = chosen(panel)
    except ValueError:
        return  # the first section says it
    watched = [other for other in others if other is not None]
    running = stage.begin(lambda _engine, _store, cancel, _request: _ends(watched, cancel), _request(stage))
    paint_while_it_runs(stage, running, partial(_paint_checklist, stage.store, running, mine, device))


def _ends(watched: Sequence[BackgroundTask], cancel: Cancel) -> Iterator[int]:
    """A number when one after another of these has ended."""
    for number, task in enumerate(watched):
        while not task.wait_for_end(0.5):
            if cancel.is_set():
                return
        yield number


def _paint_checklist(store: Store, running: BackgroundTask, mine: Pipeline, device: str) -> int:
    now = running.view()
    records = store.records(Kind.PIPELINE)
    figures = input_pipeline.all_figures(records, device)
    placed = input_pipeline.placement(records, input_pipeline.placement_device())
    present, registered = input_pipeline.gpus()
    if registered is None and input_pipeline.placement_device() == "gpu":
        registered = placed.get("gpus")
    created = input_pipeline.models(records, input_pipeline.placement_device()).get(NETWORK)
    return painted(now, view.checklist(figures, mine, device, present, registered, created), "")
