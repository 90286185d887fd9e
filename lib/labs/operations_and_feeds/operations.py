"""Single operations: products, nested sines and transfers by size; first use, compilers, and overlap."""

import html
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise, takewhile
from math import inf, log2, log10
from typing import Any, NamedTuple

from lib.formatting import counted, listed, seconds, times
from lib.model.backends.registry import BACKENDS, DEVICES, Runtime
from lib.sweeps.experiments import published, recorded_machines, single_operations
from lib.sweeps.experiments.anatomy_of_a_step import ceilings
from lib.sweeps.experiments.recorded_machines import RECORDED
from lib.sweeps.experiments.single_operations import (
    FIRST_SIZES,
    LABELS,
    LENGTHS,
    OVERLAP_SIZES,
    SIDES,
    TRANSFERS_BYTES,
    OperationPoint,
    OperationTask,
    libraries,
)
from lib.sweeps.storage.records import Kind, Record
from lib.sweeps.storage.store import Store
from lib.timing.comparison import Verdict
from lib.timing.prediction.workload import Ceilings, Cost, cost_of
from lib.timing.profiling.request import (
    AFTER,
    ALIASED,
    BEFORE,
    COPIED,
    EAGER,
    FUSED,
    IN_PIECES,
    IN_TURN,
    INSIDE,
    LANES,
    MOVED,
    OPERATION_PRECISIONS,
    PINNED,
    RETURNED,
    WAITED,
    OperationRequest,
)
from lib.ui import layout
from lib.ui.controls import Controls, batch_size, dropdown, slider
from lib.ui.lab import Asked, Drawing, Shown, Work
from lib.ui.views.chart import (
    HEIGHT,
    Chart,
    alt,
    decades,
    labels,
    log_scale,
    moved_apart,
    names_y,
    nice_above,
    ordered_palette,
    pd,
    room,
    row_color,
    styled,
)
from lib.ui.views.markup import on_demand, quiet

DEPTHS = range(1, 17)  # of nested sines
SECOND_COLOR, WRONG_COLOR = "#b04fb4", "#d1623a"
LEAST_S = 1e-7  # lower end of the axis of seconds: every call takes longer
SIZES_AND_LIBRARIES = "sizes and libraries"
# What limits compiled sines above this share of the memory bandwidth.
BOUNDS = (
    (1.1, "from a cache, not from memory"),
    (0.7, "memory bound"),
    (0.5, "memory and arithmetic take about equally long"),
    (0.0, "not memory bound; arithmetic and the call take the time"),
)


class Series(NamedTuple):
    """A line of a chart: points timed in one way. Without a colour, the line has the library's."""

    way: str
    label: str
    color: str = ""
    dash: str = "solid"  # or “dashed” if not comparable with the others, or `RECORDED`
    points: Sequence[OperationPoint] = ()


PRODUCT_WAYS = (
    Series(WAITED, "waited for"),
    Series(MOVED, "there and back", SECOND_COLOR),
    Series(RETURNED, "not waited for", WRONG_COLOR, "dashed"),
)
EAGER_WAITED, FUSED_WAITED = f"{EAGER}/{WAITED}", f"{FUSED}/{WAITED}"
SINE_WAYS = (
    Series(EAGER_WAITED, "one by one"),
    Series(f"{EAGER}/{MOVED}", "one by one, back", dash="dashed"),
    Series(FUSED_WAITED, "in one", SECOND_COLOR),
    Series(f"{FUSED}/{MOVED}", "in one, back", SECOND_COLOR, "dashed"),
)
TRANSFER_WAYS = (Series(COPIED, COPIED), Series(PINNED, PINNED, "#3a72d8"), Series(ALIASED, ALIASED, "#0b7a57"))


def library_labels() -> list[str]:
    """The libraries that can run here, with their device if it is a card. JAX, the default, comes first."""
    return sorted(
        (task.label for task in single_operations.products(libraries(), 1, "float32")), key=lambda label: label != "JAX"
    )


_LIBRARY = dropdown("All ways of", lambda: library_labels()[0], library_labels)


class Product(Controls):
    largest = slider("Rows and columns, up to", 1024, SIDES[1:])
    precision = dropdown("Precision", "float32", OPERATION_PRECISIONS)
    library = _LIBRARY


class Sine(Controls):
    largest = slider("Elements, up to", LENGTHS[11], LENGTHS[3:])
    depth = slider("Nested sines", 4, DEPTHS)
    library = _LIBRARY


class Transfer(Controls):
    largest = slider("Bytes, up to", TRANSFERS_BYTES[11], TRANSFERS_BYTES[2:])
    library = _LIBRARY


class FirstUse(Controls):
    size = slider("Elements", 1024, FIRST_SIZES)


class Fusion(Controls):
    size = batch_size("Batch size of the step", 32)
    depth = slider("Nested sines", 4, DEPTHS)


class Overlap(Controls):
    size = slider("Elements", OVERLAP_SIZES[3], OVERLAP_SIZES)
    depth = slider("Nested sines", 4, DEPTHS)
    pieces = slider("Pieces", 8, (2, 4, 8, 16, 32))


OPERATIONS = {
    "product": Product,
    "sine": Sine,
    "transfer": Transfer,
    "first": FirstUse,
    "fusion": Fusion,
    "overlap": Overlap,
}


