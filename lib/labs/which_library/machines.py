"""Machines side by side: what each takes for a piece of work, what that costs, which is best, and how sure that is.

Which is faster is decided as everywhere (`lib.timing.comparison`): by the variation between repetitions of the race.
"""

import html
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import altair as alt
import marimo as mo
import pandas as pd

from lib.formatting import listed, seconds
from lib.labs.which_library.race import to_accuracy
from lib.model.backends.registry import DEFAULT, Runtime
from lib.model.hardware.machine import NO_GPU, ONLY_BY_WEBGPU
from lib.model.spec import Network, Training
from lib.sweeps.experiments.backend_race import BATCH_SIZES, RATES_TRIED, TARGETS, Learned, Needed, needed
from lib.sweeps.experiments.backend_race import EPOCHS_TRIED as TRIED
from lib.sweeps.experiments.recorded_machines import (
    EXPERIMENTS,
    NETWORK,
    Best,
    Collection,
    Machine,
    Measure,
    Seconds,
    best_runtime,
    browsers_in,
    live_machine,
    published_machines,
    read_exports,
    recorded_here,
    told_apart,
)
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Note
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.comparison import Comparison, Verdict, between
from lib.ui import layout
from lib.ui.lab import Asked, Drawing, Hook, Shown
from lib.ui.panel import Controls, dropdown
from lib.ui.stage import say
from lib.ui.url_state import checked, number
from lib.ui.views.chart import ROW_COLOR, Chart, decades, log_scale, styled
from lib.ui.views.markup import as_markdown, on_demand, table
from lib.ui.views.recorded_gpus import interval, marked

MAX_PRICE_PER_H = 1000
ARTICLE_RUNTIME = "keras-tensorflow"
# The methods of `lib.sweeps.experiments.parallel_sweeps` by what trains in them.
SWEEPS = {
    (DEFAULT, "cpu"): ("sequential", "processes", "vmap", "sharded", "stacks"),
    (DEFAULT, "gpu"): ("sequential-gpu", "vmap-gpu"),
    ("keras-tensorflow", "cpu"): ("keras-sequential", "keras-processes"),
}
TITLES = {
    "learning-rate": "learning rates, 4 × 3 epochs",
    "batch-size": "batch sizes 1, 32, 256 × 3 epochs",
    "depth": "depths, 4 × 3 epochs",
}
NO_LIVE_MACHINE = "This machine has measured nothing yet: it takes part as soon as a training or a race has run on it."
Prices = Mapping[str, float]  # dollars per hour, by the machine's name


class Machines(Controls):
    """Of the comparison, which is drawn at once; the choice of machines and their prices are no part of an address."""

    AGAIN = ()
    FILES = "Drop exports here (`python -m lib.cli.record FILE.json`), or choose them"
    target = dropdown("Target accuracy", 0.95, {f"{target:.0%}": target for target in TARGETS})


