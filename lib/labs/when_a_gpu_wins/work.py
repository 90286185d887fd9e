"""Larger work, and what an epoch costs: seconds and dollars on this machine and on every device that is known."""

import html
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from lib.formatting import part, percent, seconds, times
from lib.labs.when_a_gpu_wins.border import ON_HERE, WAY_NAMES, WAYS, devices, live_of, remarks, side, warnings_of
from lib.labs.when_a_gpu_wins.sides import Side, calibrated_side, known_side, measured_steps
from lib.model.backends.registry import Runtime
from lib.model.data.mnist import recognised
from lib.model.spec import Network
from lib.sweeps.cost_model import StepTime
from lib.sweeps.experiments import time_to_accuracy
from lib.sweeps.experiments.anatomy_of_a_step import AnatomyTask, measure_tasks
from lib.sweeps.experiments.calibration import TrainingWay, Trial, measure_trials
from lib.sweeps.storage.records import Kind, Record
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.cancel import Cancel
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.notes import Note
from lib.sweeps.workers.queue import Request
from lib.timing.prediction.device import Device, DoesNotFit
from lib.timing.prediction.predict import MOST_PER_H, YOUR_PRICE, Prediction
from lib.timing.prediction.workload import Way, Workload, convolutional, fully_connected, resnet18
from lib.timing.profiling.request import CONVOLUTIONAL, Examination
from lib.ui import layout
from lib.ui.lab import Asked, Drawing, Shown
from lib.ui.panel import Controls, dropdown, number, slider
from lib.ui.views.markup import on_demand, table

LARGER = Network((1024, 512, 256))  # which the second article proposes
BY = Runtime()  # by which larger work is measured here
NETWORK = Network()  # whose epochs are priced


class LargerWork(Controls):
    """The batch size of larger work."""

    AGAIN = "Measure again", "Measure the steps that are measured here once more"
    size = slider("Batch size", 32, (1, 8, 32, 128, 256))
    way = dropdown("Known devices by a", "step", WAY_NAMES, full_width=True)


class Costs(Controls):
    """What is trained, to which accuracy, and the price of this machine."""

    AGAIN = ()
    size = slider("Batch size", 32, tuple(time_to_accuracy.RATES))  # at which epochs to an accuracy are counted
    target = slider("Target accuracy", 0.95, time_to_accuracy.TARGETS)
    way = dropdown("Known devices by a", "step", WAY_NAMES, full_width=True)
    price = number("$ per hour for this machine", 0.0, 0, MOST_PER_H, step=0.001)


def _known(way: Way) -> list[Side]:
    """All devices that are known by their figures and run a step in this way."""
    return [known_side(one, way) for one in devices().values() if way in one.ways]


def parts_on_demand(groups: Mapping[str, Mapping[str, Prediction]]) -> str:
    """HTML: what predicted steps consist of, in seconds and as shares; a step whose parts are not known is left out.

    Args:
        groups: Predictions by their names, below a heading each; an empty heading is not shown.
    """
    known = [(head, name, one) for head, of in groups.items() for name, one in of.items() if one.parts_s]
    names, rows = list(dict.fromkeys(name for *_, one in known for name in one.parts_s)), dict[str, list[list[str]]]()
    for head, name, one in known:
        parts = [part(one.parts_s[of_it], one.step_s) if one.parts_s.get(of_it) else "–" for of_it in names]
        of_head = rows.setdefault(head, [[html.escape(head)]] if head else [])
        of_head.append([html.escape(name), seconds(one.step_s), *parts])
    shown = table(["step of", "all of it", *names], itertools.chain(*rows.values()))
    return on_demand("What these steps consist of, predicted", shown) if rows else ""


# Larger work.


@dataclass(frozen=True)
class LargerStep:
    """A step of larger work on one side: how it is known, and what it takes, measured or else predicted."""

    work: Workload
    side: Side
    how: str
    known: StepTime | Prediction | None = None
    prediction: Prediction | None = None

    @property
    def step_s(self) -> float:
        """Seconds; infinite where they are not known."""
        return self.known.step_s if self.known is not None else math.inf


def larger_work(batch_size: int) -> list[Workload]:
    """The network that the second article proposes, a small convolutional one, and ResNet-18."""
    connected = replace(fully_connected(LARGER, batch_size), name=f"784→{LARGER.label}→10")
    return [connected, convolutional(batch_size), resnet18(batch_size)]