def asked(store: Store, tasks: Callable[[Any, list[Runtime]], list[OperationTask]]) -> Callable[[Any], Asked]:
    def ask(at: Any) -> Asked:
        todo = tasks(at, libraries())

        def make(again: bool) -> tuple[tuple, Work]:
            known = {} if again else single_operations.found(todo, store.records(Kind.OPERATION))
            return (todo, len(known) == len(todo)), partial(single_operations.measure, todo, known)

        return Asked(tuple(todo), make)

    return ask


def points_of(shown: Shown) -> list[OperationPoint]:
    return [item for item in shown.now.items if isinstance(item, OperationPoint)]


def state_line(shown: Shown, n_done: int, n_wanted: int, words: str) -> str:
    now, complete = shown.now, shown.known[-1]
    return layout.state_line(layout.saved_or(now.state, complete), n_done, n_wanted, now.note or words, now.problem)


def drawing(
    shown: Shown, figures: Mapping[str, Chart | str], sentence: str, below: str, of: str = SIZES_AND_LIBRARIES
) -> Drawing:
    points, total = points_of(shown), len(shown.tasks)
    words = f"{len(points)} of {total} {of}" if of else "nothing is timed here"
    disturbed = layout.disturbed([record for point in points for record in point.records.values() if of])
    line = state_line(shown, len(points), total, words)
    return Drawing.of(figures, line, sentence, _not_measured(points) + disturbed + below)


def _not_measured(points: Sequence[OperationPoint]) -> str:
    why = dict.fromkeys((point.task.label, point.why_not) for point in points if point.why_not)
    sizes = {one: [f"{p.size:,}" for p in points if (p.task.label, p.why_not) == one] for one in why}
    rows = "".join(
        f"<li>{html.escape(label)}, size {listed(sizes[label, reason])}: {html.escape(reason)}.</li>"
        for label, reason in why
    )
    return on_demand("Not measured, and why", f'<ul class="lab-note">{rows}</ul>') if why else ""


def draw_products(shown: Shown) -> Drawing:
    points, (largest, label) = points_of(shown), (shown.at.largest, shown.at.library)
    peaks, names, unit = peak_rates(points, shown.section.page.store), library_names(shown), "n, of two n × n matrices"
    waited, cards = lines_of(points, WAITED), recorded_points("product", largest, precision=shown.at.precision)
    figures = {
        "seconds per product, operands on the device, waited for": seconds_chart(
            [*waited, *recorded_lines(cards, {WAITED: "", MOVED: " back"})], largest, [*names, *cards], unit
        ),
        f"seconds by {label}, in all ways": seconds_chart(
            ways_of(points, label, PRODUCT_WAYS, WAITED),
            largest,
            ["NumPy", *(way.label for way in PRODUCT_WAYS)],
            unit,
            "way",
        ),
        "share of the float32 peak measured here": share_chart(waited, largest, names, unit, peaks, "peak"),
    }
    cpu_s, gpu_s = published.PRODUCT_S
    note = (
        f"Published: in the largest products of “{published.OPERATIONS_ARTICLE}”, on an A100,"
        f" {published.PRODUCT_TRANSFER_SHARE:.0%} of the time is the transfer; “{published.OVERHEAD_ARTICLE}” gives"
        f" {seconds(cpu_s)} on the CPU and {seconds(gpu_s)} on the GPU for (32, 784) @ (784, 128), one operation of a"
        " step. Without a GPU, “there and back” is what the library copies within main memory."
    )
    said = product_sentence(points, label, peaks)
    if numpys := _measured(points, "NumPy", WAITED):
        said = " ".join([said, *(_worth(f"{name} (recorded)", mine, numpys) for name, mine in cards.items())])
    return drawing(shown, figures, said, quiet(note))


def draw_sines(shown: Shown) -> Drawing:
    points, at = points_of(shown), shown.at
    bandwidths = _ceilings(shown.section.page.store, "copy_bytes_per_s")
    cards = recorded_points("sine", at.largest, at.depth)
    on_cards = {
        EAGER_WAITED: "",
        f"{EAGER}/{MOVED}": " back",
        FUSED_WAITED: " in one",
        f"{FUSED}/{MOVED}": " in one, back",
    }
    figures = {
        f"seconds of {at.depth} sines by {at.library}, in all ways": seconds_chart(
            [*ways_of(points, at.library, SINE_WAYS, EAGER_WAITED), *recorded_lines(cards, on_cards)],
            at.largest,
            ["NumPy", *(way.label for way in SINE_WAYS), *cards],
            "elements",
            "way",
        ),
        "bytes a second, as a share of a large copy's here; above 100 %: in a cache": share_chart(
            bandwidth_lines(points), at.largest, library_names(shown), "elements", bandwidths, "memory's bandwidth"
        ),
    }
    before_s, after_s = published.SINE_S
    note = (
        f"Published: four sines on an A100 take “approximately” {seconds(before_s)} one by one and {seconds(after_s)}"
        f" in one (“{published.OPERATIONS_ARTICLE}”), without giving their size. It finds a GPU slower than a CPU at"
        " 2³² elements, including the transfer."
    )
    return drawing(shown, figures, sine_sentence(points, at.library, at.depth, bandwidths), quiet(note))


