"""Machines compared: the time of each piece of work, the fastest machine for it, and how certain that is.

`lib.timing.comparison` decides which is faster, by the variation between repetitions of the race.
"""

import html
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import marimo as mo

from lib.formatting import listed, seconds, times
from lib.labs.which_library.race import CELL, Race, to_accuracy
from lib.model.backends.registry import DEFAULT, Runtime
from lib.model.hardware.machine import NO_GPU, ONLY_BY_WEBGPU
from lib.model.spec import Network, Training
from lib.sweeps.experiments.backend_race import BATCH_SIZES, RATES_TRIED, TARGETS, Learned, needed
from lib.sweeps.experiments.backend_race import EPOCHS_TRIED as TRIED
from lib.sweeps.experiments.recorded_machines import (
    EXPERIMENTS,
    MEASURED,
    NETWORK,
    PUBLISHED,
    RECORDED,
    Best,
    Collection,
    Machine,
    Measure,
    Seconds,
    best_runtime,
    browsers_in,
    card_of,
    live_machine,
    published_machines,
    read_exports,
    recorded_here,
    with_unique_names,
)
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Note
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.comparison import Verdict, between
from lib.ui import layout
from lib.ui.controls import Controls, dropdown
from lib.ui.lab import Asked, Drawing, Hook, Lab, Shown, say
from lib.ui.views.chart import Chart, alt, decades, log_scale, ordered_palette, pd, row_color, styled
from lib.ui.views.dots import Dot, dots_chart
from lib.ui.views.markup import legend, quiet
from lib.ui.widgets import RaceTable

ARTICLE_RUNTIME = "keras-tensorflow"
# The methods of `lib.sweeps.experiments.parallel_sweeps` by backend and device.
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
FIRST_CALLS = "of these, first calls"
NO_LIVE_MACHINE = "This machine has measured nothing yet: it joins once a training or a race has run on it."


class Machines(Controls):
    AGAIN = ()
    FILES = "Drop exports here (`python -m lib.cli.record FILE.json`), or choose them"
    target = dropdown("Target accuracy", 0.95, {f"{target:.0%}": target for target in TARGETS})


class WhichLab(Lab):
    def __init__(self) -> None:
        self.machines = MachineChoice()
        super().__init__("which_library", [self.machines], race=Race, compare=Machines)
        self.table = mo.ui.anywidget(RaceTable(selected=self.page.address.read(CELL)))


class MachineChoice(Hook):
    settings = {CELL.name: CELL}  # noqa: RUF012

    def __init__(self) -> None:
        self.dropped, self._set_dropped = mo.state(Collection())
        self._all = Collection()
        self._left_out: set[str] = set()

    def panel(self, dropped: Collection) -> mo.ui.multiselect:
        self._all = gather(dropped, self.page.store)
        labels = names(self._all.machines)
        keys = {
            labels[one.name] + (" (published)" if one.is_published else " (live)" if one.live else ""): one.name
            for one in self._all.machines
        }

        def changed(chosen: Sequence) -> None:
            self._left_out = set(keys.values()) - set(chosen)

        shown = [label for label, name in keys.items() if name not in self._left_out]
        return mo.ui.multiselect(keys, value=shown, label="Machines", full_width=True, on_change=changed)

    def compared(self, choice: mo.ui.multiselect) -> tuple[Callable[[Machines], Asked], Callable[[Shown], Drawing]]:
        """Read dropped files in a separate process, and draw which machine is best for which work."""
        judged = cache(partial(self._judged, self.chosen(choice)))

        def ask(at: Machines) -> Asked:
            files = at.values["files"]
            return Asked(files, lambda _: ((), partial(_read, files)))

        def draw(shown: Shown) -> Drawing:
            now, drawing = shown.now, judged(shown.at.target)
            if now.items and now.items[0] != self.dropped():
                self._set_dropped(now.items[0])
            reading = layout.state_line(now.state, 0.0, 1.0, now.note, now.problem) if now.note or now.problem else ""
            return replace(drawing, result=reading + drawing.result)

        return ask, draw

    def chosen(self, choice: mo.ui.multiselect) -> list[Machine]:
        return [machine for machine in self._all.machines if machine.name in choice.value]

    def _judged(self, machines: list[Machine], target: float) -> Drawing:
        asked = works(learned_from(machines), target).items()
        judged = [one for name, of in asked if (one := judge(machines, name, of)) is not None]
        said = judged_sentence(judged, machines)
        notes = "".join(map(quiet, self._all.notes))
        chart = judged_chart(judged, machines)
        drawn = layout.framed(chart.title, chart) if judged else ""
        problems = layout.problems(self._all.problems)
        return Drawing(problems + layout.said(said) + drawn, said, machines_list(machines) + notes)


