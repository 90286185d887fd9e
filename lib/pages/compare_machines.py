"""Connects the comparison of machines to marimo: dropped files, the machines chosen, and how they are drawn."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import marimo as mo

from lib import formatting
from lib.backends.registry import DEVICES
from lib.experiments import compare_machines
from lib.experiments.background import BackgroundTask
from lib.experiments.recorded_machines import (
    Collection,
    Machine,
    browsers_in,
    live_machine,
    published_machines,
    read_exports,
    recorded_here,
    told_apart,
)
from lib.experiments.time_to_accuracy import TARGETS
from lib.pages import layout
from lib.pages.controls import Controls, dropdown
from lib.pages.stage import Stage
from lib.pages.streaming import paint_while_it_runs, painted, say
from lib.pages.url_state import Address, Setting, checked, number
from lib.storage.store import Store
from lib.views import compare_machines as view
from lib.views import compare_machines_charts
from lib.views.chart import Chart
from lib.views.markup import as_markdown, on_demand
from lib.workers.cancel import Cancel
from lib.workers.engine import Engine
from lib.workers.notes import Note, State
from lib.workers.queue import Request, Urgency

MAX_FILE_BYTES = 20 * 2**20
MAX_PRICE_PER_H = 1000


@dataclass(frozen=True)
class Chosen:
    """What the page compares: machines, dollars per hour by machine, and the target accuracy, 0 to 1."""

    machines: tuple[Machine, ...]
    prices: dict[str, float]
    target: float
    problem: str = ""  # with what the controls say

    @property
    def measured(self) -> list[Machine]:
        """The machines without those of the articles."""
        return [machine for machine in self.machines if not machine.is_published]


def drop() -> mo.ui.file:
    """The field for exported files of other machines, at most `MAX_FILE_BYTES` each."""
    return mo.ui.file(
        filetypes=[".json"],
        multiple=True,
        kind="area",
        max_size=MAX_FILE_BYTES,
        label="Drop exports here (`python -m lib.cli.record FILE.json`), or choose them",
    )


def read(stage: Stage, dropped: mo.ui.file, done: Callable[[Collection], object]) -> None:
    """Read what was dropped, in a process of its own, and tell `done`; what cannot be read changes nothing."""
    files = tuple((one.name, one.contents) for one in dropped.value)
    if not files:
        stage.stop()
        stage.next_showing()
        mo.output.replace(dropped)
        if stage.running is not None:  # there were some
            done(Collection())
        return
    asked = tuple((name, hash(content)) for name, content in files)
    running = stage.begin_if_new(asked, 0, Request(stage.viewer, Urgency.NOW), lambda _: ((), partial(_read, files)))
    paint_while_it_runs(stage, running, partial(_paint_read, running, dropped, done, []))


def _read(
    files: Sequence[tuple[str, bytes]], engine: Engine, _store: Store, cancel: Cancel, request: Request
) -> Iterator[Collection | Note]:
    yield from read_exports(files, cancel, request, engine.niceness)


def _paint_read(
    running: BackgroundTask, dropped: mo.ui.file, done: Callable[[Collection], object], told: list[bool]
) -> int:
    now = running.view()
    line = "" if now.state is State.DONE else layout.state_line(now.state, 0.0, 1.0, now.note, now.problem)
    version = painted(now, dropped.text + line, "")
    if now.items and not told:
        told.append(True)
        done(now.items[0])
    return version


def gather(given: Collection) -> Collection:
    """This machine, the project's recordings, kept browsers, the dropped files and the published figures; each once.

    A dropped file replaces the project's recording of the same machine.
    """
    here, store = recorded_here(), Store()
    found = {machine.records[0].machine: machine for machine in (*browsers_in(store), *here.machines)}
    notes = list(given.notes)
    for machine in given.machines:
        known = found.get(machine.records[0].machine)
        if known is not None:
            notes.append(
                f"{machine.source} is of a machine that is here already ({machine.name}): its figures are taken in"
                f" place of {known.source}."
            )
        found[machine.records[0].machine] = machine
    live = live_machine(store)
    machines = (*([live] if live else []), *told_apart(found.values()), *published_machines())
    if live is None:
        notes.append(
            "This machine has measured nothing yet: it takes part as soon as a training or a race has run on it."
        )
    troubles = [store.trouble] if store.trouble else []
    return Collection(machines, (*troubles, *here.problems, *given.problems), (*here.notes, *notes))


@dataclass
class Remembered:
    """What was set for each machine, for when another file makes the page build the controls anew."""

    prices: dict[str, float] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)


def _controls() -> Controls:
    return Controls(
        dropdown("compare.target", "Target accuracy", 0.95, {f"{target:.0%}": target for target in TARGETS})
    )


def settings() -> dict[str, Setting]:
    """What the address may say; the choice of machines and the prices are not part of it."""
    return _controls().settings


def panel(address: Address, collection: Collection, remembered: Remembered) -> mo.ui.dictionary:
    """Which machines, the target accuracy, and a price for each machine.

    Args:
        address: Where the target accuracy is read and saved.
        collection: The machines to choose from.
        remembered: Prices and machines left out; updated when a control is moved.
    """
    labels = view.names(collection.machines)
    keys = {
        labels[one.name] + (" (published)" if one.is_published else " (live)" if one.live else ""): one.name
        for one in collection.machines
    }
    prices = {
        one.name: mo.ui.number(
            0,
            MAX_PRICE_PER_H,
            step=0.001,
            value=_price(remembered.prices.get(one.name, one.price_per_h)),
            label=f"$ per hour: {as_markdown(labels[one.name])}",
        )
        for one in collection.machines
    }
    shown = [label for label, name in keys.items() if name not in remembered.left_out]
    elements = {
        "machines": mo.ui.multiselect(keys, value=shown, label="Machines", full_width=True),
        **_controls().elements(address),
        "prices": mo.ui.dictionary(prices),
    }
    save = address.save("compare")

    def changed(values: dict) -> None:
        save({"target": values["target"]})
        remembered.prices |= values["prices"]
        remembered.left_out = set(keys.values()) - set(values["machines"])

    return mo.ui.dictionary(elements, on_change=changed)


def _price(given: object) -> float:
    """A price that the field can show; 0 where none is given, or none that can be."""
    return float(given) if isinstance(given, int | float) and 0 <= given <= MAX_PRICE_PER_H else 0.0


def chosen(panel: mo.ui.dictionary, collection: Collection) -> Chosen:
    """What the controls say; values that cannot be used become a `problem`: no prices then, and the usual target."""
    values: dict[str, Any] = panel.value
    machines = tuple(machine for machine in collection.machines if machine.name in values["machines"])
    limits = {f"price.{m.name}": number(f"price.{m.name}", 0.0, 0, MAX_PRICE_PER_H) for m in collection.machines}
    try:
        target = _controls().checked(values)["target"]
        prices = checked(limits, "price", values["prices"])
    except ValueError as error:
        return Chosen(machines, {}, settings()["compare.target"].usual, formatting.sentence(error))
    return Chosen(machines, {name: price for name, price in prices.items() if price}, target)


def controls(panel: mo.ui.dictionary) -> mo.Html:
    """The chosen machines and the accuracy; the prices below, on demand."""
    elements: dict[str, Any] = panel.elements
    prices = "".join(f"<div>{one.text}</div>" for one in elements["prices"].elements.values())
    return mo.Html(
        f'<div class="compare-controls"><div>{elements["machines"].text}</div>'
        f"<div>{elements['target'].text}</div></div>"
        + on_demand("prices: what an hour of each machine costs", f'<div class="compare-controls">{prices}</div>')
    )


def machines(collection: Collection, now: Chosen) -> mo.Html:
    """The machines that are compared, and the problems of the files and the controls."""
    problems = layout.problems([*collection.problems, *filter(None, [now.problem])])
    notes = "".join(layout.note(text).text for text in collection.notes)
    return mo.Html(problems + view.machines_table(now.machines, now.prices) + notes)


def article(now: Chosen) -> mo.Html:
    """The second article's experiments: a table, and a sentence."""
    return _told(view.article_table(now.machines, now.prices), view.article_sentence(now.machines))