def draw_transfers(shown: Shown) -> Drawing:
    points, (largest, label) = points_of(shown), (shown.at.largest, shown.at.library)
    costs = transfer_costs(by_label(points).get(label, []))
    figures = {
        f"seconds of a transfer by {label}; dotted: latency + size ÷ bandwidth": seconds_chart(
            ways_of(points, label, TRANSFER_WAYS),
            largest,
            [way.label for way in TRANSFER_WAYS],
            "bytes",
            "way",
            costs.values(),
        ),
        "seconds of a copy by all libraries": seconds_chart(
            lines_of(points, COPIED), largest, library_names(shown), "bytes"
        ),
    }
    n_bytes, bandwidth, (least, most) = published.BATCH_TRANSFER
    note = (
        f"Published: {n_bytes / 1e3:.0f} kB, a batch of 32 images, takes {seconds(n_bytes / bandwidth)} at"
        f" {bandwidth / 1e9:.0f} GB/s, and the setup {least} to {most} times that (“{published.OVERHEAD_ARTICLE}”,"
        " calculated there and not measured)."
    )
    return drawing(shown, figures, transfer_sentence(points, label, costs), quiet(note))


def library_names(shown: Shown) -> list[str]:
    return list(dict.fromkeys(task.label for task in shown.tasks))


# Lines and charts.


def by_label(points: Sequence[OperationPoint]) -> dict[str, list[OperationPoint]]:
    ordered = sorted(points, key=lambda one: one.size)
    found = dict.fromkeys(point.task.label for point in points)
    return {label: [point for point in ordered if point.task.label == label] for label in found}


def _color(points: Sequence[OperationPoint]) -> str:
    return BACKENDS[points[0].task.runtime.backend].color


def lines_of(points: Sequence[OperationPoint], way: str) -> list[Series]:
    return [
        Series(way, label, _color(mine), "dashed" if mine[0].task.runtime.device == "gpu" else "solid", mine)
        for label, mine in by_label(points).items()
    ]


def ways_of(points: Sequence[OperationPoint], label: str, ways: Sequence[Series], numpys: str = "") -> list[Series]:
    """One library's ways, and NumPy timed by `numpys`, unless that is empty."""
    mine, usual = by_label(points).get(label, []), by_label(points).get("NumPy", [])
    lines = [Series(numpys, "NumPy", _color(usual), points=usual)] if numpys and usual and label != "NumPy" else []
    return lines + [
        way._replace(color=way.color or _color(mine), points=mine)
        for way in ways
        if any(way.way in point.records for point in mine)
    ]


def recorded_points(
    operation: str, largest: int, depth: int = 1, precision: str = "float32", pieces: int = 1
) -> dict[str, list[OperationPoint]]:
    """Points recorded on cards, where this machine has none, by library and card."""
    found: dict[str, dict[OperationTask, dict[str, Record]]] = {}
    asked_for = {"operation": operation, "depth": depth, "arithmetic": precision, "pieces": pieces, "device": "gpu"}
    for machine in recorded_machines.recorded_gpus():
        for record in machine.records:
            if record.kind == Kind.OPERATION and record.is_about(asked_for) and int(record.subject["size"]) <= largest:
                library, size = str(record.says("by")), int(record.subject["size"])
                by = next(key for key, one in BACKENDS.items() if one.worker == library)
                task = OperationTask(Runtime(by, "gpu"), OperationRequest(operation, size, precision, depth, pieces))
                of_card = found.setdefault(f"{recorded_machines.card_of(machine)}, {LABELS[library]}", {})
                of_card.setdefault(task, {})[str(record.says("name"))] = record
    return {
        name: sorted((OperationPoint(task, records) for task, records in of.items()), key=lambda point: point.size)
        for name, of in found.items()
    }


def recorded_at(operation: str, size: int, depth: int, pieces: int = 1) -> dict[str, OperationPoint]:
    found = recorded_points(operation, size, depth, pieces=pieces)
    return {f"{name} (recorded)": points[-1] for name, points in found.items() if points[-1].size == size}


def recorded_lines(cards: Mapping[str, list[OperationPoint]], ways: Mapping[str, str]) -> list[Series]:
    """A dotted line with hollow points per card and way; a way's ending replaces the library in the label."""
    return [
        Series(way, f"{name.partition(',')[0]}{ending}" if ending else name, _color(points), RECORDED, points)
        for name, points in cards.items()
        for way, ending in ways.items()
        if any(way in point.records for point in points)
    ]


def bandwidth_lines(points: Sequence[OperationPoint]) -> list[Series]:
    """A line per library and device: its compiled sines or, if it has none, the eager ones."""
    return [
        line._replace(way=FUSED_WAITED if any(FUSED_WAITED in point.records for point in line.points) else EAGER_WAITED)
        for line in lines_of(points, WAITED)
    ]