def gather(dropped: Collection, store: Store) -> Collection:
    """This machine, the project's recordings, kept browsers, dropped files and published figures, each machine once.

    A dropped file replaces the project's recording of the same machine.
    """
    here, live = recorded_here(), live_machine(store)
    found = {machine.records[0].machine: machine for machine in (*browsers_in(store), *here.machines)}
    brought = {machine.records[0].machine: machine for machine in dropped.machines}
    notes = [
        f"{one.source} is for a machine already listed ({one.name}): its figures replace those of {found[key].source}."
        for key, one in brought.items()
        if key in found
    ]
    notes += [] if live else [NO_LIVE_MACHINE]
    machines = (*([live] if live else []), *with_unique_names((found | brought).values()), *published_machines())
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


# The best machine per piece of work.


def works(learned: Learned, target: float) -> dict[str, Measure]:
    """The pieces of work that machines are compared by, in table order.

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
    return _quickest(machine.sweep(method) for method in SWEEPS.get((runtime.backend, runtime.device), ()))


def _quickest(times: Iterable[Seconds | None]) -> Seconds | None:
    return min((one for one in times if one is not None), key=lambda one: one.middle, default=None)


def learned_from(machines: Sequence[Machine]) -> dict[Training, tuple[float, ...]]:
    """Validation accuracy after each epoch, by training: the longest curve on any machine.

    All runtimes and machines take the same steps, so it does not matter which one trained. Curves are cut at the
    number of epochs that are tried.
    """
    found = {}
    for machine in machines:
        for row in machine.curves:
            values = json.loads(str(row["training"]))
            network = Network(tuple(values.pop("network")["hidden"]))
            accuracies = tuple(epoch["validation_accuracy"] for epoch in json.loads(str(row["epochs"])))
            training = Training(network, **values)
            if training.batch_size in TRIED and len(accuracies) > len(found.get(training, ())):
                found[training] = accuracies[: TRIED[training.batch_size]]
    return found


def quickest_to(machine: Machine, runtime: Runtime, learned: Learned, target: float) -> Seconds | None:
    """Seconds to an accuracy at the fastest batch size.

    None if no batch size has both a measured epoch and counted epochs that reach the accuracy.
    """
    return _quickest(
        to_accuracy(epoch, machine.extra_s(runtime, size, "evaluation_s"), counted)
        for size in RATES_TRIED
        if (epoch := machine.epoch(runtime, size)) is not None
        and (counted := needed(learned, NETWORK, size, target)) is not None
        and counted.reached
    )


class Judged(NamedTuple):
    """One piece of work, and the machines with figures for it, fastest first."""

    work: str
    by_speed: tuple[Best, ...]

    @property
    def surely(self) -> bool:
        if len(self.by_speed) < 2:
            return False
        first, second = (best.seconds.estimate for best in self.by_speed[:2])
        # Two machines are seldom recorded in the same session.
        return between(second.on_another_day(), first).verdict is Verdict.SLOWER


def judge(machines: Sequence[Machine], work: str, of: Measure) -> Judged | None:
    known = filter(None, (best_runtime(machine, of) for machine in machines))
    found = tuple(sorted(known, key=lambda best: best.seconds.middle))
    return Judged(work, found) if found else None


def judged_sentence(judged: Sequence[Judged], machines: Sequence[Machine]) -> str:
    if not judged:
        return "No machine is chosen, or none has these figures: choose machines above."
    short, n = names(machines), len(judged)
    best = Counter(short[one.by_speed[0].machine.name] for one in judged if one.surely).most_common()
    on_gpu = sum(one.by_speed[0].runtime.on_gpu for one in judged)
    unsure = sum(len(one.by_speed) > 1 and not one.surely for one in judged)
    said = {
        f"Surely the fastest: {', '.join(f'{name} for {count} of {n}' for name, count in best)}.": best,
        f"A GPU comes first in {on_gpu} of {n}.": 0 < on_gpu < n,
        f"In {unsure} of {n} the first two are too close to call.": unsure,
    }
    return " ".join(words for words, applies in said.items() if applies)


def judged_chart(judged: Sequence[Judged], machines: Sequence[Machine]) -> Chart:
    short = names(machines)
    dots = [
        Dot(
            one.work,
            short[best.machine.name],
            known_by(best.machine),
            *(best.seconds.middle, best.seconds.low, best.seconds.high),
            best.runtime.label + (", surely the fastest" if one.surely and best is one.by_speed[0] else ""),
        )
        for one in judged
        for best in one.by_speed
    ]
    others = [short[machine.name] for machine in machines if not machine.live]
    colors = dict.fromkeys(short.values(), "currentColor")
    colors |= dict(zip(others, ordered_palette(len(others)), strict=True))
    return dots_chart(dots, colors, "seconds", "seconds of each piece of work", [one.work for one in judged])


def known_by(machine: Machine) -> str:
    return PUBLISHED if machine.is_published else MEASURED if machine.live else RECORDED


# The machines.


def names(machines: Sequence[Machine]) -> dict[str, str]:
    short = {}
    for machine in machines:
        parts = machine.name.split(" · ")
        card = [card_of(machine).removeprefix(ONLY_BY_WEBGPU)] if parts[2:] and parts[-1] != NO_GPU else parts[:1]
        own = "this machine" if machine.live else " · ".join(card + parts[1:2])
        text = machine.name if machine.is_published else own
        taken = [other for other in short.values() if other.split(" #")[0] == text]
        short[machine.name] = f"{text} #{len(taken) + 1}" if taken else text
    return short


def machines_list(machines: Sequence[Machine]) -> str:
    lines = []
    for machine in machines:
        told = [machine.name, machine.dated, machine.source]
        if not machine.is_published:
            told.append(f"{machine.disturbed:.0%} disturbed")
        lines.append("; ".join(told))
        lines += [f"not measured: {one.subject.get('task', '')}: {'; '.join(one.warnings)}" for one in machine.failures]
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return f'<ul class="lab-note machines">{items}</ul>'


# The article's three experiments.


def article(machines: Sequence[Machine]) -> mo.Html:
    sentence, chart = article_sentence(machines), article_chart(machines)
    if sentence:
        say(sentence)
    return mo.Html(layout.said(sentence) + layout.framed(chart.title, chart))


def article_chart(machines: Sequence[Machine]) -> Chart:
    """The second article's experiments by its own runtime and each machine's fastest; first calls are separate."""
    short, dots = names(machines), list[Dot]()
    for machine in machines:
        for runtime in _runtimes_of_the_article(machine):
            label, known = f"{runtime.label}, {short[machine.name]}", known_by(machine)
            for name, title in TITLES.items():
                if one := machine.experiment(name, runtime):
                    dots.append(Dot(label, title, known, one.middle, one.low, one.high, one.words))
            first_s = machine.first_calls_s(runtime)
            if first_s and machine.experiments(runtime):
                dots.append(Dot(label, FIRST_CALLS, known, first_s, first_s, first_s))
    colors = dict(zip(TITLES.values(), ordered_palette(len(TITLES)), strict=True)) | {FIRST_CALLS: "#8a8f98"}
    return dots_chart(dots, colors, "seconds", "the article's experiments, by machine and backend")


def _runtimes_of_the_article(machine: Machine) -> list[Runtime]:
    """The article's runtime on each of the machine's devices, and each device's fastest in all three experiments."""
    devices = dict.fromkeys(runtime.device for runtime in machine.runtimes)
    usual = [runtime for runtime in machine.runtimes if runtime.backend == ARTICLE_RUNTIME]
    bests = [best_runtime(machine, Machine.experiments, device) for device in devices]
    return list(dict.fromkeys([*usual, *(best.runtime for best in bests if best is not None)]))


