"""Input pipelines: times, bottlenecks and remedies; TensorFlow's placement and models; the articles' advice."""

import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

from lib.formatting import counted, factor, justified, listed, seconds
from lib.labs.operations_and_feeds.operations import OPERATIONS, state_line
from lib.model.backends.registry import DEVICES, Runtime, unavailable, versions
from lib.model.hardware.machine import free_memory_bytes
from lib.model.hardware.nvidia import cards
from lib.model.spec import Network
from lib.sweeps.experiments.anatomy_of_a_step import stored
from lib.sweeps.experiments.published import CREATING_ARTICLE, SLOWER_ARTICLE
from lib.sweeps.experiments.recorded_machines import Machine, named, recorded_gpus
from lib.sweeps.experiments.single_operations import (
    NETWORK,
    Figures,
    PipelineTask,
    measure_pipelines,
    pipeline_tasks,
    recorded_figures,
)
from lib.sweeps.storage.records import Kind, Record, current
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Note
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.comparison import Comparison, Verdict, compared
from lib.timing.diagnosis import INPUT_SHARE
from lib.timing.measurement import Measurement
from lib.timing.profiling.first_use import FRESH, REPEATED
from lib.timing.profiling.request import FEEDS, Examination, Pipeline
from lib.ui import layout
from lib.ui.controls import Controls, dropdown, slider
from lib.ui.lab import Asked, Drawing, Hook, Section, Shown, Work
from lib.ui.views.chart import Chart, alt, kept_free, names_y, pd, room, row_color, styled
from lib.ui.views.markup import inline, legend, on_demand, table

ROWS = (10, 100, 1_000, 10_000, 100_000)
SIZES = (10, 32, 128, 512, 2_048)
PREPROCESSING_MS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
LOCK = {"compiled code, which releases the lock": False, "Python, which holds the lock": True}
SHARE_OF_MEMORY = 0.5
WORKS, WAITS, ALONE = "#3a72d8", "#d1623a", "currentColor"
_KEYS = (
    (f"3px solid {WORKS}", "the step runs"),
    (f"3px solid {WAITS}", "it waits for its data"),
    (f"3px solid {ALONE}", "upright mark: the data set alone"),
)
HOW = (
    "Medians of up to nine rounds, fewer for slow batches. Each round times the step alone, the data set alone and both"
    " together on some batches, after the first two of a fresh iterator. The step is one call of Keras' compiled step,"
    " or PyTorch's eager one, and its loss is read each time, so that nothing is queued. It waits from the request for"
    " the next batch until that arrives. The preprocessing is a hash of the image's bytes in compiled code, which"
    " releases the interpreter's lock, or a loop over them in Python, which holds it; both leave the image unchanged"
    " and repeat until they take the chosen time on one otherwise idle core. “arrays” are sliced in the loop;"
    " “generator” and “PyDataset” are read as Keras' fit reads them; “tf.data” maps image by image, then makes batches;"
    " each variant differs from it in one way, and AUTOTUNE maps in parallel and prefetches."
)


# Sentences on a training's bottleneck.
BY_DATA = "It is bound by its data."
BY_STEP = "It is bound by the step: faster data would make little difference."
UNCLEAR = "Which of the two bounds it is unclear: measure again when nothing else runs."


class Feeds(Controls):
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

    @property
    def pipeline(self) -> Pipeline:
        return Pipeline(self.look, self.rows, self.size, self.ms, self.lock)


def by_feeds(store: Store) -> tuple[Callable[[Feeds], Asked], Callable[[Shown], Drawing]]:
    @cache  # so that memory is checked before a measurement, not while it uses some
    def chosen(at: Feeds) -> Pipeline:
        needed_bytes, free_bytes = at.pipeline.needed_bytes, free_memory_bytes()
        if needed_bytes > SHARE_OF_MEMORY * free_bytes:
            raise ValueError(
                f"rows: expected at most {SHARE_OF_MEMORY:.0%} of the free memory ({free_bytes / 1e9:.1f} GB), got"
                f" {at.rows:,} rows, which need up to {needed_bytes / 1e9:.1f} GB with the libraries' copies; choose"
                " fewer rows"
            )
        return at.pipeline

    def ask(at: Feeds) -> Asked:
        wanted = pipeline_tasks(chosen(at), at.device)

        def make(again: bool) -> tuple[tuple, Work]:
            cached = store.records(Kind.PIPELINE)
            todo = wanted if again else [task for task in wanted if not task.found(cached)]
            return (wanted, cached, not todo), partial(measure_pipelines, todo)

        return Asked(tuple(wanted), make)

    return ask, _draw


