"""Calibration of this machine, larger work, the cost of epochs, and remedies, here and on known devices."""

import html
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from lib.formatting import dollars, factor, listed, percent, seconds, sentence, times
from lib.labs import why_slower
from lib.labs.when_a_gpu_wins.border import (
    LEFT,
    ON_HERE,
    RIGHT,
    WAY_NAMES,
    WAYS,
    Border,
    ImaginedCard,
    calibrated_side,
    devices,
    fitting,
    known_side,
    live_of,
    measured_steps,
    remarks,
    side,
    step_of,
    warnings,
)
from lib.model.backends.registry import Runtime
from lib.model.data.mnist import recognised
from lib.model.spec import Network
from lib.sweeps.experiments import advice, backend_race
from lib.sweeps.experiments.advice import Findings, findings, miss, too_long
from lib.sweeps.experiments.anatomy_of_a_step import AnatomyTask, measure_tasks
from lib.sweeps.experiments.backend_race import TARGETS
from lib.sweeps.experiments.calibration import (
    CalibrationProgress,
    TrainingWay,
    Trial,
    live_in,
    measure,
    measure_trials,
    unasked,
    ways,
)
from lib.sweeps.experiments.recorded_machines import MEASURED, PREDICTED
from lib.sweeps.measuring import StepTime
from lib.sweeps.storage.records import Kind, Record
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Note, State
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.measurement import disturbances
from lib.timing.prediction.predict import MOST_NETWORKS, MOST_PER_H, YOUR_PRICE, DrivenDevice, Prediction, Question
from lib.timing.prediction.remedies import NOTHING, Effect, Remedy, Setup, best
from lib.timing.prediction.workload import Device, Way, Workload, convolutional, fully_connected, resnet18
from lib.timing.profiling.request import CONVOLUTIONAL, Examination
from lib.ui import layout
from lib.ui.controls import SHARED_TODAY, Controls, batch_size, dropdown, hidden, number, runtime, several, slider
from lib.ui.lab import Asked, Drawing, Page, Shown, Stage, Work
from lib.ui.views.chart import Chart, ordered_palette
from lib.ui.views.dots import Dot, dots_chart
from lib.ui.views.markup import table

LARGER = Network((1024, 512, 256))  # proposed by the second article
BY = Runtime()  # measures larger work here
NAMES: Mapping[Remedy, str] = {one: one.value[0].upper() + one.value[1:] for one in Remedy}
APPLIES = {one: f"apply_{one.name.lower()}" for one in Remedy}  # names of the buttons that the table shows
FAIR = (
    "“Times as fast” compares the seconds per image and network. A larger batch makes fewer steps from the same images,"
    " so it may learn less from them, which the figure does not show. Once today's step is measured, it also informs"
    " the remedies' predictions."
)


class CalibratedWays(Controls):
    AGAIN = "Calibrate again", "Measure what is missing, and repeat what was disturbed"
    ways = several(
        "Calibrate", lambda: tuple(one.address for one in unasked()), lambda: {one.label: one.address for one in ways()}
    )


class LargerWork(Controls):
    AGAIN = "Measure again", "Repeat the steps measured on this machine"
    size = slider("Batch size", 32, (1, 8, 32, 128, 256))
    way = dropdown("Known devices by a", "step", WAY_NAMES, full_width=True)


class Costs(Controls):
    AGAIN = ()
    hidden = hidden()
    size = batch_size("Batch size", 32)
    target = slider("Target accuracy", 0.95, TARGETS)
    way = dropdown("Known devices by a", "step", WAY_NAMES, full_width=True)
    price = number("$ per hour for this machine", 0.0, 0, MOST_PER_H, step=0.001)


def _offered() -> dict[str, str]:
    return {one.label: one.address for one in ways() if not one.together}