def article_sentence(machines: Sequence[Machine]) -> str:
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
                f"On {short[machine.name]} the learning-rate experiment takes {seconds(usual.middle)} with the"
                f" article's own Keras on TensorFlow and {seconds(best.seconds.middle)} with {best.runtime.label}:"
                f" {middle} times less ({low} to {high})."
            )
    others = [s for one in machines if one.is_published for runtime in one.runtimes if (s := taken(one, runtime))]
    if others and said:
        said.append(
            f"The article's machines took {listed([seconds(one.middle) for one in others])}: changing how to train is"
            " worth more than changing the machine."
        )
    return " ".join(said)


# An epoch by backend and batch size.


def epochs(machines: Sequence[Machine]) -> mo.Html:
    drawn = "".join(layout.framed(caption, chart, "lab-low") for caption, chart in epoch_charts(machines))
    return mo.Html(f'{runtimes_legend(machines)}<div class="compare-grid">{drawn}</div>')


def epoch_charts(machines: Sequence[Machine]) -> list[tuple[str, Chart]]:
    short = names(machines)
    rows = {machine.name: _epoch_rows(machine) for machine in machines}
    domain = decades([row["s"] for some in rows.values() for row in some])
    return [
        (f"{short[machine.name]} ({machine.dated})", _epoch_chart(rows[machine.name], domain))
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
            "shown": one.words,
        }
        for runtime in machine.runtimes
        for size in BATCH_SIZES
        if (one := machine.epoch(runtime, size)) is not None
    ]