class MachineChoice(Hook):
    """Which machines a page compares, and what an hour of each costs."""

    def __init__(self) -> None:
        self.dropped, self._set_dropped = mo.state(Collection())
        self._all = Collection()
        self._prices: dict[str, float] = {}  # as they were set, for when another file makes the page build them anew
        self._left_out: set[str] = set()

    def panel(self, dropped: Collection) -> mo.ui.dictionary:
        """Which machines, and a price for each."""
        self._all = gather(dropped, self.page.store)
        labels, machines = names(self._all.machines), self._all.machines
        keys = {
            labels[one.name] + (" (published)" if one.is_published else " (live)" if one.live else ""): one.name
            for one in machines
        }
        prices = {
            one.name: mo.ui.number(
                0,
                MAX_PRICE_PER_H,
                step=0.001,
                value=min(max(0.0, self._prices.get(one.name, one.price_per_h) or 0.0), MAX_PRICE_PER_H),
                label=f"$ per hour: {as_markdown(labels[one.name])}",
            )
            for one in machines
        }
        shown = [label for label, name in keys.items() if name not in self._left_out]
        choose = mo.ui.multiselect(keys, value=shown, label="Machines", full_width=True)

        def changed(values: dict) -> None:
            self._prices |= values["prices"]
            self._left_out = set(keys.values()) - set(values["machines"])

        return mo.ui.dictionary({"machines": choose, "prices": mo.ui.dictionary(prices)}, on_change=changed)

    def compared(self, choice: mo.ui.dictionary) -> tuple[Callable[[Machines], Asked], Callable[[Shown], Drawing]]:
        """Reads what was dropped, in a process of its own, and draws which machine is best for which work."""
        machines, values = self.chosen(choice), dict[str, Any](choice.value)

        @cache
        def drawn(at: Machines) -> Drawing:
            return self._judged(machines, _prices_of(values["prices"]), at.target)

        def ask(at: Machines) -> Asked:
            drawn(at)  # says what is wrong with a price before anything is read
            files = at.values["files"]
            return Asked(files, lambda _: ((), partial(_read, files)))

        def draw(shown: Shown) -> Drawing:
            now, drawing = shown.now, drawn(shown.at)
            if now.items and now.items[0] != self.dropped():
                self._set_dropped(now.items[0])
            reading = layout.state_line(now.state, 0.0, 1.0, now.note, now.problem) if now.note or now.problem else ""
            return replace(drawing, result=reading + drawing.result)

        return ask, draw

    def chosen(self, choice: mo.ui.dictionary) -> list[Machine]:
        """The machines that are compared."""
        names = dict[str, Any](choice.value)["machines"]
        return [machine for machine in self._all.machines if machine.name in names]

    def _judged(self, machines: list[Machine], prices: Prices, target: float) -> Drawing:
        asked = works(learned_from(machines), target).items()
        judged = [one for name, of in asked if (one := judge(machines, name, of, prices)) is not None]
        said = judged_sentence(judged, machines)
        notes = "".join(layout.note(text).text for text in self._all.notes)
        return Drawing(
            layout.problems(self._all.problems) + layout.said(said) + judged_table(judged, prices, machines),
            said,
            machines_table(machines, prices) + notes,
        )


def choices(panel: mo.ui.dictionary) -> mo.Html:
    """The chosen machines; the prices below, on demand."""
    machines, prices = panel.elements["machines"], panel.elements["prices"]
    fields = "".join(f"<div>{one.text}</div>" for one in prices.elements.values())  # type: ignore[attr-defined]
    shown = on_demand("prices: what an hour of each machine costs", f'<div class="compare-controls">{fields}</div>')
    return mo.Html(f'<div class="compare-controls"><div>{machines.text}</div></div>{shown}')


def _prices_of(values: Prices) -> Prices:
    """Those that were set; raises ValueError, with a sentence, where one is impossible."""
    limits = {f"price.{name}": number(f"price.{name}", 0.0, 0, MAX_PRICE_PER_H) for name in values}
    return {name: price for name, price in checked(limits, "price", values).items() if price}


def gather(dropped: Collection, store: Store) -> Collection:
    """This machine, the project's recordings, kept browsers, the dropped files and the published figures; each once.

    A dropped file replaces the project's recording of the same machine.
    """
    here, live = recorded_here(), live_machine(store)
    found = {machine.records[0].machine: machine for machine in (*browsers_in(store), *here.machines)}
    brought = {machine.records[0].machine: machine for machine in dropped.machines}
    notes = [
        f"{one.source} is of a machine that is here already ({one.name}): its figures replace those of"
        f" {found[key].source}."
        for key, one in brought.items()
        if key in found
    ]
    notes += [] if live else [NO_LIVE_MACHINE]
    machines = (*([live] if live else []), *told_apart((found | brought).values()), *published_machines())
    problems = (*filter(None, [store.trouble]), *here.problems, *dropped.problems)
    return Collection(machines, problems, (*here.notes, *dropped.notes, *notes))