def seconds_chart(
    lines: Sequence[Series],
    largest: int,
    names: Sequence[str],
    unit: str,
    by: str = "library",
    costs: Sequence[Cost] | Any = (),
) -> Chart:
    """Median seconds per call by size, both logarithmic, with quartiles; hollow points are predicted."""
    rows, hollow = [], []
    for line, point in [(one, point) for one in lines for point in one.points]:
        of = {"label": line.label, "color": line.color, "dash": line.dash, "x": point.size}
        if (record := point.records.get(line.way)) is not None:
            low, high = record.measurement.quartiles_s
            rows.append(of | {"y": record.measurement.median_s, "low": low, "high": high})
        elif point.predicted_s is not None and line.way in (WAITED, EAGER_WAITED):
            hollow.append(of | {"y": point.predicted_s, "why": point.why_not})
    domain = (LEAST_S, decades([max([0.05, *(row["y"] for row in rows + hollow)])])[1])
    fitted = [
        {"curve": number, "x": 2**k, "y": cost.seconds(2**k)}
        for number, cost in enumerate(costs)
        for k in range(2, round(log2(largest)) + 1)
        if cost.seconds(2**k) > 0
    ]
    axis = alt.Axis(labelExpr="format(datum.value, '~s') + 's'", tickCount=6)
    scale, title = log_scale(domain, clamp=True), f"seconds by size and {by}"
    return _drawn(rows, hollow, (largest, unit), domain, scale, axis, title, names, fitted)


def share_chart(
    lines: Sequence[Series], largest: int, names: Sequence[str], unit: str, peaks: Mapping[str, float], of: str
) -> Chart:
    rows = [
        {"label": line.label, "color": line.color, "dash": line.dash, "x": point.size}
        | dict.fromkeys(("y", "low", "high"), rate / peak)
        for line in lines
        for point in line.points
        if (peak := peaks.get(point.task.runtime.device)) and (rate := point.rate(line.way)) is not None
    ]
    most = max([1.0, *(row["y"] for row in rows)])
    scale, axis = alt.Scale(domain=[0, most], nice=False), alt.Axis(format=".0%", tickCount=5)
    title = f"share of the {of} by size and library"
    return _drawn(rows, [], (largest, unit), (0.0, most), scale, axis, title, names)


def _drawn(
    rows: list[dict],
    hollow: list[dict],
    sizes: tuple[int, str],
    domain: tuple[float, float],
    scale: "alt.Scale",
    axis: "alt.Axis",
    title: str,
    names: Sequence[str],
    fitted: Sequence[dict] = (),
) -> Chart:
    def y(field: str) -> "alt.Y":
        return alt.Y(f"{field}:Q", scale=scale, title=None, axis=axis)

    largest, unit = sizes
    sizes_axis = alt.Axis(
        values=[2**k for k in range(0, 29, 2 if largest <= 2**16 else 4)],
        labelExpr="datum.value < 1e5 ? format(datum.value, ',') : '2^' + round(log(datum.value) / log(2))",
        labelOverlap=True,
    )
    x = alt.X("x:Q", scale=log_scale([1, max(2, largest)], base=2), title=unit, axis=sizes_axis)
    tip = alt.Tooltip("y:Q", title="measured", format=".3~s")
    predicted = alt.Tooltip("y:Q", title="predicted, not measured", format=".3~s")
    frame = pd.DataFrame(rows, columns=["label", "color", "dash", "x", "y", "low", "high"])
    dashes = alt.Scale(domain=["solid", "dashed", RECORDED], range=[[1, 0], [5, 3], [2, 2]])
    dash = alt.StrokeDash("dash:N", scale=dashes, legend=None)
    frame["filled"] = (frame["dash"] != RECORDED).astype(float)
    filled = alt.FillOpacity("filled:Q", scale=None, legend=None)
    base = alt.Chart(frame).encode(x=x, color=row_color())
    tooltip = ["label:N", alt.Tooltip("x:Q", title="size", format=","), tip]
    skipped = alt.Chart(pd.DataFrame(hollow, columns=["label", "color", "dash", "x", "y", "why"]))
    curves = alt.Chart(pd.DataFrame(fitted, columns=["curve", "x", "y"]))
    layers = [
        curves.mark_line(strokeWidth=1, strokeDash=[2, 2], opacity=0.7, color="currentColor").encode(
            x=x, y=y("y"), detail="curve:N"
        ),
        base.mark_rule(strokeWidth=4, opacity=0.3).encode(y=y("low"), y2="high:Q"),
        base.mark_line(strokeWidth=1.8).encode(y=y("y"), strokeDash=dash, detail="label:N"),
        base.mark_point(size=26, filled=True, opacity=1, strokeWidth=1.2).encode(
            y=y("y"), fillOpacity=filled, stroke=alt.Stroke("color:N", scale=None, legend=None), tooltip=tooltip
        ),
        skipped.mark_point(size=40, filled=False, strokeWidth=1.4).encode(
            x=x, y=y("y"), color=row_color(), tooltip=["label:N", "why:N", predicted]
        ),
    ]
    spec = styled(alt.layer(*layers, *labels(x, y("y"), y("at"), row_color())), height=HEIGHT)
    ends = frame.sort_values("x").groupby("label", sort=False).tail(1).to_dict("records")
    spec["datasets"] |= {"ends": _placed(ends, domain), "room": room(names)}
    return Chart(spec, title)


def _placed(ends: list[dict], domain: tuple[float, float]) -> list[dict]:
    """The lines' ends with their labels' positions, on a logarithmic axis or a linear one that starts at 0."""
    if domain[0] > 0:
        return moved_apart(ends, domain)
    # On a logarithmic axis, the exponentials lie as the values do on a linear one.
    apart = moved_apart([end | {"y": 10.0 ** end["y"]} for end in ends], (1.0, 10.0 ** domain[1]))
    return [moved | {"y": end["y"], "at": log10(moved["at"])} for end, moved in zip(ends, apart, strict=True)]


