"""Charts and sentences of the notebook on sweeps. Never measures."""

import html
from collections.abc import Mapping, Sequence

import altair as alt
import pandas as pd

from lib.backends.stacked.packing import Shape
from lib.experiments import published
from lib.experiments.parallel_sweeps import COUNTED_BY, MIXED_BY, RATES, Method, Mixed, Point, saturates_at
from lib.formatting import listed, seconds
from lib.spec import Network
from lib.storage.records import Record
from lib.sweeps.strategies import STRATEGIES
from lib.timing.comparison import Verdict, without_spread
from lib.views.chart import (
    HEIGHT,
    ROW_COLOR,
    Chart,
    labels,
    log_scale,
    moved_apart,
    names_y,
    nice_above,
    room,
    styled,
)
from lib.views.markup import table

_BAR = 30  # pixels of a bar and its gap


def _s(record: Record) -> float:
    return record.measurement.median_s


def comparison_chart(methods: Sequence[Method], known: Mapping[str, Record]) -> Chart:
    """Wall seconds of the whole sweep by method, and how many times faster than Keras one after another.

    Args:
        methods: A row each.
        known: Records by the method's key; a method without one has an empty row.
    """
    usual = known.get("keras-sequential")
    rows = [
        {
            "label": method.label,
            "color": method.color,
            "s": _s(known[method.key]),
            "text": seconds(_s(known[method.key])) + (f" · {_s(usual) / _s(known[method.key]):.1f} ×" if usual else ""),
        }
        for method in methods
        if method.key in known
    ]
    return _bars(rows, [method.label for method in methods], "seconds of the whole sweep")


def _bars(rows: list[dict], labels: Sequence[str], x_title: str) -> Chart:
    most = nice_above(1.25 * max((row["s"] for row in rows), default=0.8))
    y = names_y(labels, 230, domain=False, ticks=False)
    x = alt.X(
        "s:Q", axis=alt.Axis(format=".3~g", tickCount=5), title=x_title, scale=alt.Scale(domain=[0, most], nice=False)
    )
    base = alt.Chart(pd.DataFrame(rows, columns=["label", "color", "s", "text"]))
    tooltip = ["label:N", alt.Tooltip("s:Q", format=".3~g", title="seconds")]
    bars = base.mark_bar(height=14, opacity=0.85).encode(x=x, y=y, color=ROW_COLOR, tooltip=tooltip)
    text = base.mark_text(align="left", dx=6, fontSize=11, fontWeight=600, color="currentColor").encode(
        x=x, y=y, text="text:N"
    )
    return Chart(styled(bars + text, height=_BAR * len(labels)), x_title)


def comparison_sentence(methods: Sequence[Method], known: Mapping[str, Record], epochs: int) -> str:
    """What was fastest, compared with Keras; empty until a method other than Keras was timed.

    Args:
        methods: All that can run here.
        known: Records by the method's key.
        epochs: Of each training.
    """
    took_s = {one: _s(known[one.key]) for one in methods if one.key in known and not one.by_keras}
    if not took_s:
        return ""
    best = min(took_s, key=took_s.__getitem__)
    best_s = took_s[best]
    text = f"Quickest: {best.label}, {seconds(best_s)} for {len(RATES)} rates and {epochs} epoch{'s' * (epochs > 1)}"
    usual, pooled = known.get("keras-sequential"), known.get("keras-processes")
    beside = [f"{_s(usual) / best_s:.1f} times faster than Keras one after another"] if usual else []
    beside += [f"{_s(pooled) / best_s:.1f} times faster than Keras in one process per core"] if pooled else []
    text += f": {listed(beside)}." if beside else "."
    if usual and (ours := known.get("sequential")):
        text += (
            " Most of that is less overhead in each step: JAX one after another is"
            f" {_s(usual) / _s(ours):.1f} times faster already"
        )
        text += "." if best.key == "sequential" else f", and “{best.label}” {_s(ours) / best_s:.1f} times faster still."
    return text


def published_table(known: Mapping[str, Record]) -> str:
    """HTML: the article's speed-ups beside those measured here."""
    usual = known.get("keras-sequential")
    rows = []
    for key, label in (("keras-processes", "a process for each training"), ("vmap", "JAX with vmap")):
        here = f"{_s(usual) / _s(known[key]):.1f} ×" if usual and key in known else "not measured yet"
        rows.append([label, f"about {published.SWEEP_TIMES_FASTER[key]:g} ×", here])
    before_s, after_s = published.SWEEP_S
    return (
        table(["beside Keras one after another", "published, 8 cores", "here"], rows)
        + f'<p class="lab-note">Published: “{html.escape(published.MACHINES_ARTICLE)}”, which also says {before_s:g} s'
        f" before and under {after_s:g} s after. Its 4 × come from eight cores: one process per core cannot be faster"
        " than there are cores.</p>"
    )