def _read(
    files: Sequence[tuple[str, bytes | Path]], engine: Engine, _store: Store, cancel: Cancel, request: Request
) -> Iterator[Collection | Note]:
    if files:
        read = [(name, one.read_bytes() if isinstance(one, Path) else one) for name, one in files]
        yield from read_exports(read, cancel, request, engine.niceness)
    else:
        yield Collection()


# Which is best for which work.


def works(learned: Learned, target: float) -> dict[str, Measure]:
    """The pieces of work that machines are compared by, in the order of the table.

    Args:
        learned: Validation accuracies after each epoch, by training.
        target: Validation accuracy to reach, 0 to 1.
    """
    epochs = {
        f"an epoch at batch size {size:,}": lambda machine, runtime, size=size: machine.epoch(runtime, size)
        for size in (1, 32, 512, 4096)
    }
    experiments = {
        TITLES[name]: lambda machine, runtime, name=name: machine.experiment(name, runtime) for name in EXPERIMENTS
    }
    return {
        **epochs,
        **experiments,
        "the sweep of five learning rates": _sweep,
        f"to {target:.0%} accuracy": lambda machine, runtime: quickest_to(machine, runtime, learned, target),
    }


def _sweep(machine: Machine, runtime: Runtime) -> Seconds | None:
    """By the quickest of the strategies that were timed whole with this runtime."""
    return _quickest(machine.sweep(method) for method in SWEEPS.get((runtime.backend, runtime.device), ()))


def _quickest(times: Iterable[Seconds | None]) -> Seconds | None:
    return min((one for one in times if one is not None), key=lambda one: one.middle, default=None)


def learned_from(machines: Sequence[Machine]) -> dict[Training, tuple[float, ...]]:
    """Validation accuracy after each epoch, by training: for each, the longest curve that any machine has.

    All runtimes and machines take the same steps, so it does not matter which one trained it.
    """
    found = {}
    for machine in machines:
        for row in machine.curves:
            values = json.loads(str(row["training"]))
            network = Network(tuple(values.pop("network")["hidden"]))
            accuracies = tuple(epoch["validation_accuracy"] for epoch in json.loads(str(row["epochs"])))
            training = Training(network, **values)
            if len(accuracies) > len(found.get(training, ())):
                found[training] = accuracies
    return found


def epochs_needed(learned: Learned, batch_size: int, target: float) -> Needed | None:
    """Epochs that the article's network needs to reach the target, over the judged seeds.

    None where a training of this batch size is missing. Curves are cut at the number of epochs that is tried.
    """
    cut = {t: a[: TRIED[t.batch_size]] for t, a in learned.items() if t.batch_size in TRIED}
    return needed(cut, NETWORK, batch_size, target)


def to_target(machine: Machine, runtime: Runtime, batch_size: int, learned: Learned, target: float) -> Seconds | None:
    """Seconds to an accuracy at one batch size; None where the epoch was not measured, the epochs were not counted, or
    no run reached the accuracy."""
    epoch, counted = machine.epoch(runtime, batch_size), epochs_needed(learned, batch_size, target)
    if epoch is None or counted is None or not counted.reached:
        return None
    return to_accuracy(epoch, machine.beside(runtime, batch_size, "evaluation_s"), counted)


def quickest_to(machine: Machine, runtime: Runtime, learned: Learned, target: float) -> Seconds | None:
    """Seconds to an accuracy at the batch size with the smallest median; None where no batch size has a figure."""
    return _quickest(to_target(machine, runtime, size, learned, target) for size in RATES_TRIED)


