"""Machines side by side, as people see them: tables, charts and the sentences computed from them. Measures nothing."""

import html
from collections.abc import Mapping, Sequence

import altair as alt
import numpy as np
import pandas as pd

from lib.anatomy.parts import PARTS
from lib.backends import BACKENDS, Way
from lib.charts import Chart, nice_above, ordered_palette, styled
from lib.compare import ARTICLES_WAY, TITLES, Best, Judged, best_way, ratio, to_target
from lib.experiments import listed, seconds
from lib.race import BATCH_SIZES
from lib.recorded import EXPERIMENTS, Machine, Seconds
from lib.targets import Learned
from lib.timing import justified

_GREY = "#8a8f98"
Prices = Mapping[str, float]


def interval(one: Seconds) -> str:
    """A time with no more digits than its quartiles justify, and these."""
    if not one.n:
        return seconds(one.middle)
    return f"{justified(one.middle, max(one.high - one.low, 0.01 * one.middle))} ({seconds(one.low)} – {seconds(one.high)})"


def dollars(value: float) -> str:
    """Two digits, in dollars or, below a cent, in thousandths of one.

    >>> dollars(0.0123), dollars(0.00042), dollars(12.3)
    ('0.012 $', '0.42 m$', '12 $')
    """
    return f"{value * 1e3:.2g}\u202fm$" if value < 0.01 else f"{value:.2g}\u202f$"


def names(machines: Sequence[Machine]) -> dict[str, str]:
    """A short name for each machine: what tells it from the others."""
    short = {}
    for machine in machines:
        parts = machine.name.split(" · ")
        text = (
            machine.name
            if machine.is_published
            else " · ".join(parts[:2] + [part for part in parts[4:] if part != "no GPU"])
        )
        taken = [other for other in short.values() if other.split(" #")[0] == text]
        short[machine.name] = f"{text} #{len(taken) + 1}" if taken else text
    return short


def marked(machine: Machine) -> str:
    """Where its figures come from, in two words and a date."""
    if machine.is_published:
        return "published"
    first, last = machine.dates
    return f"recorded {first}" + (f" to {last}" if last != first else "")


def machines_table(machines: Sequence[Machine], prices: Prices) -> str:
    """HTML: what each is, where it comes from, and how sound its measurements are."""
    rows = ["<tr><th>machine</th><th>figures</th><th>from</th><th>ways</th><th>disturbed</th><th>$ an hour</th></tr>"]
    for machine in machines:
        price = prices.get(machine.name)
        priced = f"{price:g} ({html.escape(machine.price_date or 'entered here')})" if price else "–"
        share = "not told" if machine.is_published else f"{machine.disturbed:.0%}"
        css = ' class="race-published"' if machine.is_published else ""
        rows.append(
            f'<tr{css}><th scope="row">{html.escape(machine.name)}</th><td>{marked(machine)}</td><td>{html.escape(machine.source)}</td>'
            f"<td>{len(machine.ways)}</td><td>{share}</td><td>{priced}</td></tr>"
        )
    failed = [
        f"<li>{html.escape(machine.name)}: {html.escape(str(one.subject.get('task', '')))}: {html.escape('; '.join(one.warnings))}</li>"
        for machine in machines for one in machine.failures
    ]  # fmt: skip
    lost = (
        f'<p class="lab-note">Could not be measured:</p><ul class="lab-note">{"".join(failed)}</ul>' if failed else ""
    )
    return f'<div class="lab-scroll"><table class="lab-table">{"".join(rows)}</table></div>{lost}'


def article_table(machines: Sequence[Machine], prices: Prices) -> str:
    """HTML: the second article's table, carried on: its three experiments by its own way and by each machine's quickest."""
    short = names(machines)
    rows = [
        "<tr><th>machine</th><th>trained by</th>"
        + "".join(f"<th>{title}</th>" for title in TITLES.values())
        + "<th>all three</th><th>cost</th></tr>"
    ]
    for machine in machines:
        for way in _ways_of_the_article(machine):
            times = [machine.experiment(name, way) for name in EXPERIMENTS]
            if not any(times):
                continue
            total_s = sum(one.middle for one in times if one) if all(times) else None
            price = prices.get(machine.name)
            cost = dollars(total_s * price / 3600) if total_s and price else "–"
            css = ' class="race-published"' if machine.is_published else ""
            cells = "".join(f"<td>{interval(one) if one else '–'}</td>" for one in times)
            label = ("published: " if machine.is_published else "") + short[machine.name]
            rows.append(
                f'<tr{css}><th scope="row">{html.escape(label)}</th><td>{html.escape(way.label)}</td>{cells}'
                f"<td>{seconds(total_s) if total_s else '–'}</td><td>{cost}</td></tr>"
            )
    return f'<div class="lab-scroll"><table class="lab-table">{"".join(rows)}</table></div>'


