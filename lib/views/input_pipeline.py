"""What feeds a step, as a reader sees it: bars of working and waiting, tables, sentences, a checklist."""

import html
from collections.abc import Mapping, Sequence

import altair as alt
import pandas as pd

from lib.experiments.input_pipeline import Bound, Figures, difference
from lib.experiments.published import CREATING_ARTICLE, SLOWER_ARTICLE
from lib.formatting import justified, listed, seconds
from lib.profiling.fresh_model import BATCH_SIZE as FRESH_BATCH
from lib.profiling.fresh_model import FRESH, REPEATED
from lib.profiling.request import Pipeline
from lib.spec import Network
from lib.timing.comparison import Verdict, compared
from lib.timing.diagnosis import Finding, Observed, findings
from lib.timing.measurement import Measurement
from lib.views.chart import ROW_COLOR, Chart, kept_free, names_y, room, styled
from lib.views.markup import table

WORKS, WAITS, ALONE = "#3a72d8", "#d1623a", "currentColor"


def feeds_chart(pipelines: Sequence[Pipeline], known: Mapping[Pipeline, Figures]) -> Chart:
    """Milliseconds of a batch by feed: the step's work and its waiting, with the data set alone as a mark.

    Args:
        pipelines: A row each, whether it was measured or not.
        known: Their figures.
    """
    found = [known[pipeline] for pipeline in pipelines if pipeline in known]
    bars, marks = [], []
    for one in found:
        label, both_ms, share = one.pipeline.label, 1e3 * one.both.median_s, one.share[0]
        works_ms = (1 - share) * both_ms
        text = f"{justified(one.both.median_s, *one.both.quartiles_s)} · waits {share:.0%}"
        bars += [
            {"label": label, "part": "the step works", "from": 0.0, "to": works_ms, "color": WORKS},
            {"label": label, "part": "the step waits", "from": works_ms, "to": both_ms, "color": WAITS},
        ]
        low, high = (1e3 * value for value in one.both.quartiles_s)
        data_low, data_high = (1e3 * value for value in one.data.quartiles_s)
        marks.append({"label": label, "both": both_ms, "low": low, "high": high, "text": text})
        marks[-1] |= {"data": 1e3 * one.data.median_s, "data_low": data_low, "data_high": data_high}
    most = max((max(row["high"], row["data_high"]) for row in marks), default=10.0)
    y = names_y([pipeline.label for pipeline in pipelines], 150, domain=False, ticks=False)
    scale = alt.Scale(domain=[0, 1.02 * most], nice=False)

    def x(name: str) -> alt.X:
        return alt.X(f"{name}:Q", scale=scale, title="ms per batch", axis=alt.Axis(format=".3~g", tickCount=4))

    columns = ["label", "both", "low", "high", "text", "data", "data_low", "data_high"]
    drawn = alt.Chart(pd.DataFrame(bars, columns=["label", "part", "from", "to", "color"]))
    marked = alt.Chart(pd.DataFrame(marks, columns=columns))
    ends = [alt.Tooltip(f"{end}:Q", title=f"{end} ms", format=".3~g") for end in ("from", "to")]
    tooltip = ["label:N", "part:N", *ends]
    column = {"align": "left", "dx": 8, "fontSize": 11, "fontWeight": 600}
    layers = [
        drawn.mark_bar(height=13, opacity=0.85).encode(x=x("from"), x2="to:Q", y=y, color=ROW_COLOR, tooltip=tooltip),
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


def legend() -> str:
    """HTML: what the bars and marks of the chart are."""
    kinds = ((WORKS, "the step works"), (WAITS, "it waits for its data"), (ALONE, "upright mark: the data set alone"))
    keys = (
        f'<span class="compare-key"><i style="border-top: 3px solid {color}"></i>{html.escape(words)}</span>'
        for color, words in kinds
    )
    return f'<p class="compare-legend">{"".join(keys)}</p>'


def feeds_table(
    pipelines: Sequence[Pipeline], known: Mapping[Pipeline, Figures], raised: Mapping[Pipeline, str]
) -> str:
    """HTML: medians with their quartiles on hover, a row for each feed; one that raised an error says what."""
    rows = []
    for pipeline in pipelines:
        label = html.escape(pipeline.label)
        if (one := known.get(pipeline)) is not None:
            share, low, high = one.share
            rate = f"{pipeline.batch_size / one.both.median_s:,.0f}"
            waits = f'<span title="{_interval(low, high)}">{share:.0%}</span>'
            rows.append([label, *map(_cell, (one.data, one.step, one.both)), waits, rate, _cell(one.first)])
        else:
            rows.append([label, "not measured" if pipeline in raised else "–", *[""] * 5])
    head = ["feed", "data set alone", "step alone", "both together", "step waits", "images per s", "first batch after"]
    return table(head, rows)


def raised_list(raised: Mapping[Pipeline, str]) -> str:
    """HTML: what could not be measured, and why."""
    rows = "".join(
        f"<li><b>{html.escape(pipeline.label)}</b>: {html.escape(why)}.</li>" for pipeline, why in raised.items()
    )
    return f'<ul class="lab-note lab-missing">{rows}</ul>' if rows else ""


def _cell(measured: Measurement) -> str:
    low, high = measured.quartiles_s
    title = f"quartiles {seconds(low)} to {seconds(high)}, {len(measured.block_s)} rounds"
    return f'<span title="{title}">{justified(measured.median_s, low, high)}</span>'


def _interval(low: float, high: float) -> str:
    return f"{low:.0%} to {high:.0%}" if (low, high) != (0.0, 1.0) else "too few rounds for an interval"


_BOUND = {
    Bound.DATA: "It is bound by its data.",
    Bound.STEP: "It is bound by the step: faster data would hardly be noticed.",
    Bound.UNCLEAR: "That does not tell which of the two bounds it: measure again when nothing else runs.",
}


def sentence(
    chosen: Pipeline, known: Mapping[Pipeline, Figures], remedy: Pipeline | None, same_each_epoch: bool
) -> str:
    """What bounds the chosen pipeline, and what would help by the figures; empty while it was not measured.

    Args:
        chosen: The pipeline that is looked at.
        known: Figures of it and of others.
        remedy: What to put in its place; None for nothing.
        same_each_epoch: Whether caching was allowed.
    """
    if (here := known.get(chosen)) is None:
        return ""
    share, low, high = here.share
    text = (
        f"With “{chosen.label}” a batch of {chosen.batch_size:,} takes"
        f" {justified(here.both.median_s, *here.both.quartiles_s)}, and for {share:.0%} of that"
        f" ({_interval(low, high)}) the step waits. {_BOUND[here.bound]} Alone, the data set takes"
        f" {justified(here.data.median_s, *here.data.quartiles_s)} a batch, the step"
        f" {justified(here.step.median_s, *here.step.quartiles_s)}."
    )
    if remedy is not None:
        return f"{text} What would help: {_would_help(here, remedy, known)}."
    if here.bound is Bound.DATA:
        rest = "" if same_each_epoch else "; caching was left out, because the images differ in each epoch"
        return f"{text} No other feed is certainly faster here{rest}."
    return text


def _would_help(here: Figures, remedy: Pipeline, known: Mapping[Pipeline, Figures]) -> str:
    chosen = here.pipeline
    if remedy.batch_size != chosen.batch_size:
        return f"a batch of {remedy.batch_size:,}, so that fewer steps pay for what each costs beside its arithmetic"
    if (there := known.get(remedy)) is not None:
        found = difference(there, here, paired=False)
        cached = ", as the images are the same in each epoch" if remedy.feed == "cache" else ""
        times = f"{found.ratio:.2g} times the time ({found.low:.2g} to {found.high:.2g})"
        return f"“{remedy.label}”{cached}, measured at {times}"
    return f"preprocessing that releases the interpreter's lock, so that “{remedy.label}” can run it in parallel"


def applied_sentence(pair: Sequence[Figures]) -> str:
    """The chosen pipeline and what was put in its place, measured in turns; empty where that was not applied."""
    if len(pair) < 2:
        return ""
    before, after = pair
    found = difference(after, before, paired=True)
    changes = [f"“{after.pipeline.label}”"] if after.pipeline.feed != before.pipeline.feed else []
    if after.pipeline.batch_size != before.pipeline.batch_size:
        changes.append(f"a batch of {after.pipeline.batch_size:,}")
    if after.pipeline.holds_lock != before.pipeline.holds_lock:
        changes.append("preprocessing that releases the lock")
    images = [f"{figures.pipeline.batch_size / figures.both.median_s:,.0f}" for figures in pair]
    return (
        f"Applied: {listed(changes)}, measured in turns with “{before.pipeline.label}”. Per image: {found.text};"
        f" {images[1]} images per second instead of {images[0]}, and the step waits {after.share[0]:.0%} of the time"
        f" instead of {before.share[0]:.0%}."
    )


# Where operations run.


def placement_table(placed: Mapping[str, int]) -> str:
    """HTML: each operation of a step, how often it has it, where it ran, and why there."""
    rows = []
    for name, count in sorted(placed.items()):
        if name.count("/") == 2:
            operation, device, kernels = name.split("/")
            why = _why(device, kernels.split(), placed.get("gpus", 0), bool(placed.get("cuda", 0)))
            rows.append([f"<code>{html.escape(operation)}</code>", str(count), device, html.escape(why)])
    return table(["operation", "in a step", "ran on", "why there"], rows, "anatomy-parts") if rows else ""


def _why(device: str, kernels: Sequence[str], gpus: int, cuda: bool) -> str:
    if device == "GPU":
        return "it has a kernel for a GPU, and TensorFlow prefers that"
    if not cuda:
        return "this TensorFlow is the build for processors: it sees no GPU"
    if "GPU" not in kernels:
        return "it has no kernel for a GPU"
    if not gpus:
        return "it has a kernel for a GPU, but TensorFlow sees none"
    return "it has a kernel for a GPU, but works on what lies in the host's memory"


def placement_sentence(placed: Mapping[str, int]) -> str:
    """How many operations ran where; empty while that is not known."""
    counts: dict[str, int] = {}
    for name, count in placed.items():
        if name.count("/") == 2:
            device = name.split("/")[1]
            counts[device] = counts.get(device, 0) + count
    if not counts:
        return ""
    total, gpus = sum(counts.values()), placed.get("gpus", 0)
    parts = [f"{count} on the {device}" for device, count in sorted(counts.items())]
    where = f"all on the {next(iter(counts))}" if len(counts) == 1 else listed(parts)
    seen = f"it sees {gpus} GPU{'s' if gpus > 1 else ''}" if gpus else "it sees no GPU"
    return (
        f"TensorFlow ran the {total} operations of a step, its fetching of a batch included, {where}; {seen}. What a"
        " data set maps its images with runs on the processor, wherever the step runs."
    )


# Building and cloning a model.

_STAGES = {
    "import": "import Keras and TensorFlow",
    "device": "first operation on the device",
    "build": "build a model",
    "clone": "clone it",
    "step": "first step, traced and compiled",
}
_AGAIN = {"build": "build again", "clone": "clone again", "step": "step again"}


def models_table(found: Mapping[Network, Mapping[str, Measurement]]) -> str:
    """HTML: what each stage takes in a fresh process, the first time and again, for each network."""
    head = ["in a fresh process"]
    head += [f"{html.escape(network.label)}: {when}" for network in found for when in ("first time", "again")]
    rows = [
        [label]
        + [
            cell
            for measured in found.values()
            for cell in (
                seconds(measured[stage].median_s),
                _cell(measured[_AGAIN[stage]]) if stage in _AGAIN else "–",
            )
        ]
        for stage, label in _STAGES.items()
    ]
    return table(head, rows) if found else ""


def models_sentence(found: Mapping[Network, Mapping[str, Measurement]]) -> str:
    """What creating a model costs beside what comes before it, and how the large one differs; empty without figures."""
    said = []
    for network, measured in found.items():
        before_s = measured["import"].median_s + measured["device"].median_s
        first_s = sum(measured[name].median_s for name in ("build", "clone", "step"))
        again_s = sum(measured[name].median_s for name in REPEATED)
        said.append(
            f"784→{network.label}→10 ({network.n_parameters:,} parameters): {seconds(before_s)} pass before a model can"
            f" be built; building, cloning and the first step take {seconds(first_s)},"
            f" and {seconds(again_s)} the second time."
        )
    if len(found) == 2:
        small, large = found.values()
        ratio = compared(large["clone again"].step_s, small["clone again"].step_s, paired=False)
        if ratio.verdict in (Verdict.SLOWER, Verdict.FASTER):
            said.append(
                f"Cloning the large one takes {ratio.ratio:.2g} times as long ({ratio.low:.2g} to {ratio.high:.2g})."
            )
    return " ".join(said)


assert set(FRESH) == set(_STAGES), "each has a row"


# The checklist.


def checklist(
    figures: Sequence[Figures],
    chosen: Pipeline,
    device: str,
    gpus_present: int,
    gpus_registered: int | None,
    created: Mapping[str, Measurement] | None,
) -> str:
    """HTML: the articles' advice, each with what was measured here, and the finding that follows from it.

    Args:
        figures: Of all pipelines that were measured here, of any setting.
        chosen: The pipeline that is looked at.
        device: That the step runs on.
        gpus_present: GPUs that the driver lists.
        gpus_registered: GPUs that TensorFlow sees; None while that is not known.
        created: What creating a model took in a fresh process, by name; None while that is not known.
    """
    known = {one.pipeline: one for one in figures}
    here = known.get(chosen)
    rows = [
        _advice("Larger batches, where a step is short", SLOWER_ARTICLE, _batches(figures, chosen), None),
        _advice("`tf.data` with prefetch", SLOWER_ARTICLE, _beside(known, chosen, "prefetch"), _input_bound(here)),
        _advice("Less preprocessing in Python", SLOWER_ARTICLE, _preprocessing(here), None),
        _advice(
            "The operations that matter run on the GPU",
            SLOWER_ARTICLE,
            _registered(gpus_present, gpus_registered),
            _first(Observed(device, gpus_present=gpus_present, gpus_registered=gpus_registered)),
        ),
        _advice("Benchmark after warming up", SLOWER_ARTICLE, _warm(created), _cold(created, chosen.rows)),
        _advice("Prefetch and parallel calls by AUTOTUNE", CREATING_ARTICLE, _beside(known, chosen, "autotune"), None),
    ]
    return table(["advice", "measured here", "finding"], rows, "claims")


def _advice(text: str, source: str, here: str, finding: Finding | None) -> list[str]:
    name, *code = text.split("`")
    shown = html.escape(name) + (f"<code>{html.escape(code[0])}</code>{html.escape(code[1])}" if code else "")
    said = f"<b>{html.escape(finding.name)}</b>: {html.escape(finding.text)}" if finding else "none"
    return [f"{shown}<br><small>{html.escape(source)}</small>", html.escape(here) or "not measured yet", said]


def _first(observed: Observed) -> Finding | None:
    return next(iter(findings(observed)), None)


def _batches(figures: Sequence[Figures], chosen: Pipeline) -> str:
    steps = {one.pipeline.batch_size: one.step for one in figures if one.pipeline.feed == chosen.feed}
    parts = [f"{seconds(step.median_s / size)} an image at batch size {size:,}" for size, step in sorted(steps.items())]
    more = "; move the batch size to see another" if len(parts) == 1 else ""
    return f"The step alone: {listed(parts)}{more}." if parts else ""


def _beside(known: Mapping[Pipeline, Figures], chosen: Pipeline, feed: str) -> str:
    plain, other = (
        next((one for one in known.values() if _same_but_feed(one.pipeline, chosen, name)), None)
        for name in ("tf.data", feed)
    )
    if plain is None or other is None:
        return ""
    return f"“{other.pipeline.label}” beside “{plain.pipeline.label}”: {difference(other, plain, paired=False).text}."


def _same_but_feed(one: Pipeline, chosen: Pipeline, feed: str) -> bool:
    settings = ("rows", "batch_size", "preprocessing_ms", "holds_lock")
    return one.feed == feed and all(getattr(one, name) == getattr(chosen, name) for name in settings)


def _input_bound(here: Figures | None) -> Finding | None:
    if here is None:
        return None
    share = here.share[0]
    both_s = here.both.median_s
    work_s = here.preprocessing.median_s * here.pipeline.batch_size if here.pipeline.preprocessing_ms else None
    return _first(Observed(step_s=both_s, input_s=share * both_s, preprocessing_s=work_s))


def _preprocessing(here: Figures | None) -> str:
    if here is None:
        return ""
    if not here.pipeline.preprocessing_ms:
        return "There is none at 0 ms an image."
    kind = (
        "Python, which holds the interpreter's lock" if here.pipeline.holds_lock else "compiled code without the lock"
    )
    return f"{seconds(here.preprocessing.median_s)} an image, in {kind}."


def _registered(present: int, registered: int | None) -> str:
    seen = "" if registered is None and present else f"; TensorFlow sees {registered or 0}"
    return (
        f"The driver lists {present} GPU{'s' * (present > 1)}{seen}."
        if present
        else "No NVIDIA driver answers: everything runs on the CPU."
    )


def _warm(created: Mapping[str, Measurement] | None) -> str:
    if created is None:
        return ""
    first_s, later_s = (created[name].median_s for name in ("step", _AGAIN["step"]))
    return f"The first step of Keras takes {seconds(first_s)} in a fresh process, later ones {seconds(later_s)}."


def _cold(created: Mapping[str, Measurement] | None, rows: int) -> Finding | None:
    """Whether the first step, counted with the others of an epoch of so many rows, would be much of it."""
    if created is None:
        return None
    first_step_s, later_s = (created[name].median_s for name in ("step", _AGAIN["step"]))
    epoch_s = later_s * max(1, rows // FRESH_BATCH)
    return _first(Observed(first_call_counted=True, epoch_s=(first_step_s + epoch_s, epoch_s, epoch_s)))