def _draw(shown: Shown) -> Drawing:
    wanted, mine = shown.tasks, shown.at.pipeline
    records = [one for one in shown.records if isinstance(one, Record)]
    raised = dict(item for item in shown.now.items if isinstance(item, tuple))
    pipelines, found = [task.pipeline for task in wanted], known(wanted, records)
    helps = remedy(mine, found)
    text = feeds_sentence(mine, found, helps)
    caption = f"a batch of {mine.batch_size:,} images, {mine.preprocessing_ms:g} ms of preprocessing each"
    result = (
        layout.sentence(text)
        + layout.figure(caption, feeds_chart(pipelines, found))
        + legend(_KEYS)
        + state_line(shown, len(found) + len(raised), len(wanted), f"{len(found)} of {len(wanted)} feeds")
        + raised_list(raised)
        + on_demand("How this was measured", f"<p>{HOW}</p>")
        + "".join(map(recorded_feeds, recorded_gpus()))
    )
    below = layout.disturbed([record for task in wanted for record in task.latest(records).values()])
    below += _not_here(mine, wanted)
    return Drawing(result, text, below)


def recorded_feeds(machine: Machine) -> str:
    figures = recorded_figures(machine.records)
    charts = ""
    for size, ms in sorted({(one.pipeline.batch_size, one.pipeline.preprocessing_ms) for one in figures}):
        found = {f.pipeline: f for f in figures if (f.pipeline.batch_size, f.pipeline.preprocessing_ms) == (size, ms)}
        caption = f"a batch of {size:,} images, {ms:g} ms of preprocessing each"
        charts += layout.framed(caption, feeds_chart(list(found), found))
    return on_demand(f"On a GPU: {named(machine)}", charts) if charts else ""


def _not_here(mine: Pipeline, wanted: Sequence[PipelineTask]) -> str:
    there = {task.runtime.backend for task in wanted}
    missing = {backend: unavailable(Runtime(backend)) for backend in FEEDS if backend not in there}
    notes = [f"{Runtime(backend).label}: {why.reason}; {why.remedy}." for backend, why in missing.items() if why]
    if mine.feed not in {task.pipeline.feed for task in wanted}:
        notes.append(f"“{mine.label}” cannot be measured here; choose another feed.")
    return layout.quiet(" ".join(notes))


# Bottlenecks and remedies.


def known(todo: Sequence[PipelineTask], records: Sequence[Record]) -> dict[Pipeline, Figures]:
    return {task.pipeline: found for task in todo if (found := task.found(records)) is not None}


def bound(figures: Figures) -> str:
    _, low, high = figures.share
    if low > INPUT_SHARE:
        return BY_DATA
    return BY_STEP if high <= INPUT_SHARE else UNCLEAR


def remedy(chosen: Pipeline, known: Mapping[Pipeline, Figures]) -> Pipeline | None:
    """The fastest of the same library's feeds that certainly beat a pipeline bound by its data; None without one."""
    if (here := known.get(chosen)) is None or bound(here) != BY_DATA:
        return None
    mine = next(names for names in FEEDS.values() if chosen.feed in names)
    faster = [
        figures
        for pipeline, figures in known.items()
        if pipeline.feed in mine and difference(figures, here).verdict is Verdict.FASTER
    ]
    return min(faster, key=lambda one: one.both.median_s).pipeline if faster else None


def difference(one: Figures, other: Figures) -> Comparison:
    """Compares seconds per batch of the same size, first over second."""
    return compared(one.both.step_s, other.both.step_s, paired=False)


# Chart, table and sentences.