def _measured(points: Sequence[OperationPoint], label: str, *ways: str) -> list[OperationPoint]:
    """One library's points that were timed in all of these ways."""
    return [point for point in by_label(points).get(label, []) if {*ways} <= point.records.keys()]


# Products.


def peak_rates(points: Sequence[OperationPoint], store: Store) -> dict[str, float]:
    """Peak floating-point operations per second by device: the probe's, or a float32 product's that beat it."""
    peaks = _ceilings(store, "product_flops_per_s")
    for point in points:
        operation, device = point.task.operation, point.task.runtime.device
        if operation.precision == "float32" and device in peaks:
            peaks[device] = max(peaks[device], point.rate(WAITED) or 0.0)
    return peaks


def _ceilings(store: Store, rate: str) -> dict[str, float]:
    """This rate of the probe, by device; devices that were not probed are missing."""
    probed: dict[str, Ceilings | None] = {device: ceilings(Runtime(device=device), store) for device in DEVICES}
    return {device: getattr(one, rate) for device, one in probed.items() if one is not None}


def worth_from(points: Sequence[OperationPoint], others: Sequence[OperationPoint], way: str) -> int | None:
    """The size from which one library wins at every larger size that both measured; None if there is none."""
    usual = {point.size: point for point in others if WAITED in point.records}
    both = sorted((one for one in points if way in one.records and one.size in usual), key=lambda one: -one.size)
    won = takewhile(lambda one: one.compare(way, WAITED, usual[one.size]).verdict is Verdict.FASTER, both)
    return min((one.size for one in won), default=None)


def product_sentence(points: Sequence[OperationPoint], label: str, peaks: Mapping[str, float]) -> str:
    known = {name: mine for name in by_label(points) if (mine := _measured(points, name, WAITED))}
    if not known:
        return ""
    numpys = known.get("NumPy", [])
    worth = [_worth(name, mine, numpys) for name, mine in known.items() if numpys and name != "NumPy"]
    return " ".join(filter(None, [_best(known, peaks), *worth, _mistake(known.get(label, []), label)]))


def _best(known: Mapping[str, list[OperationPoint]], peaks: Mapping[str, float]) -> str:
    size = max(mine[-1].size for mine in known.values())
    there = {name: mine[-1] for name, mine in known.items() if mine[-1].size == size}
    quickest = min(there, key=lambda name: there[name].seconds(WAITED) or 0.0)
    best = there.pop(quickest)
    rate = best.rate(WAITED) or 0.0
    peak = peaks.get(best.task.runtime.device)
    share = f", {times(100 * rate / peak)} % of the float32 peak measured here" if peak else ""
    alike = [name for name, one in there.items() if best.compare(WAITED, WAITED, one).verdict is not Verdict.FASTER]
    others = f"; indistinguishable from it: {listed(alike)}" if alike else ""
    return (
        f"At n = {size:,}, {quickest} has the shortest time, {seconds(best.seconds(WAITED) or 0.0)}:"
        f" {rate / 1e9:,.3g} GFLOP/s{share}{others}."
    )


def _worth(name: str, mine: Sequence[OperationPoint], numpys: Sequence[OperationPoint]) -> str:
    card = mine[0].task.runtime.device == "gpu"
    ways = {"with the transfer": MOVED, "without the transfer": WAITED} if card else {"": WAITED}
    least = {words: worth_from(mine, numpys, way) for words, way in ways.items()}
    won = [f"{words} from n = {size:,}".strip() for words, size in least.items() if size]
    lost = [f"{words} not certainly at the largest n" for words, size in least.items() if not size]
    if won:
        return f"{name} is faster than NumPy {', and '.join([listed(won), *lost])}."
    if not card:
        return ""  # `_best` names the libraries that are as fast
    return f"{name} is not certainly faster than NumPy at the largest n, with or without the transfer."


def _mistake(mine: Sequence[OperationPoint], label: str) -> str:
    both = [point for point in mine if RETURNED in point.records]
    for point in reversed(both):
        ratio = point.compare(WAITED, RETURNED)
        if ratio.verdict is Verdict.SLOWER:
            return (
                f"A clock that does not wait for the result would show {label}'s product of n = {point.size:,}"
                f" {times(ratio.ratio)} times too fast."
            )
    return f"Not waiting for {label} hides nothing measurable here." if both else ""


# Nested sines.


def sine_sentence(points: Sequence[OperationPoint], label: str, depth: int, bandwidths: Mapping[str, float]) -> str:
    if not (both := _measured(points, label, EAGER_WAITED, FUSED_WAITED)):
        return ""
    ratio = both[-1].compare(EAGER_WAITED, FUSED_WAITED)
    several = f"Fusing {depth} sines into one program saves {depth - 1} of {depth} passes over memory"
    saves = several if depth > 1 else "Compiling a single sine saves no pass over memory"
    what = {
        Verdict.SLOWER: f"{label} is {times(ratio.ratio)} times as fast with it",
        Verdict.FASTER: f"{label} takes {times(1 / ratio.ratio)} times as long with it",
        Verdict.SAME: f"{label} takes the same time with it",
        Verdict.UNCLEAR: f"whether {label} is faster with it is unclear",
    }[ratio.verdict]
    return f"{saves}; at {both[-1].size:,} elements {what}. {_bound(both[-1], bandwidths)}".strip()