def measure_larger(
    batch_size: int, engine: Engine, store: Store, cancel: Cancel, request: Request
) -> Iterator[Note | Record]:
    """Measure here what is cheap of larger work: steps of the second article's network and of the convolutional one.

    Raises:
        WorkerDied, TrainingFailed: From the worker that measures.
    """
    for event in measure_trials([(TrainingWay(BY), [Trial(LARGER, batch_size)])], engine, store, cancel, request):
        if isinstance(event, Note):
            yield event
    yield from measure_tasks([_convolutional(batch_size)], engine, store, cancel, request)


def _convolutional(batch_size: int) -> AnatomyTask:
    return AnatomyTask(BY, Examination(CONVOLUTIONAL, batch_size=batch_size))


def larger_steps(batch_size: int, sides: Sequence[Side], store: Store) -> list[LargerStep]:
    """All larger work on all sides: measured where this machine's store has it, else predicted; the quickest first."""
    works = larger_work(batch_size)
    measured = {
        works[0].name: measured_steps(store, BY).get((LARGER, batch_size)),
        works[1].name: _convolutional(batch_size).step_time(store.records(Kind.ANATOMY)),
    }

    def step(work: Workload, one: Side) -> LargerStep:
        own = measured.get(work.name) if one.here == BY and one.together == 1 else None
        try:
            predicted = one.one(work)
        except DoesNotFit as error:
            return LargerStep(work, one, str(error))
        how = "predicted, unsure" if predicted.warning else "predicted"
        how = f"measured; predicted: {seconds(predicted.step_s)}" if own is not None else how
        return LargerStep(work, one, how, own or predicted, predicted)

    return [found for work in works for found in sorted((step(work, one) for one in sides), key=lambda it: it.step_s)]


def measured_here(at: LargerWork) -> Asked:
    """What is measured of larger work."""
    return Asked(at.size, lambda _: ((), partial(measure_larger, at.size)))


def larger(shown: Shown) -> Drawing:
    """Larger work by device; each number says whether it was measured or predicted."""
    at, now, way = shown.at, shown.now, WAYS[shown.at.way]
    here = side(f"{ON_HERE}jax-epoch/cpu", way, live_of(shown))
    found = larger_steps(at.size, [*([here] if here else []), *_known(way)], shown.section.page.store)
    said = larger_sentence(found, at.size)
    line = layout.state_line(now.state, now.over, 1, now.note or "two steps are measured here", now.problem)
    unsure = [(one.work.name, one.prediction.warning) for one in found if one.prediction is not None]
    groups = {
        name: {one.side.label: one.prediction for one in found if one.work.name == name and one.prediction is not None}
        for name in dict.fromkeys(one.work.name for one in found)
    }
    below = remarks([], unsure) + parts_on_demand(groups)
    return Drawing(line + layout.sentence(said) + larger_table(found) + below, said)


def larger_sentence(found: Sequence[LargerStep], batch_size: int) -> str:
    """Who is quickest at each work, and how many times faster than the quickest without a GPU."""
    parts = []
    for name in dict.fromkeys(one.work.name for one in found):
        mine = [one for one in found if one.work.name == name and one.known is not None]
        processor = next((one for one in mine if not one.side.on_gpu), None)
        if processor is not None:
            ahead = f", {times(processor.step_s / mine[0].step_s)} times faster than {processor.side.label}"
            parts.append(f"{name}: {mine[0].side.label}{ahead if mine[0] is not processor else ''}")
    return f"At batch size {batch_size:,} the quickest is, by prediction, for {'; for '.join(parts)}." if parts else ""


def larger_table(found: Sequence[LargerStep]) -> str:
    """HTML: larger work by device."""
    rows = {one.work.name: [[html.escape(one.work.name)]] for one in found}
    for one in found:
        cells = ["–"] * 3
        if one.known is not None:
            span = f"{seconds(one.known.low_s)} – {seconds(one.known.high_s)}"
            cells = [seconds(one.step_s), span, seconds(one.step_s * one.work.steps)]
        rows[one.work.name].append([html.escape(one.side.label), html.escape(one.how), *cells])
    head = ["trained by", "how it is known", "a step", "from – to", "an epoch of 48,000 images"]
    return table(head, itertools.chain(*rows.values()))


# What it costs.