class Remedies(Controls):
    AGAIN = "Measure all", "Apply each remedy, and measure a step with it"
    RESULT_BUTTONS = tuple(
        (name, NAMES[one], "Apply it, and measure a step with and without it") for one, name in APPLIES.items()
    )
    hidden = hidden()
    size = batch_size("Batch size", 32)
    by = dropdown(
        "Trained today by",
        lambda: next((one for one in _offered().values() if one == "jax-step/cpu"), next(iter(_offered().values()))),
        _offered,
        full_width=True,
        shared=SHARED_TODAY,
    )
    networks = number("Networks to train", 8, 1, MOST_NETWORKS, whole=True)


PANELS = {
    "win": Border,
    "here": CalibratedWays,
    "what": ImaginedCard,
    "larger": LargerWork,
    "cost": Costs,
    "remedy": Remedies,
}


# Calibration of this machine.


def calibration(page: Page) -> tuple[Callable[[CalibratedWays], Asked], Callable[[Shown], Drawing]]:
    """Measure what the chosen ways lack and report their accuracy. The page's other sections follow the progress."""
    live = live_in(page.store.path)
    live.followed_by(page.news)

    def chosen_by(at: CalibratedWays) -> tuple[TrainingWay, ...]:
        return tuple(one.trained for one in live.view().items if one.trained.address in at.ways)

    def ask(at: CalibratedWays) -> Asked:
        chosen = chosen_by(at)

        def make(again: bool) -> tuple[tuple, Work]:
            done, total = progress(live.view().items, chosen)
            return (done == total and not again,), partial(measure, chosen, live, again=again)

        return Asked(chosen, make)

    def draw(shown: Shown) -> Drawing:
        now, standings, (saved,) = shown.now, live.view().items, shown.known
        chosen = chosen_by(shown.at)
        done, total = progress(standings, chosen)
        words = f"{done} of {total} steps measured" + (f"; {now.note}" if now.note else "")
        line = layout.state_line(layout.saved_or(now.state, saved), done, total, words, now.problem)
        said = calibrated_sentence(standings)
        failed = [
            sentence(one.why_not)
            for one in standings
            if one.trained in chosen and one.why_not and not now.state.under_way
        ]
        return Drawing(layout.sentence(said) + line + layout.problems(failed), " ".join([said, *failed]))

    return ask, draw


def calibrated_sentence(standings: Sequence[CalibrationProgress]) -> str:
    known = [f"{one.trained.label} ({one.calibration.median_error:.0%})" for one in standings if one.calibration]
    if not known:
        return "This machine is not calibrated yet, so nothing is predicted for it."
    return f"This machine is calibrated for {listed(known)}; in brackets, the median error for a step left out."


def progress(standings: Sequence[CalibrationProgress], chosen: Collection[TrainingWay]) -> tuple[int, int]:
    counted = [one for one in standings if one.trained in chosen]
    return sum(one.n_measured for one in counted), sum(len(one.wanted) for one in counted)


# Larger work and its cost.


def best_driven(way: Way, work: Workload) -> list[DrivenDevice]:
    """Each known device with the library whose step of this work is shortest."""
    sides = [(one.name, known_side(one, way)) for one in devices().values() if way in one.ways]
    slowest_first = sorted(sides, key=lambda one: (fitting(one[1], work) or NOTHING).step_s, reverse=True)
    return list(dict(slowest_first).values())


class LargerStep(NamedTuple):
    """A step of larger work on one side, measured or else predicted; neither if it does not fit into memory."""

    work: Workload
    side: DrivenDevice
    predicted: Prediction | None
    measured: StepTime | None = None

    @property
    def known(self) -> StepTime | Prediction | None:
        return self.measured or self.predicted

    @property
    def step_s(self) -> float:
        return (self.known or NOTHING).step_s


def larger_work(batch_size: int) -> list[Workload]:
    connected = replace(fully_connected(LARGER, batch_size), name=f"784→{LARGER.label}→10")
    return [connected, convolutional(batch_size), resnet18(batch_size)]