def _bound(point: OperationPoint, bandwidths: Mapping[str, float]) -> str:
    bandwidth, rate = bandwidths.get(point.task.runtime.device), point.rate(FUSED_WAITED)
    if not bandwidth or not rate:
        return ""
    what = next(words for least, words in BOUNDS if rate / bandwidth > least)
    return f"It moves {times(rate / 1e9)} GB/s, {rate / bandwidth:.0%} of what a copy moves here: {what}."


# Transfers.


def transfer_costs(points: Sequence[OperationPoint]) -> dict[str, Cost]:
    known = {
        way: {point.size: s for point in points if (s := point.seconds(way))}
        for way in dict.fromkeys(way for point in points for way in point.records)
    }
    fitted = {way: cost_of(list(by_size), list(by_size.values())) for way, by_size in known.items()}
    return {way: cost for way, cost in fitted.items() if cost is not None}


def transfer_sentence(points: Sequence[OperationPoint], label: str, costs: Mapping[str, Cost]) -> str:
    if not costs:
        return ""
    parts = [f"{label}, {way}: {_cost_text(cost)}." for way, cost in costs.items()]
    copied = costs.get(COPIED)
    if copied is not None and copied.grows and copied.half_bytes >= 1:
        parts.append(f"Below {_bytes_text(copied.half_bytes)}, most of a copy's time is the call, not its bytes.")
    if both := _measured(points, label, COPIED, ALIASED):
        ratio = both[-1].compare(COPIED, ALIASED)
        if ratio.verdict is Verdict.SLOWER:
            parts.append(
                f"At {_bytes_text(both[-1].size)} a copy takes {times(ratio.ratio)} times as long as an alias."
            )
    return " ".join(parts)


def _cost_text(cost: Cost) -> str:
    low_s, high_s = cost.latency_interval_s
    # The fitted intercept can be negative; a latency cannot.
    least, usual, most = (seconds(max(0.0, one_s)) for one_s in (low_s, cost.latency_s, high_s))
    if not cost.grows:
        return f"{usual} ({least} to {most}) at any size"
    slow, fast = cost.bandwidth_interval
    upper = times(fast / 1e9) if fast < inf else "any"
    return f"{usual} ({least} to {most}) + size ÷ {times(cost.bytes_per_s / 1e9)} GB/s ({times(slow / 1e9)} to {upper})"


def _bytes_text(n_bytes: float) -> str:
    unit, name = next(((u, n) for u, n in ((2**20, "MiB"), (2**10, "KiB")) if n_bytes >= u), (1, "bytes"))
    return f"{n_bytes / unit:,.3g} {name}"


# Stages of a library's first use: label, the time that includes the stage, and the time to subtract.
STAGES = (
    ("Python starts", "process", ""),
    ("import", "import", ""),
    ("device and first array", "context", ""),
    ("kernels of the first call", "first", "steady"),
    ("compiling it as one program", "compiled first", "compiled steady"),
)
PROGRAMS = {"step": "the step", "sine": "the sines"}
KINDS = {
    "product": "products",
    "reduction": "reductions",
    "elementwise": "element by element",
    "fusion": "several fused",
    "single": "single",
}
LANE_LABELS = {"there": "copy there", "compute": "compute", "back": "copy back"}


def _stacked(
    rows: Sequence[Mapping[str, Any]], kinds: Sequence[str], names: Sequence[str], row_px: int, of: str, **x: Any
) -> Chart:
    frame = pd.DataFrame(rows, columns=["label", "kind", "n"])
    frame["order"] = [kinds.index(kind) for kind in frame["kind"]]
    totals = frame.groupby("label", sort=False)["n"].sum().reset_index()
    totals["text"] = [x["written"](n) for n in totals["n"]]
    most, y = nice_above(1.1 * max(totals["n"], default=x["least"])), names_y(names, 170)
    scale, axis = alt.Scale(domain=[0, most], nice=False), alt.Axis(tickCount=5)
    colors = alt.Scale(domain=list(kinds), range=list(ordered_palette(len(kinds))))
    legend = alt.Legend(orient="top", title=None)
    bars = (
        alt.Chart(frame)
        .mark_bar(height=18)
        .encode(
            x=alt.X("n:Q", stack="zero", title=x["unit"], axis=axis, scale=scale),
            y=y,
            order="order:Q",
            color=alt.Color("kind:N", scale=colors, sort=list(kinds), legend=legend),
            tooltip=["label:N", "kind:N", alt.Tooltip("n:Q", format=".3~s", title=x["unit"])],
        )
    )
    text = alt.Chart(totals).mark_text(align="left", dx=6, color="currentColor").encode(x="n:Q", y=y, text="text:N")
    return Chart(styled(alt.layer(bars, text), height=row_px * max(1, len(names))), of)


# A library's first use.


def draw_first_uses(shown: Shown) -> Drawing:
    points, cards = points_of(shown), recorded_at("first use", shown.at.size, 4)
    caption = "seconds to the first result, and to compile its program, in a fresh process"
    known = {point.task.label: point for point in points} | cards
    figures = {caption: layout.drawing(first_chart(known, [*library_names(shown), *cards]), caption)}
    low_s, high_s = published.LAUNCH_S
    note = (
        f"Published: launching a kernel takes {seconds(low_s)} to {seconds(high_s)} (“{published.OVERHEAD_ARTICLE}”); a"
        " steady call here is four operations and the arrival of their results."
    )
    return drawing(shown, figures, first_sentence(points), quiet(note), "libraries, each in fresh processes")


