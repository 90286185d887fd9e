"""What feeds a step: every feed timed alone and with the step, what bounds it, and what would help."""

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import cache, partial

import altair as alt
import pandas as pd

from lib.formatting import justified, listed
from lib.labs.operations_and_feeds.operations import state_line
from lib.labs.operations_and_feeds.tensorflow import TENSORFLOW, repeated_cell
from lib.model.backends.registry import DEVICES, Runtime, unavailable
from lib.model.hardware.optional import free_memory_bytes
from lib.sweeps.experiments.single_operations import Figures, PipelineTask, Raised, measure_pipelines, pipeline_tasks
from lib.sweeps.storage.records import Kind, Record
from lib.timing.comparison import Comparison, Verdict, compared
from lib.timing.diagnosis import INPUT_SHARE
from lib.timing.profiling.request import FEEDS, Pipeline
from lib.ui import layout
from lib.ui.lab import Asked, Drawing, Section, Shown
from lib.ui.panel import Controls, checkbox, dropdown, slider
from lib.ui.stage import Work
from lib.ui.views import recorded_gpus
from lib.ui.views.chart import ROW_COLOR, Chart, kept_free, names_y, room, styled
from lib.ui.views.markup import on_demand, table

ROWS = (10, 100, 1_000, 10_000, 100_000)
SIZES = (10, 32, 128, 512, 2_048)
PREPROCESSING_MS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
LOCK = {"compiled code, which releases the lock": False, "Python, which holds the lock": True}
SHARE_OF_MEMORY = 0.5
WORKS, WAITS, ALONE = "#3a72d8", "#d1623a", "currentColor"
HOW = (
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


class Bound(Enum):
    """What a training from a pipeline is bound by, in a sentence."""

    DATA = "It is bound by its data."
    STEP = "It is bound by the step: faster data would hardly be noticed."
    UNCLEAR = "That does not tell which of the two bounds it: measure again when nothing else runs."


class Feeds(Controls):
    AGAIN = "Measure again", "Measure all feeds anew"
    BUTTONS = (("apply", "Apply what would help", "Measure your pipeline and the suggested one in turns"),)
    ms = slider("Preprocessing, ms an image", 0.2, PREPROCESSING_MS)
    lock = dropdown("Preprocessing by", False, LOCK, full_width=True)
    size = slider("Batch size", 32, SIZES)
    rows = slider("Rows", 1_000, ROWS)
    device = dropdown(
        "Device",
        "cpu",
        lambda: [one for one in DEVICES if one == "cpu" or unavailable(Runtime(TENSORFLOW, one)) is None],
    )
    look = dropdown(
        "Your pipeline",
        "tf.data",
        {label: feed for known in FEEDS.values() for feed, label in known.items()},
        full_width=True,
    )
    same = checkbox("The same images in each epoch", False)

    @property
    def pipeline(self) -> Pipeline:
        return Pipeline(self.look, self.rows, self.size, self.ms, self.lock)


def check_memory(pipeline: Pipeline, free_bytes: float) -> None:
    """Refuse rows that do not fit, before any of them is allocated.

    Raises:
        ValueError: They need more than `SHARE_OF_MEMORY` of what is free; the text is a sentence for the person.
    """
    if pipeline.needed_bytes > SHARE_OF_MEMORY * free_bytes:
        raise ValueError(
            f"rows: expected at most {SHARE_OF_MEMORY:.0%} of the free memory ({free_bytes / 1e9:.1f} GB), got"
            f" {pipeline.rows:,} rows, which need up to {pipeline.needed_bytes / 1e9:.1f} GB with the copies of the"
            " libraries; choose fewer rows"
        )


def by_feeds(section: Section) -> tuple[Callable[[Feeds], Asked], Callable[[Shown], Drawing]]:
    """What is stored of every feed with these settings, the measurement of the rest, and how both are drawn."""
    store = section.page.store

    @cache  # memory is looked at before a measurement begins, and not while it takes some of it
    def chosen(at: Feeds) -> Pipeline:
        check_memory(at.pipeline, free_memory_bytes())
        return at.pipeline

    def ask(at: Feeds) -> Asked:
        mine = chosen(at)
        wanted = pipeline_tasks(mine, at.device)

        def make(_again: bool) -> tuple[tuple, Work]:
            def helped() -> PipelineTask | None:
                return _pair(wanted, mine, remedy(mine, known(wanted, store.records(Kind.PIPELINE)), at.same))

            cached, applies = store.records(Kind.PIPELINE), section.pressed("apply")
            todo = wanted if section.pressed("again") else [task for task in wanted if not task.found(cached)]
            then = helped if applies else lambda: None
            return (wanted, cached, not todo and not applies), partial(measure_pipelines, todo, then)

        return Asked(tuple(wanted), make)

    return ask, _draw


def _pair(wanted: Sequence[PipelineTask], mine: Pipeline, other: Pipeline | None) -> PipelineTask | None:
    runtime = next((task.runtime for task in wanted if task.pipelines == (mine,)), None)
    return PipelineTask(runtime, (mine, other)) if runtime is not None and other is not None else None


def _draw(shown: Shown) -> Drawing:
    at, wanted, mine = shown.at, shown.tasks, shown.at.pipeline
    records = [one for one in shown.records if isinstance(one, Record)]
    raised = {item.pipeline: item.why for item in shown.now.items if isinstance(item, Raised)}
    pipelines, found = [task.pipelines[0] for task in wanted], known(wanted, records)
    helps = remedy(mine, found, at.same)
    pair = _pair(wanted, mine, helps)
    text = sentence(mine, found, helps, at.same)
    applied = applied_sentence(pair.found(records)) if pair is not None else ""
    caption = f"a batch of {mine.batch_size:,} images, {mine.preprocessing_ms:g} ms of preprocessing each"
    result = (
        layout.figure(caption, feeds_chart(pipelines, found))
        + _legend()
        + state_line(shown, len(found) + len(raised), len(wanted), f"{len(found)} of {len(wanted)} feeds")
        + layout.sentence(text)
        + layout.said(applied)
        + raised_list(raised)
        + on_demand("Table", feeds_table(pipelines, found, raised))
        + on_demand("How this was measured", f"<p>{HOW}</p>")
    )
    below = layout.disturbed([record for task in wanted for record in task.latest(records).values()])
    below += _not_here(mine, wanted) + layout.quiet(recorded_gpus.feeds_note())
    return Drawing(result, f"{text} {applied}".strip(), below)


def _not_here(mine: Pipeline, wanted: Sequence[PipelineTask]) -> str:
    there = {task.runtime.backend for task in wanted}
    missing = {backend: unavailable(Runtime(backend)) for backend in FEEDS if backend not in there}
    notes = [f"{Runtime(backend).label}: {why.reason}; {why.remedy}." for backend, why in missing.items() if why]
    if mine.feed not in {task.pipelines[0].feed for task in wanted}:
        notes.append(f"“{mine.label}” cannot be measured here; choose another feed.")
    return layout.quiet(" ".join(notes))


# What bounds a pipeline, and what would help.


def known(todo: Sequence[PipelineTask], records: Sequence[Record]) -> dict[Pipeline, Figures]:
    return {found.pipeline: found for task in todo for found in task.found(records)}


def bound(figures: Figures) -> Bound:
    """What holds a pipeline up, by the share that the step waits."""
    _, low, high = figures.share
    if low > INPUT_SHARE:
        return Bound.DATA
    return Bound.STEP if high <= INPUT_SHARE else Bound.UNCLEAR


def remedy(chosen: Pipeline, known: Mapping[Pipeline, Figures], same_each_epoch: bool) -> Pipeline | None:
    """What to put in place of a pipeline, by the figures; None where nothing is known to help.

    Bound by its data: the quickest feed of the same library that is certainly faster; failing that, preprocessing by
    code that releases the interpreter's lock, with `AUTOTUNE` or two workers, where it can then run in parallel. Bound
    by the step: the next larger batch, so that fewer steps pay for what each costs beside its arithmetic.

    Args:
        chosen: The pipeline that is looked at.
        known: Figures of it and of others.
        same_each_epoch: Whether the preprocessing gives the same images in every epoch, so that they may be cached.
    """
    if (here := known.get(chosen)) is None or bound(here) is Bound.UNCLEAR:
        return None
    if bound(here) is Bound.STEP:
        return _larger_batch(chosen)
    mine = next(names for names in FEEDS.values() if chosen.feed in names)
    faster = [
        figures
        for pipeline, figures in known.items()
        if pipeline.feed in mine
        and (same_each_epoch or pipeline.feed != "cache")
        and difference(figures, here, paired=False).verdict is Verdict.FASTER
    ]
    if faster:
        return min(faster, key=lambda one: one.both.median_s).pipeline
    if chosen.holds_lock and chosen.preprocessing_ms:
        return replace(chosen, feed="autotune" if "autotune" in mine else "loader-2", holds_lock=False)
    return None


def _larger_batch(chosen: Pipeline) -> Pipeline | None:
    size = next((size for size in SIZES if chosen.batch_size < size <= chosen.rows), None)
    try:
        return replace(chosen, batch_size=size) if size is not None else None
    except ValueError:  # its preprocessing would take too long
        return None


def difference(one: Figures, other: Figures, paired: bool) -> Comparison:
    """How many times as long the first takes as the second, an image; `paired` where they were measured in turns."""
    return compared(one.image_s, other.image_s, paired)


# Chart, table and sentences.


def feeds_chart(pipelines: Sequence[Pipeline], known: Mapping[Pipeline, Figures]) -> Chart:
    bars, marks = [], []
    for one in (known[pipeline] for pipeline in pipelines if pipeline in known):
        label, both_ms, share = one.pipeline.label, 1e3 * one.both.median_s, one.share[0]
        works_ms = (1 - share) * both_ms
        bars += [
            {"label": label, "part": "the step works", "from": 0.0, "to": works_ms, "color": WORKS},
            {"label": label, "part": "the step waits", "from": works_ms, "to": both_ms, "color": WAITS},
        ]
        low, high, data_low, data_high = (1e3 * value for value in (*one.both.quartiles_s, *one.data.quartiles_s))
        text = f"{justified(one.both.median_s, *one.both.quartiles_s)} · waits {share:.0%}"
        ends = {"low": low, "high": high, "data_low": data_low, "data_high": data_high}
        marks.append({"label": label, "both": both_ms, "text": text, "data": 1e3 * one.data.median_s} | ends)
    most = max((max(row["high"], row["data_high"]) for row in marks), default=10.0)
    y = names_y([pipeline.label for pipeline in pipelines], 150, domain=False, ticks=False)
    scale = alt.Scale(domain=[0, 1.02 * most], nice=False)

    def x(name: str) -> alt.X:
        return alt.X(f"{name}:Q", scale=scale, title="ms per batch", axis=alt.Axis(format=".3~g", tickCount=4))

    columns = ["label", "both", "low", "high", "text", "data", "data_low", "data_high"]
    drawn = alt.Chart(pd.DataFrame(bars, columns=["label", "part", "from", "to", "color"]))
    marked = alt.Chart(pd.DataFrame(marks, columns=columns))
    tips = [alt.Tooltip(f"{end}:Q", title=f"{end} ms", format=".3~g") for end in ("from", "to")]
    column = {"align": "left", "dx": 8, "fontSize": 11, "fontWeight": 600}
    layers = [
        drawn.mark_bar(height=13, opacity=0.85).encode(
            x=x("from"), x2="to:Q", y=y, color=ROW_COLOR, tooltip=["label:N", "part:N", *tips]
        ),
        marked.mark_rule(strokeWidth=1.5, color=ALONE).encode(x=x("low"), x2="high:Q", y=y),
        marked.mark_rule(strokeWidth=5, opacity=0.25, color=ALONE).encode(x=x("data_low"), x2="data_high:Q", y=y),
        marked.mark_tick(thickness=2.5, size=19, color=ALONE).encode(
            x=x("data"), y=y, tooltip=["label:N", alt.Tooltip("data:Q", format=".3~g", title="data set alone, ms")]
        ),
        marked.mark_text(**column, color="currentColor").encode(x=alt.value("width"), y=y, text="text:N"),
        kept_free(**column),
    ]
    spec = styled(alt.layer(*layers), height=26 * max(1, len(pipelines)))
    spec["datasets"] |= {"room": room(["88.8 ms · waits 88%"])}
    return Chart(spec, "milliseconds of a batch, by what feeds it")


def _legend() -> str:
    kinds = ((WORKS, "the step works"), (WAITS, "it waits for its data"), (ALONE, "upright mark: the data set alone"))
    keys = (
        f'<span class="compare-key"><i style="border-top: 3px solid {color}"></i>{html.escape(words)}</span>'
        for color, words in kinds
    )
    return f'<p class="compare-legend">{"".join(keys)}</p>'


def feeds_table(
    pipelines: Sequence[Pipeline], known: Mapping[Pipeline, Figures], raised: Mapping[Pipeline, str]
) -> str:
    head = ["feed", "data set alone", "step alone", "both together", "step waits", "images per s", "first batch after"]
    empty = {pipeline: ["not measured" if pipeline in raised else "–", *[""] * 5] for pipeline in pipelines}
    return table(
        head,
        [[html.escape(one.label), *(_cells(known[one]) if one in known else empty[one])] for one in pipelines],
    )


def _cells(one: Figures) -> list[str]:
    share, low, high = one.share
    waits = f'<span title="{_interval(low, high)}">{share:.0%}</span>'
    return [
        *map(repeated_cell, (one.data, one.step, one.both)),
        waits,
        f"{_images_per_s(one)}",
        repeated_cell(one.first),
    ]


def _images_per_s(one: Figures) -> str:
    return f"{one.pipeline.batch_size / one.both.median_s:,.0f}"


def _interval(low: float, high: float) -> str:
    return f"{low:.0%} to {high:.0%}" if (low, high) != (0.0, 1.0) else "too few rounds for an interval"


def raised_list(raised: Mapping[Pipeline, str]) -> str:
    rows = "".join(f"<li><b>{html.escape(one.label)}</b>: {html.escape(why)}.</li>" for one, why in raised.items())
    return f'<ul class="lab-note lab-missing">{rows}</ul>' if rows else ""


def sentence(
    chosen: Pipeline, known: Mapping[Pipeline, Figures], remedy: Pipeline | None, same_each_epoch: bool
) -> str:
    if (here := known.get(chosen)) is None:
        return ""
    share, low, high = here.share
    both, data, step = (justified(one.median_s, *one.quartiles_s) for one in (here.both, here.data, here.step))
    text = (
        f"With “{chosen.label}” a batch of {chosen.batch_size:,} takes {both}, and for {share:.0%} of that"
        f" ({_interval(low, high)}) the step waits. {bound(here).value} Alone, the data set takes {data} a batch, the"
        f" step {step}."
    )
    if remedy is not None:
        return f"{text} What would help: {_would_help(here, remedy, known)}."
    if bound(here) is Bound.DATA:
        rest = "" if same_each_epoch else "; caching was left out, because the images differ in each epoch"
        return f"{text} No other feed is certainly faster here{rest}."
    return text


def _would_help(here: Figures, remedy: Pipeline, known: Mapping[Pipeline, Figures]) -> str:
    if remedy.batch_size != here.pipeline.batch_size:
        return f"a batch of {remedy.batch_size:,}, so that fewer steps pay for what each costs beside its arithmetic"
    if (there := known.get(remedy)) is not None:
        found = difference(there, here, paired=False)
        cached = ", as the images are the same in each epoch" if remedy.feed == "cache" else ""
        times = f"{found.ratio:.2g} times the time ({found.low:.2g} to {found.high:.2g})"
        return f"“{remedy.label}”{cached}, measured at {times}"
    return f"preprocessing that releases the interpreter's lock, so that “{remedy.label}” can run it in parallel"


def applied_sentence(pair: Sequence[Figures]) -> str:
    if len(pair) < 2:
        return ""
    before, after = pair
    was, now = before.pipeline, after.pipeline
    changes = {
        f"“{now.label}”": now.feed != was.feed,
        f"a batch of {now.batch_size:,}": now.batch_size != was.batch_size,
        "preprocessing that releases the lock": now.holds_lock != was.holds_lock,
    }
    return (
        f"Applied: {listed([change for change, made in changes.items() if made])}, measured in turns with"
        f" “{was.label}”. Per image: {difference(after, before, paired=True).text}; {_images_per_s(after)} images per"
        f" second instead of {_images_per_s(before)}, and the step waits {after.share[0]:.0%} of the time instead of"
        f" {before.share[0]:.0%}."
    )