def measure_larger(
    batch_size: int, engine: Engine, store: Store, cancel: Cancel, request: Request
) -> Iterator[Note | Record]:
    """Measure steps of the second article's network and of the convolutional one, which are cheap enough to run here.

    Raises:
        TrainingFailed: From the worker that measures.
    """
    for event in measure_trials([(TrainingWay(BY), [Trial(LARGER, batch_size)])], engine, store, cancel, request):
        if isinstance(event, Note):
            yield event
    yield from measure_tasks([_convolutional(batch_size)], engine, store, cancel, request)


def _convolutional(batch_size: int) -> AnatomyTask:
    return AnatomyTask(BY, Examination(CONVOLUTIONAL, batch_size=batch_size))


def larger_steps(batch_size: int, sides: Sequence[DrivenDevice], store: Store) -> list[LargerStep]:
    """Larger work on all sides, fastest first: measured if this machine's store has it, else predicted."""
    works = larger_work(batch_size)
    measured = {
        works[0].name: measured_steps(store, BY).get((LARGER, batch_size)),
        works[1].name: _convolutional(batch_size).step_time(store.records(Kind.ANATOMY)),
    }
    found: list[LargerStep] = []
    for work in works:
        known = {one: measured.get(work.name) if one.here and one.runtime == BY else None for one in sides}
        steps = [LargerStep(work, one, fitting(one, work), step_time) for one, step_time in known.items()]
        found += sorted(steps, key=lambda one: one.step_s)
    return found


def measured_here(at: LargerWork) -> Asked:
    return Asked(at.size, lambda _: ((), partial(measure_larger, at.size)))


def larger(shown: Shown) -> Drawing:
    at, now, way = shown.at, shown.now, WAYS[shown.at.way]
    here = side(f"{ON_HERE}jax-epoch/cpu", way, live_of(shown))
    sides = [*([here] if here else []), *best_driven(way, larger_work(at.size)[0])]
    found = larger_steps(at.size, sides, shown.section.page.store)
    line = layout.state_line(now.state, now.over, 1, now.note or "two steps are measured here", now.problem)
    unsure = [(one.work.name, one.predicted.warning) for one in found if one.predicted is not None]
    chart, said = larger_chart(found), larger_sentence(found, at.size)
    result = layout.sentence(said) + layout.framed(chart.title, chart) + line + remarks(too_large(found), unsure)
    return Drawing(result, said)


def too_large(found: Sequence[LargerStep]) -> list[str]:
    lacking: dict[str, list[str]] = {}
    for one in found:
        if one.known is None:
            lacking.setdefault(one.work.name, []).append(one.side.short)
    return [f"{name} does not fit into the memory of {listed(labels)}." for name, labels in lacking.items()]


def larger_sentence(found: Sequence[LargerStep], batch_size: int) -> str:
    parts = []
    for name in dict.fromkeys(one.work.name for one in found):
        mine = [one for one in found if one.work.name == name and one.known is not None]
        processor = next((one for one in mine if not one.side.on_gpu), None)
        if processor is not None:
            ahead = f", {times(processor.step_s / mine[0].step_s)} times faster than {processor.side.short}"
            parts.append(f"{name}: {mine[0].side.short}{ahead if mine[0] is not processor else ''}")
    return f"At batch size {batch_size:,} the predicted fastest is, for {'; for '.join(parts)}." if parts else ""


def larger_chart(found: Sequence[LargerStep]) -> Chart:
    works = list(dict.fromkeys(one.work.name for one in found))
    colors = dict(zip(works, ordered_palette(len(works)), strict=True))
    dots = [
        Dot(
            one.side.short,
            one.work.name,
            MEASURED if one.measured else PREDICTED,
            one.known.step_s,
            one.known.low_s,
            one.known.high_s,
            f"predicted: {seconds(one.predicted.step_s)}" if one.measured and one.predicted else "",
        )
        for one in found
        if one.known is not None
    ]
    return dots_chart(dots, colors, "seconds of a step", "seconds of a step by device")