def stage_s(point: OperationPoint, stage: tuple[str, str, str]) -> float | None:
    """Median seconds of a stage, clipped at 0; None if the library has no such stage."""
    _, of, less = stage
    whole, rest = point.seconds(of), point.seconds(less) if less else 0.0
    return None if whole is None or rest is None else max(0.0, whole - rest)


def first_chart(points: Mapping[str, OperationPoint], names: Sequence[str]) -> Chart:
    rows = [
        {"label": label, "kind": stage[0], "n": stage_seconds}
        for label, point in points.items()
        for stage in STAGES
        if (stage_seconds := stage_s(point, stage)) is not None
    ]
    kinds = [label for label, *_ in STAGES]
    return _stacked(rows, kinds, names, 44, "stages of a first use", unit="seconds", least=0.9, written=seconds)


def first_sentence(points: Sequence[OperationPoint]) -> str:
    known = [point for point in points if "first" in point.records]
    if not known:
        return ""
    before = {point.task.label: [stage_s(point, stage) or 0.0 for stage in STAGES[:-1]] for point in known}
    ordered = sorted(before, key=lambda label: sum(before[label]))
    slowest, total_s = before[ordered[-1]], sum(before[ordered[-1]])
    ends = dict.fromkeys((ordered[0], ordered[-1]))
    parts = [f"{label} has its first result after {seconds(sum(before[label]))}" for label in ends]
    which = "the latter" if len(parts) > 1 else "that"
    stage, *_ = STAGES[slowest.index(max(slowest))]
    longer = [
        f"{times(ratio.ratio)} times as long with {point.task.label}"
        for point in known
        if (ratio := point.compare("first", "steady", paired=False)).verdict is Verdict.SLOWER
    ]
    said = [
        f"{listed(parts)}: {max(slowest) / total_s:.0%} of {which} is “{stage}”.",
        f"Compared with a steady call, the first one takes {listed(longer)}." if longer else "",
        *map(_pays, known),
    ]
    return " ".join(filter(None, said))


def _pays(point: OperationPoint) -> str:
    """After how many calls compiling pays off; empty for a library that does not compile."""
    if (cost_s := stage_s(point, STAGES[-1])) is None:
        return ""
    ratio = point.compare("steady", "compiled steady", paired=False)
    if ratio.verdict is not Verdict.SLOWER:
        what = "not clearly quicker" if ratio.verdict is Verdict.UNCLEAR else "no quicker"
        return f"{point.task.label}'s compiled program is {what} at this size."
    saved_s = (1 - 1 / ratio.ratio) * (point.seconds("steady") or 0.0)
    return f"{point.task.label}'s compiled program pays for its compilation after {times(cost_s / saved_s)} calls."


# Compilers.


def draw_fusions(shown: Shown) -> Drawing:
    points = points_of(shown)
    note = (
        f"Published: “{published.OPERATIONS_ARTICLE}” counts four kernels for four sines before `torch.jit.script` and"
        f" one after. “{published.OVERHEAD_ARTICLE}” calls a compiled step one fused call: it is one call from Python,"
        " but as many kernels as counted above."
    )
    cards = recorded_at("fusion", shown.at.size, shown.at.depth)
    caption = "counts from the compiler's text" + "".join(f"; {name}" for name in cards)
    figures = {caption: layout.drawing(fusion_chart(points, cards), caption)}
    return drawing(shown, figures, fusion_sentence(points, shown.at.depth), quiet(note), of="")


def count_of(point: OperationPoint, program: str, when: str) -> dict[str, int]:
    names = {kind: f"{program}/{when}/{kind}" for kind in KINDS}
    return {kind: round(point.seconds(name) or 0.0) for kind, name in names.items() if name in point.records}


def fusion_chart(points: Sequence[OperationPoint], cards: Mapping[str, OperationPoint]) -> Chart:
    devices: dict[str, OperationPoint | None] = {
        ", GPU" if point.task.runtime.device == "gpu" else "": point for point in points
    }
    devices |= {f", {name.partition(',')[0]}": point for name, point in cards.items()}
    counted = {
        f"{title}{device}, {when}": count_of(point, program, when) if point is not None else {}
        for program, title in PROGRAMS.items()
        for device, point in (devices or {"": None}).items()
        for when in (BEFORE, AFTER)
    }
    rows = [{"label": label, "kind": KINDS[kind], "n": n} for label, one in counted.items() for kind, n in one.items()]
    x = {"unit": "operations before, kernels after", "least": 9.0, "written": str}
    return _stacked(rows, list(KINDS.values()), list(counted), 34, "operations and kernels", **x)


def fusion_sentence(points: Sequence[OperationPoint], depth: int) -> str:
    said = []
    for point in points:
        before, after, sines = (
            sum(count_of(point, *counted).values()) for counted in (("step", BEFORE), ("step", AFTER), ("sine", AFTER))
        )
        where = "On the GPU" if point.task.runtime.device == "gpu" else "On the CPU"
        products = count_of(point, "step", AFTER).get("product", 0)
        largest = round(point.seconds(f"step/{INSIDE}/fusion") or 0.0)
        if before:
            said.append(
                f"{where}, XLA turns the step's {before} operations into {after} kernels: {products} of them are"
                f" products, and the largest fusion has {largest} operations. It turns {counted(depth, 'sine')}"
                f" into {sines}."
            )
    return " ".join(said)


