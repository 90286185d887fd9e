"""Machines side by side, as a reader sees them: tables, and the sentences computed from them. Measures nothing."""

import html
from collections.abc import Mapping, Sequence

import pandas as pd

from lib.backends.registry import Runtime
from lib.experiments.backend_race import BATCH_SIZES
from lib.experiments.compare_machines import ARTICLE_RUNTIME, TITLES, Best, Judged, best_runtime, to_target
from lib.experiments.recorded_machines import EXPERIMENTS, Machine, Seconds
from lib.experiments.time_to_accuracy import Learned
from lib.formatting import listed, seconds
from lib.hardware.machine import NO_GPU, ONLY_BY_WEBGPU
from lib.timing.comparison import Verdict, between
from lib.views.markup import table

WIDE_WORDS = "; wide: the host was busy, or its clock changed"
Prices = Mapping[str, float]


def interval(one: Seconds) -> str:
    """A time with its quartiles in words, and a warning where they are far apart; a published time has none, and one
    that was timed once says so."""
    if one.n <= 1:
        return seconds(one.middle) + (", once" if one.n else "")
    return f"{seconds(one.middle)} ({seconds(one.low)} – {seconds(one.high)}{WIDE_WORDS if one.is_wide else ''})"


def dollars(value: float) -> str:
    r"""Two digits, in dollars or, below a dollar, in cents.

    >>> dollars(0.0123), dollars(0.00042), dollars(12.34), dollars(1234.0)
    ('1.2\u202f¢', '0.042\u202f¢', '$12', '$1,234')
    """
    if value >= 100:
        return f"${value:,.0f}"
    return f"{value * 100:.2g}\u202f¢" if value < 0.995 else f"${value:.2g}"


def times(ratio: float) -> str:
    """How many times, in two digits.

    >>> times(1.04), times(12.3), times(234.0)
    ('1.0', '12', '234')
    """
    return f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:.0f}"


def names(machines: Sequence[Machine]) -> dict[str, str]:
    """A short name for each machine that tells it from the others, by the machine's full name."""
    short = {}
    for machine in machines:
        if machine.live:
            short[machine.name] = "this machine"
            continue
        parts = machine.name.split(" · ")
        card = [part.removeprefix(ONLY_BY_WEBGPU) for part in parts[2:][-1:] if part != NO_GPU]  # a line ends with it
        text = machine.name if machine.is_published else " · ".join(parts[:2] + card)
        taken = [other for other in short.values() if other.split(" #")[0] == text]
        short[machine.name] = f"{text} #{len(taken) + 1}" if taken else text
    return short


def marked(machine: Machine) -> str:
    """Where a machine's figures come from: published, recorded or live, with the dates of measurement."""
    if machine.is_published:
        return "published"
    first, last = machine.dates
    return ("live, " if machine.live else "recorded ") + first + (f" to {last}" if last != first else "")


def machines_table(machines: Sequence[Machine], prices: Prices) -> str:
    """HTML: what each machine is, where its figures come from, how many were disturbed, and what failed.

    Args:
        machines: A row each.
        prices: Dollars per hour, by the machine's name.
    """
    rows = []
    for machine in machines:
        price = prices.get(machine.name)
        dated = machine.price_date if price == machine.price_per_h else "entered here"
        priced = f"{price:g} ({html.escape(dated)})" if price else "–"
        share = "not told" if machine.is_published else f"{machine.disturbed:.0%}"
        name, source = html.escape(machine.name), html.escape(machine.source)
        rows.append([name, html.escape(marked(machine)), source, str(len(machine.runtimes)), share, priced])
    failed = [
        f"<li>{html.escape(machine.name)}: {html.escape(str(one.subject.get('task', '')))}:"
        f" {html.escape('; '.join(one.warnings))}</li>"
        for machine in machines
        for one in machine.failures
    ]
    lost = (
        f'<p class="lab-note">Could not be measured:</p><ul class="lab-note">{"".join(failed)}</ul>' if failed else ""
    )
    lost += "".join(
        f'<p class="lab-note">The price of this machine is {html.escape(machine.price_date)}; enter what an hour of it'
        " costs you under “prices” above.</p>"
        for machine in machines
        if machine.live and prices.get(machine.name) == machine.price_per_h
    )
    row_css = ["race-published" if machine.is_published else "" for machine in machines]
    return table(["machine", "figures", "from", "backends", "disturbed", "$ per hour"], rows, "compare", row_css) + lost