class Bill(NamedTuple):
    side: DrivenDevice
    epoch: Prediction
    per_h: float | None
    dated: str  # or `YOUR_PRICE`

    def dollars(self, epoch_s: float) -> float:
        """Dollars for 1,000 epochs of this many seconds each; infinite without a price."""
        return 1000 * (self.per_h or math.inf) * epoch_s / 3600


def bills(
    sides: Sequence[DrivenDevice], network: Network, batch_size: int, own_per_h: float | None = None
) -> list[Bill]:
    """The cost of an epoch on each side, cheapest first; sides without a price come last.

    Args:
        sides: This machine's sides, or devices known by their figures, which may include a price.
        network: The network to price.
        batch_size: Images per step.
        own_per_h: Dollars per hour of this machine; None if not given.
    """
    found, workload = [], fully_connected(network, batch_size)
    for one in sides:
        per_h, dated = own_per_h, YOUR_PRICE
        if isinstance(one.device, Device):
            price = one.device.figures.get("price_per_h")
            per_h, dated = price.value if price else None, one.device.dated
        found.append(Bill(one, step_of(one, workload).of(workload.steps), per_h, dated))
    return sorted(found, key=lambda bill: bill.dollars(bill.epoch.step_s))


def cost(shown: Shown) -> Drawing:
    at, store, network = shown.at, shown.section.page.store, Network.parse(shown.at.hidden)
    known = best_driven(WAYS[at.way], fully_connected(network, at.size))
    needed = backend_race.needed(backend_race.learned(store, network, recognised()), network, at.size, at.target)
    here = [
        calibrated_side(one.trained, one.calibration)
        for one in live_of(shown).view().items
        if one.calibration is not None and not one.trained.together
    ]
    found = bills([*here, *known], network, at.size, at.price or None)
    chart = cost_chart(found)
    said = cost_sentence(found, at.target, at.size, needed.words if needed is not None else "")
    lacks = "" if at.price else "Enter this machine's hourly cost above to add its mark."
    notes = [lacks if here else "This machine is not calibrated yet, so it has no mark here: see above."]
    if unpriced := [one.side.short for one in found if one.per_h is None]:
        notes.append(f"No price is listed for {listed(unpriced)}.")
    result = layout.sentence(said) + layout.framed(chart.title, chart) + remarks(notes, warnings(known))
    return Drawing(result, said)


def cost_chart(found: Sequence[Bill]) -> Chart:
    dots = [
        Dot(
            one.side.short,
            "GPU" if one.side.on_gpu else "CPU",
            PREDICTED,
            one.dollars(one.epoch.step_s),
            one.dollars(one.epoch.low_s),
            one.dollars(one.epoch.high_s),
            f"${one.per_h:g} an hour ({one.dated}), {seconds(one.epoch.step_s)} an epoch",
        )
        for one in found
        if one.per_h
    ]
    colors = {name: f"rgb{color}" for name, color in (("CPU", LEFT), ("GPU", RIGHT))}
    return dots_chart(dots, colors, "$ for 1,000 epochs", "predicted cost of 1,000 epochs by device")


def cost_sentence(found: Sequence[Bill], target: float, batch_size: int, counted: str) -> str:
    """The cheapest device and the target's number of epochs, worded by `counted` unless that is empty."""
    priced = [one.dollars(one.epoch.step_s) for one in found if one.per_h]
    if len(priced) < 2:
        return "Fewer than two of these devices have a price, so none is the cheapest."
    epochs = (
        f"For {percent(target)}, counted here with JAX: {counted}."
        if counted
        else (
            f"The epochs to {percent(target)} at this batch size are not counted on this machine yet: a race to an"
            " accuracy counts them."
        )
    )
    return (
        f"1,000 epochs at batch size {batch_size:,} are predicted to cost {dollars(priced[0])} on"
        f" {found[0].side.short}, the cheapest of those with a price; on {found[len(priced) - 1].side.short}"
        f" {times(priced[-1] / priced[0])} times as much. {epochs}"
    )