# Overlap of transfers and arithmetic.


def draw_overlaps(shown: Shown) -> Drawing:
    points, at = {point.task: point for point in points_of(shown)}, shown.at
    cards = recorded_at("overlap", at.size, at.depth, at.pieces)
    most_s = last_end_s([*points.values()])
    here = {task.label: (points.get(task), most_s) for task in shown.tasks}
    drawn = here | {name: (point, last_end_s([point])) for name, point in cards.items()}
    figures = {
        f"{name}, {way}: the lanes of one run": lanes_chart(point, way, most_s)
        for name, (point, most_s) in drawn.items()
        for way in (IN_TURN, IN_PIECES)
    }
    note = (
        f"Published: “{published.OPERATIONS_ARTICLE}” sees not much of a benefit in three streams and gives no figure."
        " Its streams cannot overlap: it synchronises each before the next one begins, there is only one piece, and the"
        " host copies pageable memory."
    )
    recorded = "".join(quiet(f"{name}: {_overlap(point)}") for name, point in cards.items())
    return drawing(shown, figures, overlap_sentence([*points.values()]), recorded + quiet(note), "devices")


def spans_of(point: OperationPoint, way: str) -> dict[str, list[tuple[float, float]]]:
    """Seconds at which each piece began and ended, by lane; lanes without measurements are missing."""
    names = {lane: [f"{way}/{lane}/{end}" for end in ("begins", "ends")] for lane in LANES}
    return {
        lane: list(zip(*(point.records[name].block_s for name in both), strict=True))
        for lane, both in names.items()
        if set(both) <= point.records.keys()
    }


def overlapped_share(spans: Mapping[str, Sequence[tuple[float, float]]]) -> float:
    """The share of a run in which at least two lanes were busy.

    >>> overlapped_share({"there": [(0.0, 1.0), (1.0, 2.0)], "compute": [(1.0, 2.0)], "back": [(2.0, 4.0)]})
    0.25
    """
    edges = sorted({edge for lane in spans.values() for span in lane for edge in span})
    both_s = sum(
        high - low
        for low, high in pairwise(edges)
        if sum(begin <= low and high <= end for lane in spans.values() for begin, end in lane) > 1
    )
    return both_s / (edges[-1] - edges[0]) if both_s else 0.0


def lanes_chart(point: OperationPoint | None, way: str, most_s: float) -> Chart:
    spans = spans_of(point, way) if point is not None else {}
    rows = [
        {"label": LANE_LABELS[lane], "begin": 1e3 * begin, "end": 1e3 * end, "piece": f"{number} of {len(pieces)}"}
        for lane, pieces in spans.items()
        for number, (begin, end) in enumerate(pieces, 1)
    ]
    names = list(LANE_LABELS.values())
    scale = alt.Scale(domain=[0, nice_above(1e3 * most_s)], nice=False)
    colors = alt.Scale(domain=names, range=list(ordered_palette(len(names))))
    bars = (
        alt.Chart(pd.DataFrame(rows, columns=["label", "begin", "end", "piece"]))
        .mark_bar(height=16, stroke="currentColor", strokeWidth=0.4)
        .encode(
            x=alt.X("begin:Q", title="milliseconds", axis=alt.Axis(tickCount=5), scale=scale),
            x2="end:Q",
            y=names_y(names, 110),
            color=alt.Color("label:N", scale=colors, legend=None),
            tooltip=["label:N", "piece:N", *(alt.Tooltip(f"{end}:Q", format=".3~g") for end in ("begin", "end"))],
        )
    )
    return Chart(styled(alt.layer(bars), height=32 * len(names)), f"lanes, {way}")


def last_end_s(points: Sequence[OperationPoint]) -> float:
    """Seconds of the longest drawn run; a hundredth of a second without any."""
    drawn = [spans_of(point, way) for point in points for way in (IN_TURN, IN_PIECES)]
    return max((end for spans in drawn for lane in spans.values() for _, end in lane), default=0.01)


def overlap_sentence(points: Sequence[OperationPoint]) -> str:
    whole = [point for point in points if {IN_TURN, IN_PIECES} <= point.records.keys()]
    return " ".join(f"{point.task.label}: {_overlap(point)}" for point in whole)


def _overlap(point: OperationPoint) -> str:
    ratio = point.compare(IN_TURN, IN_PIECES)
    in_turn, in_pieces = (overlapped_share(spans_of(point, way)) for way in (IN_TURN, IN_PIECES))
    what = {
        Verdict.SLOWER: f"with pieces it is {times(ratio.ratio)} times as fast",
        Verdict.FASTER: f"with pieces it is {times(1 / ratio.ratio)} times as slow",
        Verdict.SAME: "with pieces it is as fast",
        Verdict.UNCLEAR: "whether pieces make it faster is unclear",
    }[ratio.verdict]
    return (
        f"two stages overlap for {in_turn:.0%} of a run in turn, and for {in_pieces:.0%} in"
        f" {point.task.operation.pieces} pieces; {what}."
    )