@dataclass(frozen=True)
class Judged:
    """One piece of work: each machine that has figures for it, fastest first, and the cheapest with a price."""

    work: str
    by_speed: tuple[Best, ...]
    cheapest: Best | None

    @property
    def ahead(self) -> Comparison | None:
        """The second's time over the fastest's; None where there is no second."""
        if len(self.by_speed) < 2:
            return None
        first, second = (best.seconds.estimate for best in self.by_speed[:2])
        return between(second.on_another_day(), first)  # machines are seldom recorded side by side

    @property
    def surely(self) -> bool:
        """Whether the second is slower than the fastest beyond doubt."""
        return self.ahead is not None and self.ahead.verdict is Verdict.SLOWER


def judge(machines: Sequence[Machine], work: str, of: Measure, prices: Prices) -> Judged | None:
    """Rank the machines by one piece of work; None where none of them has figures for it."""
    found = sorted(
        filter(None, (best_runtime(machine, of) for machine in machines)), key=lambda best: best.seconds.middle
    )
    if not found:
        return None
    priced = [(cost.middle, best) for best in found if (cost := best.cost(prices)) is not None]
    return Judged(work, tuple(found), min(priced, key=lambda one: one[0])[1] if priced else None)


def judged_table(judged: Sequence[Judged], prices: Prices, machines: Sequence[Machine]) -> str:
    """HTML: for each piece of work the fastest machine and runtime, the second, and the cheapest."""
    short = names(machines)
    rows = [
        [
            one.work,
            _named(one.by_speed[0], short),
            interval(one.by_speed[0].seconds),
            _next(one, short),
            _cost(one.by_speed[0], prices),
            f"{_named(one.cheapest, short)}: {_cost(one.cheapest, prices)}" if one.cheapest else "–",
        ]
        for one in judged
    ]
    return table(["work", "quickest", "takes", "next", "1,000 times cost", "cheapest"], rows, "compare")


def _next(one: Judged, short: Mapping[str, str]) -> str:
    """The second, and how many times as long it takes."""
    if len(one.by_speed) < 2:
        return "–"
    best, other = one.by_speed[:2]
    if one.ahead is None or one.ahead.n < 2:  # published: one figure without a spread
        return f"{_named(other, short)}: {times(other.seconds.middle / best.seconds.middle)} ×, spread not known"
    low, middle, high = map(times, (one.ahead.low, one.ahead.ratio, one.ahead.high))
    return f"{_named(other, short)}: {middle} × ({low} – {high})" + ("" if one.surely else ", not surely")


def _cost(best: Best, prices: Prices) -> str:
    """Of a thousand times, because that of one is too small to read; a dash without a price."""
    cost = best.cost(prices)
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
            wins.setdefault(one.by_speed[0].machine.name, []).append(one.work)
    said = []
    for name, work in wins.items():
        what = "all of this" if len(work) == len(judged) > 1 else listed(work)
        said.append(f"{short[name][:1].upper()}{short[name][1:]} is surely the quickest for {what}.")
    unsure = [one.work for one in judged if len(one.by_speed) > 1 and not one.surely]
    alone = [one.work for one in judged if len(one.by_speed) == 1]
    said += [f"For {listed(unsure)} it cannot be told which of the first two is quicker."] if unsure else []
    said += [f"Only one machine has figures for {listed(alone)}."] if alone else []
    gpu = [one for one in judged if one.by_speed[0].runtime.on_gpu]
    if gpu and len(gpu) < len(judged):
        said.append(f"A graphics card wins {len(gpu)} of {len(judged)}.")
    return " ".join(said)


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


# What the machines are.


def names(machines: Sequence[Machine]) -> dict[str, str]:
    """A short name for each machine that tells it from the others, by the machine's full name."""
    short = {}
    for machine in machines:
        parts = machine.name.split(" · ")
        card = [part.removeprefix(ONLY_BY_WEBGPU) for part in parts[2:][-1:] if part != NO_GPU]  # a line ends with it
        line = machine.name if machine.is_published else " · ".join(parts[:2] + card)
        text = "this machine" if machine.live else line
        taken = [other for other in short.values() if other.split(" #")[0] == text]
        short[machine.name] = f"{text} #{len(taken) + 1}" if taken else text
    return short