# Remedies.


def asked_by(at: Remedies) -> tuple[Question, TrainingWay]:
    """The training and the way it runs before any remedy. Raises ValueError with a sentence."""
    return Question(Network.parse(at.hidden), at.size, networks=at.networks), TrainingWay(runtime(at.by))


def remedies(page: Page) -> tuple[Callable[[Remedies], Asked], Callable[[Shown], Drawing]]:
    """Measure the remedies whose buttons were pressed (a script measures all), and draw predictions and results."""
    live, section = live_in(page.store.path), page.sections["remedy"]

    def ask(at: Remedies) -> Asked:
        question, by = asked_by(at)

        def make(pressed: bool) -> tuple[tuple, Work]:
            wanted = [] if section.stage.streams else list(Remedy)
            if pressed:
                new = [one for one, name in APPLIES.items() if section.pressed(name) or section.pressed("again")]
                wanted = chosen(section.stage, (question, by), new)
            return (wanted,), partial(advice.apply, question, by, wanted, live)

        return Asked((question, by), make)

    def draw(shown: Shown) -> Drawing:
        question, by = asked_by(shown.at)
        found, now, (wanted,) = findings(question, by, live.view().items, page.store), shown.now, shown.known
        state, n_done = now.state, sum(isinstance(item, Remedy) for item in now.items)
        n_measured, n_possible = len(found.measured.keys() - {None}), len(_possible(found))
        if not wanted and state is State.DONE:
            state = State.SAVED if n_measured else State.NOT_RUNNING
        words = (
            f"{n_measured} of {n_possible} remedies measured; press one in the table to apply it" if n_possible else ""
        )
        line = layout.state_line(state, n_done, len(wanted), now.note or words, now.problem)
        raced = why_slower.ways_at(question.batch_size, page.store.records(Kind.RACE), question.network)
        epochs = why_slower.changes(raced, question.batch_size, question.network)
        lines = "".join(layout.quiet(f"Whole epochs: {said}") for of, said in epochs if of == by.runtime)
        if found.before is None:
            calibrating = page.sections["here"].stage.running
            soon = now.state.under_way or (calibrating is not None and calibrating.view().state.under_way)
            waits = f"{by.label} is being calibrated; section 2 shows how far. Predictions follow."
            why = waits if soon else sentence(found.problem)
            return Drawing(lines + (layout.quiet(why) if soon else layout.problems([why])) + line, why)
        said = remedies_sentence(found)
        steps = [("Today", found.before.step), *((NAMES[one.remedy], setup.step) for one, setup in _possible(found))]
        flags = "; ".join(disturbances([warning for one in found.measured.values() for warning in one.disturbed]))
        below = (
            remedies_table(found, {one: shown.section.button(name) for one, name in APPLIES.items()})
            + remarks([FAIR, f"Disturbed: {flags}." if flags else ""], ((name, step.warning) for name, step in steps))
            + layout.software([by.runtime])
        )
        chart = layout.framed("times as fast by remedy", gains_chart(found))
        return Drawing(lines + layout.sentence(said) + chart + line + below, said)

    return ask, draw


def chosen(stage: Stage, about: tuple, pressed: list[Remedy]) -> list[Remedy]:
    """The remedies to measure: those still pending, and those whose buttons were pressed since.

    Args:
        stage: Where they are measured; it remembers the last request.
        about: The current request.
        pressed: Remedies whose buttons were pressed since then.
    """
    if stage.asked[0] != about or stage.running is None:
        return pressed
    now = stage.running.view()
    done = [item for item in now.items if isinstance(item, Remedy)]
    waited_for = [one for one in stage.began_with[0] if one not in done and now.state is not State.STOPPED]
    return list(dict.fromkeys([*waited_for, *pressed]))