def feeds_chart(pipelines: Sequence[Pipeline], known: Mapping[Pipeline, Figures]) -> Chart:
    bars, marks = [], []
    for one in (known[pipeline] for pipeline in pipelines if pipeline in known):
        label, both_ms, share = one.pipeline.label, 1e3 * one.both.median_s, one.share[0]
        works_ms = (1 - share) * both_ms
        bars += [
            {"label": label, "part": "the step runs", "from": 0.0, "to": works_ms, "color": WORKS},
            {"label": label, "part": "the step waits", "from": works_ms, "to": both_ms, "color": WAITS},
        ]
        low, high, data_low, data_high = (1e3 * value for value in (*one.both.quartiles_s, *one.data.quartiles_s))
        marks.append(
            {
                "label": label,
                "both": both_ms,
                "low": low,
                "high": high,
                "text": f"{justified(one.both.median_s, *one.both.quartiles_s)} · waits {share:.0%}",
                "data": 1e3 * one.data.median_s,
                "data_low": data_low,
                "data_high": data_high,
                "step": 1e3 * one.step.median_s,
                "first": one.first.median_s,
                "per_s": one.pipeline.batch_size / one.both.median_s,
            }
        )
    most = max((max(row["high"], row["data_high"]) for row in marks), default=10.0)
    y = names_y([pipeline.label for pipeline in pipelines], 150, domain=False, ticks=False)
    scale = alt.Scale(domain=[0, 1.02 * most], nice=False)

    def x(name: str) -> "alt.X":
        return alt.X(f"{name}:Q", scale=scale, title="ms per batch", axis=alt.Axis(format=".3~g", tickCount=4))

    columns = ["label", "both", "low", "high", "text", "data", "data_low", "data_high", "step", "first", "per_s"]
    drawn = alt.Chart(pd.DataFrame(bars, columns=["label", "part", "from", "to", "color"]))
    marked = alt.Chart(pd.DataFrame(marks, columns=columns))
    told = {
        "data": "data set alone, ms",
        "step": "step alone, ms",
        "both": "both together, ms",
        "per_s": "images per s",
        "first": "first batch after, s",
    }
    tips = [alt.Tooltip(f"{end}:Q", title=f"{end} ms", format=".3~g") for end in ("from", "to")]
    column = {"align": "left", "dx": 8, "fontSize": 11, "fontWeight": 600}
    layers = [
        drawn.mark_bar(height=13, opacity=0.85).encode(
            x=x("from"), x2="to:Q", y=y, color=row_color(), tooltip=["label:N", "part:N", *tips]
        ),
        marked.mark_rule(strokeWidth=1.5, color=ALONE).encode(x=x("low"), x2="high:Q", y=y),
        marked.mark_rule(strokeWidth=5, opacity=0.25, color=ALONE).encode(x=x("data_low"), x2="data_high:Q", y=y),
        marked.mark_tick(thickness=2.5, size=19, color=ALONE).encode(
            x=x("data"),
            y=y,
            tooltip=["label:N", *(alt.Tooltip(f"{of}:Q", format=",.3~g", title=t) for of, t in told.items())],
        ),
        marked.mark_text(**column, color="currentColor").encode(x=alt.value("width"), y=y, text="text:N"),
        kept_free(**column),
    ]
    spec = styled(alt.layer(*layers), height=26 * max(1, len(pipelines)))
    spec["datasets"] |= {"room": room(["88.8 ms · waits 88%"])}
    return Chart(spec, "milliseconds per batch by feed")


def raised_list(raised: Mapping[Pipeline, str]) -> str:
    rows = "".join(f"<li><b>{html.escape(one.label)}</b>: {html.escape(why)}.</li>" for one, why in raised.items())
    return f'<ul class="lab-note lab-missing">{rows}</ul>' if rows else ""