def article_table(machines: Sequence[Machine], prices: Prices) -> str:
    """HTML: the second article's three experiments, by its own runtime and by each machine's fastest."""
    short = names(machines)
    rows, row_css = [], []
    for machine in machines:
        for runtime in _runtimes_of_the_article(machine):
            known = [machine.experiment(name, runtime) for name in EXPERIMENTS]
            if not any(known):
                continue
            total, first_s = machine.experiments(runtime), machine.first_calls_s(runtime)
            cost = Best(machine, runtime, total).cost(prices) if total else None
            row_css.append("race-published" if machine.is_published else "")
            times_s = [interval(one) if one else "–" for one in (*known, total)]
            label = ("published: " if machine.is_published else "") + short[machine.name]
            first = seconds(first_s) if total and first_s else "–"
            rows.append([html.escape(label), html.escape(runtime.label), *times_s, first, thousand(cost)])
    heads = ["machine", "trained by", *TITLES.values(), "all three", "of it first calls", "1,000 times cost"]
    return table(heads, rows, "compare", row_css)


def figures(machines: Sequence[Machine], prices: Prices, learned: Learned, target: float) -> pd.DataFrame:
    """One row per machine, runtime and batch size, as a table to search.

    Args:
        machines: Whose epochs are listed.
        prices: Dollars per hour, by the machine's name; a cost without a price is None.
        learned: Validation accuracies after each epoch, by training.
        target: Validation accuracy, 0 to 1.

    Returns:
        Seconds of an epoch and to the accuracy with their quartiles, and dollars for a thousand of each.
    """
    return pd.DataFrame(
        [
            {"machine": machine.name, "figures": marked(machine), "trained_by": runtime.label, "batch_size": size}
            | _columns("epoch", epoch, prices.get(machine.name))
            | _columns(
                f"to_{100 * target:.0f}_percent",
                to_target(machine, runtime, size, learned, target),
                prices.get(machine.name),
            )
            for machine in machines
            for runtime in machine.runtimes
            for size in BATCH_SIZES
            if (epoch := machine.epoch(runtime, size)) is not None
        ]
    )


def _columns(name: str, one: Seconds | None, price_per_h: float | None) -> dict[str, float | None]:
    spread = one if one is not None and one.n else None  # what was published has none
    return {
        f"{name}_q1_s": spread.low if spread else None,
        f"{name}_median_s": one.middle if one else None,
        f"{name}_q3_s": spread.high if spread else None,
        f"thousand_{name}_dollars": 1000 * one.middle * price_per_h / 3600 if one and price_per_h else None,
    }


def _runtimes_of_the_article(machine: Machine) -> list[Runtime]:
    """Its own runtime on each device that the machine has, and on each the quickest in all three experiments."""
    devices = list(dict.fromkeys(runtime.device for runtime in machine.runtimes))
    article = [runtime for runtime in machine.runtimes if runtime.backend == ARTICLE_RUNTIME]
    bests = [best_runtime(machine, Machine.experiments, device) for device in devices]
    return list(dict.fromkeys([*article, *(best.runtime for best in bests if best is not None)]))