def _ways_of_the_article(machine: Machine) -> list[Way]:
    """Its own way on each device that the machine has, and on each the quickest."""
    devices = list(dict.fromkeys(way.device for way in machine.ways))
    article = [way for way in machine.ways if way.backend == ARTICLES_WAY]
    best = [best_way(machine, lambda m, way: m.experiment("depth", way), device) for device in devices]
    return list(dict.fromkeys([*article, *(one.way for one in best if one is not None)]))


def article_sentence(machines: Sequence[Machine]) -> str:
    """The article's claim beside what was measured: its own way against the quickest, on each machine."""
    short, said = names(machines), []
    for machine in machines:
        if machine.is_published:
            continue
        usual = next(
            (
                t
                for way in machine.ways
                if way.backend == ARTICLES_WAY and (t := machine.experiment("learning-rate", way))
            ),
            None,
        )
        best = best_way(machine, lambda m, way: m.experiment("learning-rate", way))
        if usual and best and best.way.backend != ARTICLES_WAY:
            low, middle, high = ratio(usual, best.seconds)
            said.append(
                f"On {short[machine.name]} the learning-rate experiment takes {seconds(usual.middle)} by the article's own Keras on TensorFlow and "
                f"{seconds(best.seconds.middle)} by {best.way.label}: {middle:.2g} times less ({low:.2g} to {high:.2g})."
            )
    others = [s for m in machines if m.is_published for way in m.ways if (s := m.experiment("learning-rate", way))]
    if others and said:
        said.append(
            f"The article's machines took {listed([seconds(one.middle) for one in others])}: another way of training is worth more than another machine."
        )
    return " ".join(said)


def epoch_charts(machines: Sequence[Machine]) -> list[tuple[str, Chart]]:
    """Seconds of an epoch by batch size, a chart a machine on the same axes: a line a way, its quartiles as a bar."""
    short = names(machines)
    rows = {machine.name: _epoch_rows(machine) for machine in machines}
    domain = _decades([row["s"] for some in rows.values() for row in some])
    return [
        (f"{short[machine.name]} ({marked(machine)})", _epoch_chart(rows[machine.name], domain))
        for machine in machines
        if rows[machine.name]
    ]


def _epoch_rows(machine: Machine) -> list[dict]:
    rows = []
    for way in machine.ways:
        for size in BATCH_SIZES:
            if (one := machine.epoch(way, size)) is not None:
                rows.append(
                    {"way": way.label, "color": way.color, "size": size, "s": one.middle, "low": one.low, "high": one.high,
                     "device": way.device, "told": interval(one)}
                )  # fmt: skip
    return rows


def _epoch_chart(rows: list[dict], domain: tuple[float, float]) -> Chart:
    base = alt.Chart(pd.DataFrame(rows))
    x = alt.X("size:Q", scale=alt.Scale(type="log", base=2, domain=[1, 4096], nice=False), title="batch size", axis=alt.Axis(values=[1, 32, 512, 4096], format=",d"))  # fmt: skip
    y = alt.Y("s:Q", scale=alt.Scale(type="log", domain=list(domain), nice=False), title="seconds an epoch", axis=alt.Axis(tickCount=4, format="~g"))  # fmt: skip
    color = alt.Color("color:N", scale=None)
    dash = alt.StrokeDash("device:N", scale=alt.Scale(domain=["cpu", "gpu"], range=[[1, 0], [4, 3]]), legend=None)
    tooltip = ["way:N", alt.Tooltip("size:Q", title="batch size"), alt.Tooltip("told:N", title="an epoch")]
    lines = base.mark_line(strokeWidth=1.6).encode(x=x, y=y, color=color, detail="way:N", strokeDash=dash)
    points = base.mark_point(filled=True, size=42).encode(x=x, y=y, color=color, tooltip=tooltip)
    bars = base.mark_rule(strokeWidth=1.2).encode(
        x=x, y=alt.Y("low:Q", title="seconds an epoch"), y2="high:Q", color=color
    )
    return Chart(styled(lines + bars + points), "seconds of an epoch")


def _decades(values: Sequence[float]) -> tuple[float, float]:
    if not values:
        return 0.01, 100.0
    return 10 ** np.floor(np.log10(min(values) * 0.95)), 10 ** np.ceil(np.log10(max(values) * 1.05))