def feeds_sentence(chosen: Pipeline, known: Mapping[Pipeline, Figures], remedy: Pipeline | None) -> str:
    if (here := known.get(chosen)) is None:
        return ""
    share, low, high = here.share
    both, data, step = (justified(one.median_s, *one.quartiles_s) for one in (here.both, here.data, here.step))
    ends = f"{low:.0%} to {high:.0%}" if (low, high) != (0.0, 1.0) else "too few rounds for an interval"
    text = (
        f"With “{chosen.label}”, a batch of {chosen.batch_size:,} takes {both}; for {share:.0%} of that"
        f" ({ends}) the step waits. {bound(here)} Alone, the data set takes {data} a batch and the step"
        f" {step}."
    )
    if remedy is not None:
        found = difference(known[remedy], here)
        cached = ", if the images are the same in each epoch" if remedy.feed == "cache" else ""
        gain = factor(1 / found.ratio, 1 / found.high, 1 / found.low)
        return f"{text} What would help: “{remedy.label}”{cached}, {gain} times as fast."
    return f"{text} No other feed is certainly faster here." if bound(here) == BY_DATA else text


TENSORFLOW = "keras-tensorflow"
MODELS = (NETWORK, Network((4_096, 4_096)))  # small and large
STAGES = {
    "import": "import Keras and TensorFlow",
    "device": "first operation on the device",
    "build": "build a model",
    "clone": "clone it",
    "step": "first step, traced and compiled",
}
Created = dict[Network, dict[str, Measurement]]  # by the rows' names


def placement_device() -> str:
    return "cpu" if unavailable(Runtime(TENSORFLOW, "gpu")) is not None else "gpu"


def by_tensorflow(store: Store, question: str) -> tuple[Callable[[Controls], Asked], Callable[[Shown], Drawing]]:
    networks, _, _, draw = QUESTIONS[question]
    device, why = placement_device(), unavailable(Runtime(TENSORFLOW))

    def ask(_at: Controls) -> Asked:
        def make(again: bool) -> tuple[tuple, Work]:
            known = answered(store.records(Kind.PIPELINE), question, device)
            todo = [one for one in networks if why is None and (again or one not in known)]
            return (not todo,), partial(measure, question, todo, device)

        return Asked(device, make)

    def drawn(shown: Shown) -> Drawing:
        if why is not None:
            return Drawing(layout.quiet(f"Not measured: {why.reason}; {why.remedy}."), "")
        known = answered(store.records(Kind.PIPELINE), question, device)
        sentence, content = draw(known)
        line = state_line(shown, len(known), len(networks), "")
        return Drawing(layout.sentence(sentence) + content + line, sentence)

    return ask, drawn


def subject_of(question: str, network: Network, device: str) -> dict[str, str | int | float]:
    return {**Runtime(TENSORFLOW, device).subject, "hidden": network.label, question: 1}


def answered(records: Sequence[Record], question: str, device: str) -> Created:
    """The latest valid measurements of each of a question's networks that are complete."""
    networks, _, needed, _ = QUESTIONS[question]
    found = {}
    for network in networks:
        subject = subject_of(question, network, device)
        latest = current(records, Kind.PIPELINE, subject, Runtime(TENSORFLOW, device))
        rows = {str(record.subject["name"]): record.measurement for record in latest}
        if needed <= rows.keys():
            found[network] = rows
    return found


def measure(
    question: str,
    networks: Sequence[Network],
    device: str,
    engine: Engine,
    store: Store,
    cancel: Cancel,
    request: Request,
) -> Iterator[Record | Note]:
    """Ask TensorFlow about each of these networks, and store its answers.

    Raises:
        TrainingFailed: TensorFlow could not be asked; the text says why.
    """
    runtime, (_, doing, _, _) = Runtime(TENSORFLOW, device), QUESTIONS[question]
    for network in networks:
        subject = subject_of(question, network, device)
        messages = engine.examine(runtime, Examination(question, network), cancel, request)
        yield from stored(messages, store, Kind.PIPELINE, subject, versions(runtime), f"{network.label}: {doing}")


# Where operations run.


def placement(found: Created) -> dict[str, int]:
    """Counts by the names of `with_tensorflow.measure_placement`; empty without an answer."""
    return {name: round(one.median_s) for rows in found.values() for name, one in rows.items()}