def machines_table(machines: Sequence[Machine], prices: Prices) -> str:
    """HTML: what each machine is, where its figures come from, how many were disturbed, and what failed."""
    rows, notes = [], ""
    for machine in machines:
        price = prices.get(machine.name)
        assumed = price == machine.price_per_h
        priced = f"{price:g} ({html.escape(machine.price_date if assumed else 'entered here')})" if price else "–"
        share = "not told" if machine.is_published else f"{machine.disturbed:.0%}"
        told = map(html.escape, (machine.name, marked(machine), machine.source))
        rows.append([*told, str(len(machine.runtimes)), share, priced])
        if machine.live and assumed:
            notes += layout.note(
                f"The price of this machine is {machine.price_date}; enter what an hour of it costs you under “prices”"
                " above."
            ).text
    failed = [
        f"{machine.name}: {one.subject.get('task', '')}: {'; '.join(one.warnings)}"
        for machine in machines
        for one in machine.failures
    ]
    if failed:
        items = "".join(f"<li>{html.escape(one)}</li>" for one in failed)
        notes += f'<p class="lab-note">Could not be measured:</p><ul class="lab-note">{items}</ul>'
    row_css = ["race-published" if machine.is_published else "" for machine in machines]
    head = ["machine", "figures", "from", "backends", "disturbed", "$ per hour"]
    return table(head, rows, "compare", row_css) + notes


# The article's three experiments.


def article(machines: Sequence[Machine]) -> mo.Html:
    """A sentence, which a script prints, and a table."""
    sentence = article_sentence(machines)
    if sentence:
        say(sentence)
    return mo.Html(layout.said(sentence) + article_table(machines))


def article_table(machines: Sequence[Machine]) -> str:
    """HTML: the second article's three experiments, by its own runtime and by each machine's fastest."""
    short = names(machines)
    rows, row_css = [], []
    for machine in machines:
        for runtime in _runtimes_of_the_article(machine):
            known = [machine.experiment(name, runtime) for name in EXPERIMENTS]
            if not any(known):
                continue
            total, first_s = machine.experiments(runtime), machine.first_calls_s(runtime)
            row_css.append("race-published" if machine.is_published else "")
            times_s = [interval(one) if one else "–" for one in (*known, total)]
            label = ("published: " if machine.is_published else "") + short[machine.name]
            first = seconds(first_s) if total and first_s else "–"
            rows.append([html.escape(label), html.escape(runtime.label), *times_s, first])
    heads = ["machine", "trained by", *TITLES.values(), "all three", "of it first calls"]
    return table(heads, rows, "compare", row_css)


def _runtimes_of_the_article(machine: Machine) -> list[Runtime]:
    """Its own runtime on each device that the machine has, and on each the quickest in all three experiments."""
    devices = dict.fromkeys(runtime.device for runtime in machine.runtimes)
    usual = [runtime for runtime in machine.runtimes if runtime.backend == ARTICLE_RUNTIME]
    bests = [best_runtime(machine, Machine.experiments, device) for device in devices]
    return list(dict.fromkeys([*usual, *(best.runtime for best in bests if best is not None)]))


def article_sentence(machines: Sequence[Machine]) -> str:
    """The article's own runtime against the fastest on each machine; empty where none is surely faster."""
    short, said = names(machines), []

    def taken(machine: Machine, runtime: Runtime) -> Seconds | None:
        return machine.experiment("learning-rate", runtime)

    for machine in (one for one in machines if not one.is_published):
        by_article = (taken(machine, runtime) for runtime in machine.runtimes if runtime.backend == ARTICLE_RUNTIME)
        usual, best = next(filter(None, by_article), None), best_runtime(machine, taken)
        ahead = between(usual.estimate, best.seconds.estimate) if usual and best else None
        if usual and best and ahead and ahead.verdict is Verdict.SLOWER:
            low, middle, high = map(times, (ahead.low, ahead.ratio, ahead.high))
            said.append(
                f"On {short[machine.name]} the learning-rate experiment takes {seconds(usual.middle)} by the article's"
                f" own Keras on TensorFlow and {seconds(best.seconds.middle)} by {best.runtime.label}: {middle} times"
                f" less ({low} to {high})."
            )
    others = [s for one in machines if one.is_published for runtime in one.runtimes if (s := taken(one, runtime))]
    if others and said:
        said.append(
            f"The article's machines took {listed([seconds(one.middle) for one in others])}: another way of training is"
            " worth more than another machine."
        )
    return " ".join(said)