def epochs(now: Chosen) -> mo.Html:
    """Seconds of an epoch by batch size, a chart per machine, below one legend."""
    figures = "".join(_figure(caption, chart) for caption, chart in compare_machines_charts.epoch_charts(now.machines))
    return mo.Html(compare_machines_charts.legend(now.machines) + f'<div class="compare-grid">{figures}</div>')


def accuracy(now: Chosen) -> mo.Html:
    """Seconds to the accuracy, where at least one machine has trained for it."""
    learned = compare_machines.learned_from(now.measured)
    if not learned:
        return layout.note(
            "No record here has counted the epochs to an accuracy: that needs MNIST and JAX on one machine of them."
        )
    caption = (
        f"seconds to {now.target:.0%}, evaluation after each epoch counted; one line per batch size, its number at the"
        " right"
    )
    return mo.Html(_figure(caption, compare_machines_charts.target_chart(now.measured, learned, now.target)))


def steps(now: Chosen) -> mo.Html:
    """Where the time of a step goes, a chart per machine, where at least one has taken a step apart."""
    figures = compare_machines_charts.step_charts(now.measured)
    if not figures:
        return layout.note("No record here has taken a step apart.")
    return mo.Html(f'<div class="compare-grid">{"".join(_figure(caption, chart) for caption, chart in figures)}</div>')


def models(now: Chosen) -> mo.Html:
    """What a network costs among many in one program, where at least one machine has measured that."""
    if not any(machine.models(device) for machine in now.measured for device in DEVICES):
        return layout.note("No record here has trained many networks at once.")
    return mo.Html(
        _figure(
            "milliseconds of an epoch for each network, by how many are trained in one program; thin: one after"
            " another",
            compare_machines_charts.models_chart(now.measured),
        )
    )


def verdict(now: Chosen) -> mo.Html:
    """Which machine is fastest and cheapest for which work: a table, and a sentence."""
    asked: Sequence = compare_machines.works(compare_machines.learned_from(now.measured), now.target)
    judged = [one for work in asked if (one := compare_machines.judge(now.machines, work, now.prices)) is not None]
    sentence = view.judged_sentence(judged, now.machines)
    return _told(view.judged_table(judged, now.prices, now.machines), sentence)


def figures(now: Chosen) -> mo.Html:
    """Every figure with its cost, as a table that is built when it is opened."""
    learned = compare_machines.learned_from(now.measured)
    return layout.lazy_table(
        "every figure, with what it costs", lambda: view.figures(now.machines, now.prices, learned, now.target)
    )


def _figure(caption: str, chart: Chart) -> str:
    return layout.framed(caption, chart, "lab-low")


def _told(table: str, sentence: str) -> mo.Html:
    if sentence:
        say(sentence)
    return mo.Html(table + layout.said(sentence))