def _epoch_chart(rows: list[dict], domain: tuple[float, float]) -> Chart:
    base = alt.Chart(pd.DataFrame(rows))
    ticks = alt.Axis(values=[1, 32, 512, 4096], format=",d")
    x = alt.X("size:Q", scale=log_scale([1, 4096], base=2), title="batch size", axis=ticks)
    y = alt.Y("s:Q", scale=log_scale(domain), title="seconds per epoch", axis=alt.Axis(tickCount=4, format=",~g"))
    tooltip = ["runtime:N", alt.Tooltip("size:Q", title="batch size"), alt.Tooltip("shown:N", title="an epoch")]
    dash = alt.StrokeDash("device:N", scale=alt.Scale(domain=["cpu", "gpu"], range=[[1, 0], [4, 3]]), legend=None)
    lines = base.mark_line(strokeWidth=1.6).encode(x=x, y=y, color=row_color(), detail="runtime:N", strokeDash=dash)
    points = base.mark_point(filled=True, size=42).encode(x=x, y=y, color=row_color(), tooltip=tooltip)
    bars = base.mark_rule(strokeWidth=1.2).encode(
        x=x, y=alt.Y("low:Q", title="seconds per epoch"), y2="high:Q", color=row_color()
    )
    return Chart(styled(lines + bars + points), "seconds per epoch")


def runtimes_legend(machines: Sequence[Machine]) -> str:
    runtimes = sorted({runtime for machine in machines for runtime in machine.runtimes}, key=lambda one: one.place)
    return legend((f"3px {'dashed' if one.on_gpu else 'solid'} {one.color}", one.label) for one in runtimes)