def legend(machines: Sequence[Machine]) -> str:
    """HTML: the ways' colours, once for all panels."""
    ways = dict.fromkeys(way for machine in machines for way in machine.ways)
    order = sorted(ways, key=lambda way: (way.device, list(BACKENDS).index(way.backend)))
    entries = [
        f'<span class="compare-key"><i style="border-top: 3px {"dashed" if way.device == "gpu" else "solid"} {way.color}"></i>{html.escape(way.label)}</span>'
        for way in order
    ]
    return f'<p class="compare-legend">{"".join(entries)}</p>'


def target_chart(machines: Sequence[Machine], learned: Learned, target: float) -> Chart:
    """Seconds to the accuracy by machine and batch size, by each machine's quickest way there."""
    short, rows = names(machines), []
    colors = dict(zip(BATCH_SIZES, ordered_palette(len(BATCH_SIZES)), strict=True))
    labels = [short[m.name] for m in machines]
    for machine in machines:
        for size in BATCH_SIZES:
            best = best_way(machine, lambda m, way, size=size: to_target(m, way, size, learned, target))
            if best is not None:
                one = best.seconds
                rows.append(
                    {"machine": short[machine.name], "size": f"{size:,}", "color": colors[size], "s": one.middle, "low": one.low, "high": one.high,
                     "way": best.way.label, "told": interval(one)}
                )  # fmt: skip
    kept = [label for label in labels if any(row["machine"] == label for row in rows)]
    least, most = _decades([row[name] for row in rows for name in ("low", "high")])
    base = alt.Chart(pd.DataFrame(rows, columns=["machine", "size", "color", "s", "low", "high", "way", "told"]))
    x = alt.X("s:Q", scale=alt.Scale(type="log", domain=[least, most], nice=False), title="seconds", axis=alt.Axis(tickCount=5, format="~g"))  # fmt: skip
    y = alt.Y("machine:N", sort=kept, scale=alt.Scale(domain=kept), title=None, axis=alt.Axis(labelLimit=230))
    offset = alt.YOffset("size:N", sort=[f"{size:,}" for size in BATCH_SIZES])
    color = alt.Color("color:N", scale=None)
    tooltip = [
        "machine:N",
        alt.Tooltip("size:N", title="batch size"),
        "way:N",
        alt.Tooltip("told:N", title="to the accuracy"),
    ]
    bars = base.mark_rule(strokeWidth=2).encode(
        x=alt.X("low:Q", title="seconds"), x2="high:Q", y=y, yOffset=offset, color=color
    )
    points = base.mark_point(filled=True, size=55).encode(x=x, y=y, yOffset=offset, color=color, tooltip=tooltip)
    text = base.mark_text(align="left", dx=8, fontSize=10, color="currentColor").encode(
        x=alt.X("high:Q", title="seconds"), y=y, yOffset=offset, text="size:N"
    )
    return Chart(styled(bars + points + text, height=max(1, len(kept)) * 130), "seconds to an accuracy")


def step_chart(machines: Sequence[Machine]) -> Chart:
    """Where a step of 32 images goes, in shares, by machine and way: the machine's quickest and slowest on each device."""
    short, rows, labels = names(machines), [], []
    for machine in machines:
        for way in machine.ways:
            one = None if machine.is_published else machine.split(way)
            if one is None:
                continue
            label = f"{short[machine.name]}: {way.label}" if len(machines) > 1 else way.label
            labels.append(label)
            parts = {**one.parts_s, "unexplained": max(0.0, one.unexplained_s)}
            rows += [
                {"label": label, "part": name, "share": value / one.drawn_s, "order": number, "told": seconds(value), "step": seconds(one.step_s)}
                for number, (name, value) in enumerate(parts.items())
            ]  # fmt: skip
    kinds = [part.name for part in PARTS] + ["unexplained"]
    color = alt.Color(
        "part:N", scale=alt.Scale(domain=kinds, range=[part.color for part in PARTS] + ["#c9b8a8"]), sort=kinds,
        legend=alt.Legend(orient="top", title=None, columns=3),
    )  # fmt: skip
    base = alt.Chart(pd.DataFrame(rows, columns=["label", "part", "share", "order", "told", "step"]))
    y = alt.Y("label:N", sort=labels, scale=alt.Scale(domain=labels), title=None, axis=alt.Axis(labelLimit=260))
    x = alt.X(
        "share:Q",
        stack="zero",
        scale=alt.Scale(domain=[0, 1]),
        title="share of a step on 32 images",
        axis=alt.Axis(format="%", tickCount=5),
    )
    bars = base.mark_bar(height=16).encode(x=x, y=y, color=color, order="order:Q", tooltip=["label:N", "part:N", "told:N", alt.Tooltip("share:Q", format=".0%"), "step:N"])  # fmt: skip
    return Chart(styled(bars, height=34 * max(1, len(labels)) + 20), "where a step goes")  # type: ignore[arg-type]