def _possible(found: Findings) -> list[tuple[Effect, Setup]]:
    return [(one, one.setup) for one in found.effects if one.setup is not None]


def remedies_sentence(found: Findings) -> str:
    before, gains = found.before, found.gains
    most = best([one for one in found.effects if gains.get(one.remedy, math.inf) > 1])
    assert before is not None, "something is predicted"
    said = [f"{before.by}, batch size {before.batch_size:,}: a step is predicted to take {_interval(before.step)}"]
    if (step := found.measured.get(None)) is not None:
        said[0] += f", and took {seconds(step.step_s)} when it was measured, a miss of {miss(before, step):.0%}"
    said[0] += f"; the prediction is {seconds(before.image.step_s)} an image."
    if most is None:
        said.append("No remedy that can be predicted here is predicted to help.")
    else:
        said.append(
            f"Best of those predicted{'' if most.low > 1 else ', but not surely,'} in your own program:"
            f" {most.remedy.value}, {factor(most.gain, most.low, most.high)} times as fast, with {most.words}."
        )
        rewritten = next(one for one in found.effects if one.remedy is Remedy.BACKEND)
        if rewritten.gain > most.gain:
            times_as_fast = factor(rewritten.gain, rewritten.low, rewritten.high)
            said.append(f"Rewritten, {rewritten.words}: {times_as_fast} times.")
    if gains:
        gain, first = max((gain, remedy) for remedy, gain in gains.items())
        said.append(f"Of those measured, {first.value} helps most: {times(gain)} times as fast.")
    return " ".join(said)


def remedies_table(found: Findings, buttons: Mapping[Remedy, str]) -> str:
    """HTML: rows for today and for each remedy: its step, predicted and measured, and the miss.

    Args:
        found: Predictions and measurements.
        buttons: HTML of each remedy's button.
    """
    assert found.before is not None, "something is predicted"

    def row(name: str, words: str, setup: Setup, remedy: Remedy | None, line: str = "") -> list[str]:
        code = f"<br><code>{html.escape(line)}</code>" if line else ""
        first = [f"{name}<br><small>{html.escape(words)}</small>{code}", _interval(setup.step)]
        step = found.measured.get(remedy)
        return [*first, *(("–", "–") if step is None else (seconds(step.step_s), f"{miss(setup, step):.0%}"))]

    rows = [row("Today", found.before.by, found.before, None)]
    for one in found.effects:
        name = NAMES[one.remedy]
        if one.setup is None or too_long(one.setup):
            why = html.escape(sentence(one.why_not if one.setup is None else too_long(one.setup)))
            rows.append([f"{name}<br><small>{why}</small>", "–", "–", "–"])
        else:
            rows.append(row(buttons.get(one.remedy, name), one.words, one.setup, one.remedy, one.line))
    return table(["remedy", "a step, predicted", "… measured", "miss"], rows, "compare remedies")


def _interval(step: Prediction) -> str:
    return f"{seconds(step.step_s)} ({seconds(step.low_s)} to {seconds(step.high_s)})"


def gains_chart(found: Findings) -> Chart:
    dots = [
        Dot(NAMES[one.remedy], PREDICTED, PREDICTED, one.gain, one.low, one.high, factor(one.gain, one.low, one.high))
        for one, _ in _possible(found)
    ]
    dots += [Dot(NAMES[one], MEASURED, MEASURED, gain, gain, gain) for one, gain in found.gains.items()]
    names = [NAMES[one.remedy] for one in found.effects] or list(NAMES.values())
    colors = {PREDICTED: "#7b62d3", MEASURED: "#0b7a57"}
    title = "times as fast by remedy, predicted and measured"
    return dots_chart(dots, colors, "times as fast, per image and network", title, names, even=1.0)