def article_sentence(machines: Sequence[Machine]) -> str:
    """The article's own runtime against the fastest on each machine; empty where none is surely faster."""
    short, said = names(machines), []
    for machine in machines:
        if machine.is_published:
            continue
        usual = next(
            (
                t
                for runtime in machine.runtimes
                if runtime.backend == ARTICLE_RUNTIME and (t := machine.experiment("learning-rate", runtime))
            ),
            None,
        )
        best = best_runtime(machine, lambda m, runtime: m.experiment("learning-rate", runtime))
        comparison = between(usual.estimate, best.seconds.estimate) if usual and best else None
        if usual and best and comparison and comparison.verdict is Verdict.SLOWER:
            low, middle, high = map(times, (comparison.low, comparison.ratio, comparison.high))
            said.append(
                f"On {short[machine.name]} the learning-rate experiment takes {seconds(usual.middle)} by the article's"
                f" own Keras on TensorFlow and {seconds(best.seconds.middle)} by {best.runtime.label}: {middle} times"
                f" less ({low} to {high})."
            )
    others = [
        s for m in machines if m.is_published for runtime in m.runtimes if (s := m.experiment("learning-rate", runtime))
    ]
    if others and said:
        said.append(
            f"The article's machines took {listed([seconds(one.middle) for one in others])}: another way of training is"
            " worth more than another machine."
        )
    return " ".join(said)


def judged_table(judged: Sequence[Judged], prices: Prices, machines: Sequence[Machine]) -> str:
    """HTML: for each piece of work the fastest machine and runtime, the second, and the cheapest."""
    short = names(machines)
    rows = []
    for one in judged:
        best = one.by_speed[0]
        found = [_named(best, short), interval(best.seconds), thousand(best.cost(prices))]
        rows.append([one.work.name, *found, _next(one, short), _cheapest(one, prices, short)])
    return table(["work", "quickest", "takes", "1,000 times cost", "next", "cheapest"], rows, "compare")


def _next(one: Judged, short: Mapping[str, str]) -> str:
    """The second, and how many times as long it takes."""
    if len(one.by_speed) < 2:
        return "–"
    best, other = one.by_speed[:2]
    if one.ahead is None or one.ahead.n < 2:  # published: one figure without a spread
        return f"{_named(other, short)}: {times(other.seconds.middle / best.seconds.middle)} ×, spread not known"
    low, middle, high = map(times, (one.ahead.low, one.ahead.ratio, one.ahead.high))
    return f"{_named(other, short)}: {middle} × ({low} – {high})" + ("" if one.surely else ", not surely")


def _cheapest(one: Judged, prices: Prices, short: Mapping[str, str]) -> str:
    cost = one.cheapest.cost(prices) if one.cheapest else None
    return f"{_named(one.cheapest, short)}: {thousand(cost)}" if one.cheapest and cost else "–"


def thousand(cost: Seconds | None) -> str:
    """The cost of a thousand runs, because that of one is too small to read; a dash without a price."""
    return dollars(1000 * cost.middle) if cost else "–"


def _named(best: Best, short: Mapping[str, str]) -> str:
    published = "published: " if best.machine.is_published else ""
    return html.escape(f"{published}{short[best.machine.name]}, {best.runtime.label}")


def judged_sentence(judged: Sequence[Judged], machines: Sequence[Machine]) -> str:
    """Which machine is fastest for which work, as far as the intervals allow to say."""
    if not judged:
        return "No machine is chosen, or none has these figures: choose some above."
    short = names(machines)
    wins: dict[str, list[str]] = {}
    for one in judged:
        if one.surely:
            wins.setdefault(one.by_speed[0].machine.name, []).append(one.work.name)
    said = []
    for name, work in wins.items():
        what = "all of this" if len(work) == len(judged) > 1 else listed(work)
        said.append(f"{short[name][:1].upper()}{short[name][1:]} is surely the quickest for {what}.")
    unsure = [one.work.name for one in judged if len(one.by_speed) > 1 and not one.surely]
    alone = [one.work.name for one in judged if len(one.by_speed) == 1]
    said += [f"For {listed(unsure)} it cannot be told which of the first two is quicker."] if unsure else []
    said += [f"Only one machine has figures for {listed(alone)}."] if alone else []
    gpu = [one for one in judged if one.by_speed[0].runtime.on_gpu]
    if gpu and len(gpu) < len(judged):
        said.append(f"A graphics card wins {len(gpu)} of {len(judged)}.")
    return " ".join(said)