def saturation_chart(points: Sequence[Point], most: int) -> Chart:
    """Milliseconds of an epoch per network by number of networks, both logarithmic, one line per strategy.

    Args:
        points: Those that were not measured are left out.
        most: End of the x axis.
    """
    rows = [
        {
            "label": STRATEGIES[p.strategy].label,
            "color": STRATEGIES[p.strategy].color,
            "x": p.count,
            "y": 1e3 * p.each_s,
            "low": 1e3 * (p.low_s or p.each_s),
            "high": 1e3 * (p.high_s or p.each_s),
        }
        for p in points
        if p.each_s == p.each_s
    ]
    low, high = min((row["low"] for row in rows), default=50.0), max((row["high"] for row in rows), default=500.0)
    domain = (1 / nice_above(1 / low), nice_above(1.05 * high))
    frame = pd.DataFrame(rows, columns=["label", "color", "x", "y", "low", "high"])

    def y(field: str) -> alt.Y:
        return alt.Y(f"{field}:Q", scale=log_scale(domain), title=None, axis=alt.Axis(format="~s", tickCount=6))

    x = alt.X(
        "x:Q",
        scale=log_scale([1, max(2, most)], base=2),
        title="networks in one program",
        axis=alt.Axis(values=[2**k for k in range(11)], format="d", labelOverlap=True),
    )
    tooltip = [
        "label:N",
        alt.Tooltip("x:Q", title="networks"),
        alt.Tooltip("y:Q", title="ms per epoch and network", format=".3~g"),
    ]
    base = alt.Chart(frame).encode(x=x, color=ROW_COLOR)
    spread = base.mark_rule(strokeWidth=5, opacity=0.3).encode(y=y("low"), y2="high:Q")
    lines = base.mark_line(point={"size": 30, "filled": True}, strokeWidth=1.8).encode(y=y("y"), tooltip=tooltip)
    spec = styled(alt.layer(spread, lines, *labels(x, y("y"), y("at"), ROW_COLOR)), height=HEIGHT)
    ends = frame.sort_values("x").groupby("label", sort=False).tail(1).to_dict("records")
    spec["datasets"] |= {
        "ends": moved_apart(ends, domain),
        "room": room([STRATEGIES[key].label for key in COUNTED_BY]),
    }
    return Chart(spec, "by number of networks")


def saturation_sentence(points: Sequence[Point]) -> str:
    """Where each strategy stops gaining, and how much it gains over training one after another."""
    alone = [p.each_s for p in points if p.strategy == "sequential"]
    parts = []
    for key in ("vmap", "sharded"):
        mine = [p for p in points if p.strategy == key and p.each_s == p.each_s]
        if not mine or not alone:
            continue
        best = min(mine, key=lambda p: p.each_s)
        gain = alone[0] / best.each_s
        what = (
            f"{gain:.2g} times faster than one after another"
            if without_spread(gain).verdict is Verdict.SLOWER
            else "never faster than one after another"
        )
        at = saturates_at(mine)
        largest = max(mine, key=lambda p: p.count)
        worse = (
            f", and of {largest.count:,} each takes {largest.each_s / best.each_s:.1f} times as long as at best"
            if largest.each_s > 1.2 * best.each_s
            else ""
        )
        parts.append(f"{STRATEGIES[key].label.capitalize()} is {what} and gains nothing beyond {at} networks{worse}.")
    refused = [p.why_not for p in points if p.why_not]
    return " ".join(parts + [f"Not tried: {refused[0]}." for _ in refused[:1]])


def mixed_chart(found: Sequence[Mixed]) -> Chart:
    """Seconds of an epoch of all networks, by strategy; a strategy that was not measured yet has an empty row."""
    known = {m.strategy: m for m in found}
    labels = {
        key: (
            STRATEGIES[key].label
            + (f", {known[key].programs} programs" if key in known and known[key].programs > 1 else "")
        )
        for key in MIXED_BY
    }
    fastest_s = min((m.all_s for m in found), default=1.0)
    rows = [
        {
            "label": labels[m.strategy],
            "color": STRATEGIES[m.strategy].color,
            "s": m.all_s,
            "text": seconds(m.all_s) + (" · quickest" if m.all_s == fastest_s else ""),
        }
        for m in found
    ]
    return _bars(rows, list(labels.values()), "seconds of an epoch of all eight")


def mixed_sentence(found: Sequence[Mixed]) -> str:
    """The share of padding, and what one padded program gains; empty until both were measured."""
    known = {m.strategy: m for m in found}
    alone, padded = known.get("sequential"), known.get("padded")
    if alone is None or padded is None:
        return ""
    ratio = alone.all_s / padded.all_s
    verdict = {
        Verdict.SAME: "about as quick as",
        Verdict.SLOWER: f"{ratio:.2g} times faster than",
        Verdict.FASTER: f"{1 / ratio:.2g} times slower than",
    }[without_spread(ratio).verdict]
    return (
        f"Padding is {padded.wasted:.0%} of the arithmetic, and one padded program is {verdict} one network after"
        " another."
    )


def shapes_figure(networks: Sequence[Network]) -> str:
    """HTML: each network's neurons as a bar in the width that all are padded to; of one hidden layer each."""
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


def disturbance(flags: Sequence[str]) -> str:
    """HTML: what disturbed the measurements, one sentence for each kind; empty where nothing did."""
    kinds = {" ".join(flag.split()[:2]): flag for flag in flags}
    return "".join(
        f'<p class="lab-problem" role="status">Disturbed: {html.escape(flag)}.</p>' for flag in kinds.values()
    )