def _operations(placed: Mapping[str, int]) -> list[tuple[str, str, list[str], int]]:
    """Each operation with the device it ran on, the devices with kernels for it, and its count per step."""
    parts = [(name.split("/"), count) for name, count in sorted(placed.items()) if name.count("/") == 2]
    return [(operation, device, kernels.split(), count) for (operation, device, kernels), count in parts]


def placement_table(placed: Mapping[str, int]) -> str:
    rows = [
        [f"<code>{html.escape(operation)}</code>", str(count), device, html.escape(_why(device, kernels, placed))]
        for operation, device, kernels, count in _operations(placed)
    ]
    return table(["operation", "in a step", "ran on", "why there"], rows, "anatomy-parts") if rows else ""


def _why(device: str, kernels: Sequence[str], placed: Mapping[str, int]) -> str:
    reasons = {
        "it has a GPU kernel, which TensorFlow prefers": device == "GPU",
        "this is TensorFlow's CPU build, which sees no GPU": not placed.get("cuda", 0),
        "it has no GPU kernel": "GPU" not in kernels,
        "it has a GPU kernel, but TensorFlow sees no GPU": not placed.get("gpus", 0),
        "it has a GPU kernel, but works on data in the host's memory": True,
    }
    return next(why for why, holds in reasons.items() if holds)


def placement_sentence(placed: Mapping[str, int]) -> str:
    ran = _operations(placed)
    counts = {device: sum(n for _, where, _, n in ran if where == device) for _, device, _, _ in ran}
    if not counts:
        return ""
    gpus = placed.get("gpus", 0)
    parts = [f"{count} on the {device}" for device, count in sorted(counts.items())]
    where = f"all on the {next(iter(counts))}" if len(counts) == 1 else listed(parts)
    seen = f"it sees {counted(gpus, 'GPU')}" if gpus else "it sees no GPU"
    return (
        f"TensorFlow ran the {sum(counts.values())} operations of a step, including fetching a batch, {where}; {seen}."
        " A data set's map function runs on the CPU, wherever the step runs."
    )


def draw_placement(found: Created) -> tuple[str, str]:
    placed = placement(found)
    rows = on_demand("Operation by operation", placement_table(placed)) if placed else ""
    return placement_sentence(placed), rows


# Building and cloning a model.


def models_table(found: Created) -> str:
    columns = (f"{html.escape(network.label)}: {when}" for network in found for when in ("first time", "again"))
    rows = [
        [label]
        + [
            f"{measured[name].median_s:#.3g}" if name in measured else "–"
            for measured in found.values()
            for name in (stage, f"{stage} again")
        ]
        for stage, label in STAGES.items()
    ]
    return table(["seconds in a fresh process", *columns], rows) if found else ""


def models_sentence(found: Created) -> str:
    said = []
    for network, measured in found.items():
        before, first, again = (
            seconds(sum(measured[name].median_s for name in names))
            for names in (("import", "device"), ("build", "clone", "step"), REPEATED)
        )
        said.append(
            f"784→{network.label}→10 ({network.n_parameters:,} parameters): a model can be built after {before};"
            f" building, cloning and the first step take {first}, and {again} the second time."
        )
    if len(found) == 2:
        small, large = found.values()
        ratio = compared(large["clone again"].step_s, small["clone again"].step_s, paired=False)
        if ratio.verdict in (Verdict.SLOWER, Verdict.FASTER):
            said.append(f"Cloning the large one takes {ratio.text} times as long.")
    return " ".join(said)


# By the kind of examination: networks to ask about, what is being done, the names of a complete answer's rows, and the
# answer as a sentence and as HTML.
QUESTIONS: dict[str, tuple[Sequence[Network], str, set[str], Callable[[Created], tuple[str, str]]]] = {
    "placement": ((NETWORK,), "where TensorFlow places the operations of a step", {"gpus"}, draw_placement),
    "model": (
        MODELS,
        "importing TensorFlow, building and cloning a model in a fresh process",
        {*FRESH, *REPEATED},
        lambda found: (models_sentence(found), models_table(found)),
    ),
}


class Checklist(Controls):
    AGAIN = ()


class WhenMeasured(Hook):
    def ended(self, section: Section) -> None:
        self.page.sections["advice"].redraw()


