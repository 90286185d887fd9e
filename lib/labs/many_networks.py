"""The article's sweep by each strategy, growing numbers of networks in one program, and networks of mixed widths.

`lib.sweeps.experiments.parallel_sweeps` measures the first two, for the recorder too.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from lib.formatting import counted, listed, seconds, times
from lib.model.backends.packing import Shape, waste
from lib.model.backends.registry import DEFAULT, DEVICES, Runtime, unavailable
from lib.model.hardware.machine import usable_cores, usable_memory_bytes
from lib.model.spec import Network, Training
from lib.sweeps.experiments import published
from lib.sweeps.experiments.parallel_sweeps import (
    COUNTED_BY,
    COUNTS,
    RATES,
    Method,
    Point,
    compare,
    compared,
    methods,
    saturation,
)
from lib.sweeps.experiments.recorded_machines import Machine, card_of, named, recorded_gpus
from lib.sweeps.measuring import measured_s, step_times
from lib.sweeps.storage.records import Kind
from lib.sweeps.storage.store import Store
from lib.sweeps.sweep import STRATEGIES, Limits, parts
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Note, State, noted
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.comparison import Verdict, without_spread
from lib.ui import layout
from lib.ui.controls import Controls, batch_size, dropdown, slider
from lib.ui.lab import Asked, Drawing, Shown, Work
from lib.ui.views.chart import (
    HEIGHT,
    Chart,
    alt,
    labels,
    log_scale,
    moved_apart,
    names_y,
    nice_above,
    pd,
    room,
    row_color,
    styled,
)
from lib.ui.views.markup import quiet

SPREADS = tuple(round(0.1 * k, 1) for k in range(11))
SATURATED_WITHIN = 0.05
N_DIFFERENT = 8
MIXED_BY = ("sequential", "vmap", "padded", "sharded")
PUBLISHED = (
    "Published, on 8 cores: about {:g} times as fast with one process per training, and {:g} times with JAX's vmap, as"
    " Keras one after another (“{}”, which also gives {:g} s before and under {:g} s after). The first gain comes from"
    " eight cores: one process per core cannot gain more than the number of cores."
).format(
    *(published.SWEEP_TIMES_FASTER[key] for key in ("keras-processes", "vmap")),
    published.MACHINES_ARTICLE,
    *published.SWEEP_S,
)


class ArticleSweep(Controls):
    AGAIN = "Time Keras too", "Time what is missing, including Keras: takes a minute or more"
    epochs = slider("Epochs for each of five rates", 3, range(1, 11))


class Saturation(Controls):
    most = slider("Networks at once, up to", 32, COUNTS[1:])
    size = batch_size("Batch size", 32)
    device = dropdown("Device", "cpu", lambda: [one for one in DEVICES if unavailable(Runtime(DEFAULT, one)) is None])


class MixedWidths(Controls):
    spread = slider("How different: 0 all alike, 1 from 16 to 512 neurons", 0.3, SPREADS)
    size = batch_size("Batch size", 32)


# The article's sweep.


def time_sweep(store: Store) -> Callable[[ArticleSweep], Asked]:
    def make(at: ArticleSweep, with_keras: bool) -> tuple[tuple, Work]:
        cached = compared(store, at.epochs)
        todo = [one for one in methods() if one.key not in cached and (with_keras or not one.by_keras)]
        return (cached, not todo), partial(compare, todo, at.epochs)

    return lambda at: Asked(at, partial(make, at))


def draw_sweep(shown: Shown) -> Drawing:
    now, every, epochs = shown.now, methods(), shown.at.epochs
    cached, complete = shown.known
    known = cached | {str(one.subject["method"]): one for one in now.items if one.kind == Kind.SWEEP}
    took_s = {key: record.measurement.median_s for key, record in known.items()}
    words = now.note or f"{len(known)} of {len(every)} strategies timed, once each"
    if now.state is State.DONE and len(known) < len(every):
        words += "; Keras takes a minute or more: press “Time Keras too”"
    caption = f"five learning rates, {epochs} epochs each, batch size 32, evaluation included"
    line = layout.state_line(layout.saved_or(now.state, complete), len(known), len(every), words, now.problem)
    below = layout.disturbed(list(known.values())) + quiet(PUBLISHED)
    return Drawing.of({caption: sweep_chart(every, took_s)}, line, sweep_sentence(every, took_s, epochs), below)


def sweep_chart(methods: Sequence[Method], took_s: Mapping[str, float]) -> Chart:
    usual_s = took_s.get("keras-sequential")
    faster = {key: f" · {usual_s / s:.1f} ×" if usual_s else "" for key, s in took_s.items()}
    return _bars(
        [(one.label, one.color, took_s.get(one.key), faster.get(one.key, "")) for one in methods],
        "seconds of the whole sweep",
    )


def _bars(bars: Sequence[tuple[str, str, float | None, str]], title: str) -> Chart:
    rows = [
        {"label": label, "color": color, "s": s, "text": seconds(s) + remark}
        for label, color, s, remark in bars
        if s is not None
    ]
    most = nice_above(1.25 * max((row["s"] for row in rows), default=0.8))
    y = names_y([label for label, *_ in bars], 230, domain=False, ticks=False)
    x = alt.X(
        "s:Q", axis=alt.Axis(format=".3~g", tickCount=5), title=title, scale=alt.Scale(domain=[0, most], nice=False)
    )
    base = alt.Chart(pd.DataFrame(rows, columns=["label", "color", "s", "text"]))
    tooltip = ["label:N", alt.Tooltip("s:Q", format=".3~g", title="seconds")]
    drawn = base.mark_bar(height=14, opacity=0.85).encode(x=x, y=y, color=row_color(), tooltip=tooltip)
    text = base.mark_text(align="left", dx=6, fontSize=11, fontWeight=600, color="currentColor").encode(
        x=x, y=y, text="text:N"
    )
    return Chart(styled(drawn + text, height=30 * len(bars)), title)


def sweep_sentence(methods: Sequence[Method], took_s: Mapping[str, float], epochs: int) -> str:
    ours_s = {one: took_s[one.key] for one in methods if one.key in took_s and not one.by_keras}
    if not ours_s:
        return ""
    best = min(ours_s, key=ours_s.__getitem__)
    best_s, keras_s, jax_s = ours_s[best], took_s.get("keras-sequential"), took_s.get("sequential")
    so_far = " so far" * any(one.key not in took_s for one in methods if not one.by_keras)
    sweep = f"{len(RATES)} rates and {counted(epochs, 'epoch')}"
    text = f"Fastest{so_far}: {best.label}, {seconds(best_s)} for {sweep}"
    keras = {"keras-sequential": "one after another", "keras-processes": "in one process per core"}
    beside = [
        f"{took_s[key] / best_s:.1f} times faster than Keras {how}" for key, how in keras.items() if key in took_s
    ]
    text += f": {listed(beside)}." if beside else "."
    if keras_s and jax_s:
        text += (
            f" Most of that comes from less overhead per step: JAX one after another is already {keras_s / jax_s:.1f}"
            " times faster"
        )
        text += "." if best.key == "sequential" else f", and “{best.label}” {jax_s / best_s:.1f} times faster still."
    return text


# Growing numbers of networks.


def time_saturation(at: Saturation) -> Asked:
    def make(again: bool) -> tuple[tuple, Work]:
        free_bytes = usable_memory_bytes(at.device)
        return (), partial(saturation, at.most, at.size, device=at.device, free_bytes=free_bytes, again=again)

    return Asked(at, make)


def draw_saturation(shown: Shown) -> Drawing:
    now, most = shown.now, shown.at.most
    points = [item for item in now.items if isinstance(item, Point)]
    hollow = recorded(most, shown.at.size)
    machines = "; ".join(dict.fromkeys(named(machine) for machine, _ in hollow))
    total = 3 * sum(count <= most for count in COUNTS) - 2
    line = layout.state_line(
        now.state, total if now.over else len(points), total, now.note or f"{len(points)} points", now.problem
    )
    return Drawing.of(
        {"milliseconds per epoch and network": saturation_chart(points, most, hollow)},
        line,
        saturation_sentence(points) if now.over else "",
        layout.disturbed_by(flag for point in points for flag in point.disturbed)
        + quiet(f"Hollow: {machines}." if machines else ""),
    )


def recorded(most: int, batch_size: int) -> list[tuple[Machine, Point]]:
    """Points recorded on cards; there are some only at batch size 32."""
    return [
        (machine, Point(key, "gpu", count, one.middle))
        for machine in (recorded_gpus() if batch_size == 32 else ())
        for (key, count), one in machine.models("gpu").items()
        if count <= most
    ]


def saturation_chart(points: Sequence[Point], most: int, elsewhere: Sequence[tuple[Machine, Point]] = ()) -> Chart:
    """Milliseconds per epoch and network by number of networks up to `most`, both logarithmic, a line per strategy.

    Points that were not measured are left out; those from `elsewhere` are hollow.
    """
    lines = [(STRATEGIES[p.strategy].label, "solid", p) for p in points if not p.why_not]
    lines += [(f"{card_of(machine)}, {STRATEGIES[p.strategy].label}", "hollow", p) for machine, p in elsewhere]
    rows = [
        {
            "label": label,
            "known": known,
            "color": STRATEGIES[p.strategy].color,
            "x": p.count,
            "y": 1e3 * p.each_s,
            "low": 1e3 * (p.low_s or p.each_s),
            "high": 1e3 * (p.high_s or p.each_s),
        }
        for label, known, p in lines
    ]
    low, high = min((row["low"] for row in rows), default=50.0), max((row["high"] for row in rows), default=500.0)
    domain = (1 / nice_above(1 / low), nice_above(1.05 * high))
    frame = pd.DataFrame(rows, columns=["label", "known", "color", "x", "y", "low", "high"])

    def y(field: str) -> "alt.Y":
        return alt.Y(f"{field}:Q", scale=log_scale(domain), title=None, axis=alt.Axis(format="~s", tickCount=6))

    x = alt.X(
        "x:Q",
        scale=log_scale([1, max(2, most)], base=2),
        title="networks in one program",
        axis=alt.Axis(values=list(COUNTS), format="d", labelOverlap=True),
    )
    tooltip = [
        "label:N",
        alt.Tooltip("x:Q", title="networks"),
        alt.Tooltip("y:Q", title="ms per epoch and network", format=".3~g"),
    ]
    here, there = (
        alt.Chart(frame[frame["known"] == known]).encode(x=x, color=row_color()) for known in ("solid", "hollow")
    )
    spread = here.mark_rule(strokeWidth=5, opacity=0.3).encode(y=y("low"), y2="high:Q")
    solid = here.mark_line(point={"size": 30, "filled": True}, strokeWidth=1.8).encode(y=y("y"), tooltip=tooltip)
    mark = {"size": 40, "filled": False, "shape": "diamond"}
    hollow = there.mark_line(point=mark, strokeWidth=1.2, strokeDash=[4, 3]).encode(y=y("y"), tooltip=tooltip)
    spec = styled(alt.layer(spread, solid, hollow, *labels(x, y("y"), y("at"), row_color())), height=HEIGHT)
    ends = frame.sort_values("x").groupby(["label", "color"], sort=False).tail(1).to_dict("records")
    spec["datasets"] |= {
        "ends": moved_apart(ends, domain),
        "room": room([*(STRATEGIES[key].label for key in COUNTED_BY), *frame["label"]]),
    }
    return Chart(spec, "by number of networks")


def saturation_sentence(points: Sequence[Point]) -> str:
    alone = [p.each_s for p in points if p.strategy == "sequential"]
    said = []
    for key in ("vmap", "sharded"):
        mine = [p for p in points if p.strategy == key and not p.why_not]
        if not mine or not alone:
            continue
        best, largest = min(mine, key=lambda p: p.each_s), max(mine, key=lambda p: p.count)
        gain, slowdown = alone[0] / best.each_s, largest.each_s / best.each_s
        gains = without_spread(gain).verdict is Verdict.SLOWER
        what = f"{times(gain)} times faster" if gains else "never faster"
        worse = f"; with {largest.count:,}, each takes {slowdown:.1f} times as long as at best" * (slowdown > 1.2)
        label = STRATEGIES[key].label.capitalize()
        said.append(
            f"{label} is {what} than one after another and gains nothing beyond {saturates_at(mine)} networks{worse}."
        )
    return " ".join(said + [f"Not tried: {point.why_not}." for point in points if point.why_not][:1])


def saturates_at(points: Sequence[Point]) -> int:
    """The smallest number of networks whose time is within `SATURATED_WITHIN` of the best, of at least one point.

    >>> of = lambda count, each_s: Point("vmap", "cpu", count, each_s)
    >>> saturates_at([of(2, 1.0), of(4, 0.5), of(8, 0.49), of(16, 0.6)])
    4
    """
    best_s = min(point.each_s for point in points)
    return min(point.count for point in points if point.each_s <= (1 + SATURATED_WITHIN) * best_s)


# Mixed widths.


@dataclass(frozen=True)
class Mixed:
    """The eight networks by one strategy.

    `all_s` is the seconds of an epoch of all of them, `programs` the number of programs, and `wasted` the share of the
    arithmetic spent on padding.
    """

    strategy: str
    all_s: float
    programs: int
    wasted: float
    disturbed: tuple[str, ...] = ()


def time_mixed(at: MixedWidths) -> Asked:
    return Asked(at, lambda again: ((), partial(mixed, at.spread, at.size, again=again)))


def different(spread: float) -> list[Network]:
    """Eight networks of one hidden layer each; the geometric mean of their widths is about 90.

    Args:
        spread: 0 (all alike) to 1 (16 to 512 neurons, evenly spaced on a log scale).

    >>> {network.hidden for network in different(0.0)}
    {(91,)}
    """
    middle, farthest = np.log(np.sqrt(16 * 512)), np.log(512 / 16) / 2
    widths = np.exp(middle + spread * farthest * np.linspace(-1, 1, N_DIFFERENT))
    return [Network((max(1, round(float(width))),)) for width in widths]


def mixed(
    spread: float, batch_size: int, engine: Engine, store: Store, cancel: Cancel, request: Request, again: bool = False
) -> Iterator[Mixed | Note]:
    """Time an epoch of the same eight networks by each strategy of `MIXED_BY` that can run here.

    Args:
        spread: How much the widths differ, 0 to 1: see `different`.
        batch_size: Images per step.
        engine: Measures the steps.
        store: Where step times are looked up and stored.
        cancel: Ends the measurement when it is set.
        request: Place in the queue of everything that runs on this machine.
        again: Repeat stored step times.

    Yields:
        A `Mixed` per strategy, and notes on the progress.
    """
    trainings = [Training(network, 0.1, batch_size, 1) for network in different(spread)]
    limits = Limits(float("inf"), float("inf"), usable_cores(), 1.0)
    for key in MIXED_BY:
        plan = parts(STRATEGIES[key], trainings, limits)
        if cancel.is_set() or (key == "sharded" and limits.n_devices < 2):
            return
        yield Note(STRATEGIES[key].label)
        times = step_times(plan, engine, store, Runtime(), cancel, request, again)
        found = yield from noted(times, STRATEGIES[key].label)
        if cancel.is_set() or len(found) < len(plan):
            return
        wasted = waste([t.network for t in trainings]) if STRATEGIES[key].padded else 0.0
        disturbed = tuple(dict.fromkeys(flag for step_time in found.values() for flag in step_time.disturbed))
        yield Mixed(key, measured_s(found), len(plan), wasted, disturbed)


def draw_mixed(shown: Shown) -> Drawing:
    now = shown.now
    found = [item for item in now.items if isinstance(item, Mixed)]
    line = layout.state_line(now.state, len(found), len(MIXED_BY), now.note or f"{len(found)} strategies", now.problem)
    figures = {
        "neurons of the eight networks, within the width all are padded to": shapes_figure(different(shown.at.spread)),
        "seconds per epoch of all eight, from measured steps": mixed_chart(found),
    }
    below = layout.disturbed_by(flag for one in found for flag in one.disturbed)
    return Drawing.of(figures, line, mixed_sentence(found), below)


def mixed_chart(found: Sequence[Mixed]) -> Chart:
    known, fastest_s, bars = {one.strategy: one for one in found}, min((one.all_s for one in found), default=0.0), []
    for strategy in (STRATEGIES[key] for key in MIXED_BY):
        one = known.get(strategy.key)
        programs = f", {one.programs} programs" if one and one.programs > 1 else ""
        quickest = " · fastest" if one and one.all_s == fastest_s else ""
        bars.append((strategy.label + programs, strategy.color, one and one.all_s, quickest))
    return _bars(bars, "seconds per epoch of all eight")


def mixed_sentence(found: Sequence[Mixed]) -> str:
    known = {m.strategy: m for m in found}
    alone, padded = known.get("sequential"), known.get("padded")
    if alone is None or padded is None:
        return ""
    ratio = alone.all_s / padded.all_s
    verdict = {
        Verdict.SAME: "is about as fast as",
        Verdict.SLOWER: f"is {times(ratio, 3)} times as fast as",
        Verdict.FASTER: f"takes {times(1 / ratio, 3)} times as long as",
    }[without_spread(ratio).verdict]
    return (
        f"Padding is {padded.wasted:.0%} of the arithmetic, and one padded program {verdict} one network after another."
    )


def shapes_figure(networks: Sequence[Network]) -> str:
    """HTML: each network's neurons as a bar inside the padded width; for networks of one hidden layer."""
    widest = Shape.of(networks).widths[0]
    bars = "".join(
        f'<div title="{network.label} neurons">'
        f'<i><b style="width:{100 * network.hidden[0] / widest:.1f}%"></b></i><span>{network.label}</span></div>'
        for network in networks
    )
    return (
        f'<div class="shapes" role="img" aria-label="neurons of each network: {", ".join(n.label for n in networks)},'
        f' padded to {widest}">{bars}</div>'
    )