@dataclass(frozen=True)
class Bill:
    """Dollars of an epoch on one side; None where it has no price, as `to_accuracy` where no epochs were counted."""

    side: str
    epoch: Prediction
    dollars: float | None
    per_h: float | None
    dated: str  # or `YOUR_PRICE`
    to_accuracy: float | None = None


def bills(
    sides: Sequence[Side], network: Network, batch_size: int, epochs: float | None, own_per_h: float | None = None
) -> list[Bill]:
    """What an epoch costs on each side, the cheapest first; those without a price last.

    Args:
        sides: This machine's, or devices that are known by their figures, a price perhaps among them.
        network: Single.
        batch_size: Images a step.
        epochs: To the accuracy; None where that is not known.
        own_per_h: Dollars of an hour of this machine; None where nobody has said.
    """
    found, workload = [], fully_connected(network, batch_size)
    for one in sides:
        known = one.device if isinstance(one.device, Device) else None
        price = known.figures.get("price_per_h") if known is not None else None
        per_h, dated = (price.value if price else None, known.dated) if known is not None else (own_per_h, YOUR_PRICE)
        epoch = one.one(workload).of(workload.steps)
        dollars = None if per_h is None else per_h * epoch.step_s / 3600
        found.append(Bill(one.label, epoch, dollars, per_h, dated, dollars and epochs and dollars * epochs))
    return sorted(found, key=lambda bill: (bill.dollars is None, bill.dollars or bill.epoch.step_s))


def cost(shown: Shown) -> Drawing:
    """Dollars of training on every device."""
    at, store, known = shown.at, shown.section.page.store, _known(WAYS[shown.at.way])
    learned = time_to_accuracy.learned(store, NETWORK, recognised())
    needed = time_to_accuracy.needed(learned, NETWORK, at.size, at.target)
    epochs = needed.reached[len(needed.reached) // 2] if needed is not None and needed.reached else None
    here = [
        calibrated_side(one.trained, one.calibration)
        for one in live_of(shown).view().items
        if one.calibration is not None and not one.trained.together
    ]
    found = bills([*here, *known], NETWORK, at.size, epochs, at.price or None)
    said = cost_sentence(found, at.target, at.size, needed.words if needed is not None else "")
    lacks = "" if at.price else "Enter this machine's hourly cost above, and its rows have a price too."
    notes = [lacks if here else "This machine is not calibrated yet, so it has no row here: see above."]
    return Drawing(cost_table(found) + layout.sentence(said) + remarks(notes, warnings_of(known)), said)


def cost_sentence(found: Sequence[Bill], target: float, batch_size: int, counted: str) -> str:
    """Which device is the cheapest, and how many epochs the accuracy takes, in the words of `counted`, if it was."""
    priced = [one for one in found if one.dollars]
    if len(priced) < 2:
        return "Fewer than two of these devices have a price, so none is the cheapest."
    ratio = (priced[-1].dollars or 0) / (priced[0].dollars or 1)
    epochs = (
        f"Of {percent(target)}, counted here with JAX: {counted}."
        if counted
        else f"How many epochs {percent(target)} takes at this batch size was not counted on this machine: a race to an"
        " accuracy counts them."
    )
    return (
        f"1,000 epochs at batch size {batch_size:,} are predicted to cost {_of_1000(priced[0].dollars)} $ on"
        f" {priced[0].side}, the cheapest of those with a price; on {priced[-1].side} {times(ratio)} times as much."
        f" {epochs}"
    )


def cost_table(found: Sequence[Bill]) -> str:
    """HTML: dollars of an epoch and to the accuracy, by device, with the date of each price."""
    rows = [
        [
            html.escape(one.side),
            "no price is listed" if one.per_h is None else f"{one.per_h:g} $ an hour ({html.escape(one.dated)})",
            seconds(one.epoch.step_s),
            f"{seconds(one.epoch.low_s)} – {seconds(one.epoch.high_s)}",
            _of_1000(one.dollars),
            _of_1000(one.to_accuracy),
        ]
        for one in found
    ]
    costs = ["$ for 1,000 epochs", "$ for 1,000 trainings to the accuracy"]
    return table(["trained by", "price", "an epoch, predicted", "from – to", *costs], rows)


def _of_1000(value: float | None) -> str:
    return "–" if value is None else f"{1000 * value:.2g}"