def models_chart(machines: Sequence[Machine]) -> Chart:
    """Milliseconds of an epoch for each network, by how many are trained in one program."""
    short, rows = names(machines), []
    for machine, color in zip(machines, ordered_palette(len(machines)), strict=True):
        for device in ("cpu", "gpu"):
            for (strategy, count), one in machine.models(device).items():
                if strategy in ("vmap", "sequential"):
                    label = f"{short[machine.name]}{', GPU' if device == 'gpu' else ''}"
                    rows.append(
                        {"machine": label, "color": color, "count": count, "ms": 1e3 * one.middle, "dash": device}
                    )
    base = alt.Chart(pd.DataFrame(rows, columns=["machine", "color", "count", "ms", "dash"]))
    x = alt.X(
        "count:Q",
        scale=alt.Scale(type="log", base=2, nice=False),
        title="networks in one program",
        axis=alt.Axis(values=[1, 4, 16, 64]),
    )
    most = nice_above(1.1 * max((row["ms"] for row in rows), default=1.0))
    y = alt.Y("ms:Q", scale=alt.Scale(domain=[0, most]), title="ms an epoch and network", axis=alt.Axis(tickCount=4))
    color = alt.Color("color:N", scale=None)
    dash = alt.StrokeDash("dash:N", scale=alt.Scale(domain=["cpu", "gpu"], range=[[1, 0], [4, 3]]), legend=None)
    lines = base.mark_line(point=True).encode(x=x, y=y, color=color, strokeDash=dash, detail="machine:N", tooltip=["machine:N", "count:Q", alt.Tooltip("ms:Q", format=".3~g")])  # fmt: skip
    return Chart(styled(lines), "many networks at once")  # type: ignore[arg-type]


def judged_table(judged: Sequence[Judged], prices: Prices, machines: Sequence[Machine]) -> str:
    """HTML: for each piece of work the quickest machine and way with its interval, the next one, and the cheapest."""
    short = names(machines)
    rows = ["<tr><th>work</th><th>quickest</th><th>takes</th><th>costs</th><th>next</th><th>cheapest</th></tr>"]
    for one in judged:
        best, others = one.by_speed[0], one.by_speed[1:]
        cost = best.cost(prices)
        after = "–"
        if others:
            low, middle, high = ratio(others[0].seconds, best.seconds)
            after = f"{_named(others[0], short)}: {middle:.2g} × ({low:.2g} – {high:.2g})" + (
                "" if one.surely or not others[0].seconds.n else ", not surely"
            )
        cheap = (
            f"{_named(one.cheapest, short)}: {dollars(price.middle)}"
            if one.cheapest and (price := one.cheapest.cost(prices))
            else "–"
        )
        rows.append(
            f'<tr><th scope="row">{one.work.name}</th><td>{_named(best, short)}</td><td>{interval(best.seconds)}</td>'
            f"<td>{dollars(cost.middle) if cost else '–'}</td><td>{after}</td><td>{cheap}</td></tr>"
        )
    return f'<div class="lab-scroll"><table class="lab-table">{"".join(rows)}</table></div>'


def _named(best: Best, short: Mapping[str, str]) -> str:
    published = "published: " if best.machine.is_published else ""
    return html.escape(f"{published}{short[best.machine.name]}, {best.way.label}")


def judged_sentence(judged: Sequence[Judged], machines: Sequence[Machine]) -> str:
    """Which machine for which work, from the table, without what the intervals do not carry."""
    if not judged:
        return "No machine is chosen, or none has these figures: choose some above."
    short = names(machines)
    wins: dict[str, list[str]] = {}
    for one in judged:
        if one.surely:
            wins.setdefault(one.by_speed[0].machine.name, []).append(one.work.name)
    said = [f"{short[name]} is surely the quickest for {listed(work)}." for name, work in wins.items()]
    unsure = [one.work.name for one in judged if len(one.by_speed) > 1 and not one.surely]
    alone = [one.work.name for one in judged if len(one.by_speed) == 1]
    said += [f"For {listed(unsure)} the first two are too close to say."] if unsure else []
    said += [f"Only one machine has figures for {listed(alone)}."] if alone else []
    gpu = [one for one in judged if one.by_speed[0].way.device == "gpu"]
    if gpu and len(gpu) < len(judged):
        said.append(f"A graphics card wins {len(gpu)} of {len(judged)}.")
    return " ".join(said)