# An epoch by backend and batch size.

# A graphics card's lines are dashed.
_DASH = alt.StrokeDash("device:N", scale=alt.Scale(domain=["cpu", "gpu"], range=[[1, 0], [4, 3]]), legend=None)


def epochs(machines: Sequence[Machine]) -> mo.Html:
    """A chart for each machine that has figures, below one legend."""
    drawn = "".join(layout.framed(caption, chart, "lab-low") for caption, chart in epoch_charts(machines))
    return mo.Html(f'{legend(machines)}<div class="compare-grid">{drawn}</div>')


def epoch_charts(machines: Sequence[Machine]) -> list[tuple[str, Chart]]:
    """Caption and chart of each machine, on the same axes: seconds of an epoch with quartiles, a line per runtime."""
    short = names(machines)
    rows = {machine.name: _epoch_rows(machine) for machine in machines}
    domain = decades([row["s"] for some in rows.values() for row in some])
    return [
        (f"{short[machine.name]} ({marked(machine)})", _epoch_chart(rows[machine.name], domain))
        for machine in machines
        if rows[machine.name]
    ]


def _epoch_rows(machine: Machine) -> list[dict]:
    return [
        {
            "runtime": runtime.label,
            "color": runtime.color,
            "size": size,
            "s": one.middle,
            "low": one.low,
            "high": one.high,
            "device": "gpu" if runtime.on_gpu else "cpu",
            "shown": interval(one),
        }
        for runtime in machine.runtimes
        for size in BATCH_SIZES
        if (one := machine.epoch(runtime, size)) is not None
    ]


def _epoch_chart(rows: list[dict], domain: tuple[float, float]) -> Chart:
    base = alt.Chart(pd.DataFrame(rows))
    ticks = alt.Axis(values=[1, 32, 512, 4096], format=",d")
    x = alt.X("size:Q", scale=log_scale([1, 4096], base=2), title="batch size", axis=ticks)
    y = alt.Y("s:Q", scale=log_scale(domain), title="seconds per epoch", axis=alt.Axis(tickCount=4, format="~g"))
    tooltip = ["runtime:N", alt.Tooltip("size:Q", title="batch size"), alt.Tooltip("shown:N", title="an epoch")]
    lines = base.mark_line(strokeWidth=1.6).encode(x=x, y=y, color=ROW_COLOR, detail="runtime:N", strokeDash=_DASH)
    points = base.mark_point(filled=True, size=42).encode(x=x, y=y, color=ROW_COLOR, tooltip=tooltip)
    bars = base.mark_rule(strokeWidth=1.2).encode(
        x=x, y=alt.Y("low:Q", title="seconds per epoch"), y2="high:Q", color=ROW_COLOR
    )
    return Chart(styled(lines + bars + points), "seconds of an epoch")


def legend(machines: Sequence[Machine]) -> str:
    """HTML: the colours of all runtimes of these machines, once for all charts; a GPU's are dashed."""
    runtimes = sorted({runtime for machine in machines for runtime in machine.runtimes}, key=lambda one: one.place)
    entries = [
        '<span class="compare-key"><i style="border-top: 3px'
        f' {"dashed" if runtime.on_gpu else "solid"} {runtime.color}"></i>{html.escape(runtime.label)}</span>'
        for runtime in runtimes
    ]
    return f'<p class="compare-legend">{"".join(entries)}</p>'