def draw_checklist(shown: Shown, feed: Feeds) -> Drawing:
    records, where = shown.section.page.store.records(Kind.PIPELINE), placement_device()
    registered = placement(answered(records, "placement", where)).get("gpus") if where == "gpu" else 0
    found, created = all_figures(records, feed.device), answered(records, "model", where).get(NETWORK, {})
    return Drawing("", "", checklist(found, feed.pipeline, len(cards()), registered, created))


PANELS = OPERATIONS | {"feed": Feeds, "placement": Controls, "models": Controls, "advice": Checklist}


def all_figures(records: Sequence[Record], device: str) -> list[Figures]:
    """The latest valid figures of every pipeline measured alone on this device, whatever its settings."""
    return [
        figures
        for backend in FEEDS
        for figures in recorded_figures(
            current(records, Kind.PIPELINE, {"backend": backend, "device": device}, Runtime(backend, device))
        )
    ]


def checklist(
    figures: Sequence[Figures],
    chosen: Pipeline,
    present: int,
    registered: int | None,
    created: Mapping[str, Measurement],
) -> str:
    """HTML: each piece of advice next to the measurements made here.

    Args:
        figures: All measured pipelines.
        chosen: The reader's pipeline.
        present: GPUs that the driver lists.
        registered: GPUs that TensorFlow can use; None if it was not asked.
        created: Times of building a Keras model, by name; empty if not measured.
    """
    known = {one.pipeline: one for one in figures}
    warm = ""
    if created:
        first, later = (seconds(created[name].median_s) for name in ("step", "step again"))
        warm = f"The first step of Keras takes {first} in a fresh process, later ones {later}."
    measured = {
        ("Larger batches, where a step is short", SLOWER_ARTICLE): _batches(figures, chosen),
        ("`tf.data` with prefetch", SLOWER_ARTICLE): _beside(known, chosen, "prefetch"),
        ("Less preprocessing in Python", SLOWER_ARTICLE): _preprocessing(known.get(chosen)),
        ("The operations that matter run on the GPU", SLOWER_ARTICLE): _registered(present, registered),
        ("Benchmark after warming up", SLOWER_ARTICLE): warm,
        ("Prefetch and parallel calls by AUTOTUNE", CREATING_ARTICLE): _beside(known, chosen, "autotune"),
    }
    rows = [
        [f"{inline(text)}<br><small>{html.escape(source)}</small>", html.escape(words) or "not measured yet"]
        for (text, source), words in measured.items()
    ]
    return table(["advice", "measured here"], rows, "claims")


def _batches(figures: Sequence[Figures], chosen: Pipeline) -> str:
    steps = {one.pipeline.batch_size: one.step for one in figures if one.pipeline.feed == chosen.feed}
    parts = [f"{seconds(step.median_s / size)} an image at batch size {size:,}" for size, step in sorted(steps.items())]
    more = "; change the batch size to see another" if len(parts) == 1 else ""
    return f"The step alone: {listed(parts)}{more}." if parts else ""


def _beside(known: Mapping[Pipeline, Figures], chosen: Pipeline, feed: str) -> str:
    plain, other = (known.get(replace(chosen, feed=name)) for name in ("tf.data", feed))
    if plain is None or other is None:
        return ""
    found = difference(other, plain)
    return (
        f"“{other.pipeline.label}” takes {found.text} times as long as “{plain.pipeline.label}”: {found.verdict.value}."
    )


def _preprocessing(here: Figures | None) -> str:
    if here is None:
        return ""
    if not here.pipeline.preprocessing_ms:
        return "There is none at 0 ms an image."
    lock = (
        "Python, which holds the interpreter's lock" if here.pipeline.holds_lock else "compiled code without the lock"
    )
    return f"{seconds(here.preprocessing.median_s)} an image, in {lock}."


def _registered(present: int, registered: int | None) -> str:
    if not present:
        return "No NVIDIA driver responds: everything runs on the CPU."
    seen = "" if registered is None else f"; TensorFlow sees {registered}"
    return f"The driver lists {counted(present, 'GPU')}{seen}."
