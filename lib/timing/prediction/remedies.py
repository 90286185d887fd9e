"""Predict the gain of each remedy for a slow training, and advise which device and way to train to use (`advise`).

An entry of `Remedy` holds the backends that it applies to, the line to paste, how to predict it, and how a worker
applies it: another way to train, another size, or a variant of the step (`lib.timing.profiling.request.VARIANTS`).

Gains compare the seconds per image and network, so that larger batches and many networks at once are judged fairly:
their steps take longer, but do more. A larger batch means fewer steps per epoch, which may learn less; gains ignore
that.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from types import MappingProxyType

from lib.formatting import counted, listed, seconds, times
from lib.timing.comparison import ratio_of
from lib.timing.prediction.predict import (
    REACHED,
    THERE,
    YOUR_PRICE,
    Calibration,
    DrivenDevice,
    Prediction,
    Question,
)
from lib.timing.prediction.workload import DRIVEN, Cost, Device, NoPrediction, Way

LARGER = 4  # times the batch size
RESIDENT = "resident"  # a variant of a step: its batches are on the device
STEPS_PER_EXECUTION = 50
LEAST_LEFT = 0.1  # share of a step that remains even if the measured saving exceeds the step itself


@dataclass(frozen=True)
class Setup:
    """How networks are trained, and the predicted seconds of a step.

    Attributes:
        by: Name of the way to train.
        batch_size: Images per step and network.
        step: Predicted step of all networks in the program.
        at_once: Networks in one program.
        variant: The variant of the step that a remedy applies; empty: the plain step.
    """

    by: str
    batch_size: int
    step: Prediction
    at_once: int = 1
    variant: str = ""

    @property
    def images(self) -> int:
        """Images per step, counted once for each network."""
        return self.batch_size * self.at_once

    @property
    def image(self) -> Prediction:
        """Seconds per image and network."""
        return self.step.of(1 / self.images)


@dataclass(frozen=True)
class Effect:
    """The predicted effect of a remedy.

    Attributes:
        remedy: The remedy.
        setup: The training with the remedy applied; None if it is already applied or does not exist.
        why_not: Why `setup` is None.
        gain: Speedup per image and network, with the interval `low` to `high`; below 1 is slower. For a remedy already
            in use (`kept`), the slowdown without it.
        words: The change, described.
        line: The line to paste into the user's program; empty if no single line does it.
    """

    remedy: "Remedy"
    setup: Setup | None = None
    why_not: str = ""
    gain: float = 1.0
    low: float = 1.0
    high: float = 1.0
    words: str = ""
    line: str = ""


def today(question: Question, by: str, ways: Mapping[str, DrivenDevice]) -> Setup:
    """Return how `by` trains the question's networks, without any remedy.

    Raises:
        NoPrediction: The memory cannot hold it, or the way to train is not calibrated.
    """
    of, at_once = ways[by], min(ways[by].together, question.networks)
    return Setup(by, question.batch_size, of.predicted(question.workload(of.way, at_once)), at_once)


def effects(question: Question, before: Setup, ways: Mapping[str, DrivenDevice]) -> list[Effect]:
    """Predict the effect of each remedy that applies to the backend, in the order of `Remedy`.

    Args:
        question: The training.
        before: Today's setup, from `today`.
        ways: Ways to train by name, including `before.by`.
    """
    backend = ways[before.by].backend
    return [
        _effect(remedy, question, before, ways)
        for remedy in Remedy
        if not remedy.backends or backend in remedy.backends
    ]


def best(found: list[Effect]) -> Effect | None:
    """Return the effect with the largest gain; None if nothing gains.

    Another library comes last, because it means rewriting the program.
    """
    gaining = [one for one in found if one.setup is not None and one.gain > 1 and not one.remedy.kept]
    return max(gaining, key=lambda one: (one.remedy is not Remedy.BACKEND, one.gain), default=None)


def _in_words(remedy: "Remedy", before: Setup, after: Setup) -> str:
    if remedy is Remedy.BATCH:
        return f"batch size {after.batch_size:,} instead of {before.batch_size:,}"
    if remedy is Remedy.DATA:
        return "the images on the device instead of a transfer in each step"
    if remedy is Remedy.NETWORKS:
        return f"{after.at_once} networks in one program instead of one after another"
    if remedy.kept:
        return f"{remedy.value}: already in use; the seconds are without it"
    return remedy.value if after.variant else f"{after.by} instead of {before.by}"


def _to_paste(remedy: "Remedy", before: Setup, after: Setup, ways: Mapping[str, DrivenDevice]) -> str:
    backend, other = (ways[one.by].backend for one in (before, after))
    line = next((line for key, line in remedy.lines.items() if backend.startswith(key)), "")
    return line.format(batch=after.batch_size, other=other.partition("-")[2], steps=STEPS_PER_EXECUTION)


_Find = Callable[[Question, Setup, Mapping[str, DrivenDevice]], Iterator[Setup]]


def _effect(remedy: "Remedy", question: Question, before: Setup, ways: Mapping[str, DrivenDevice]) -> Effect:
    try:
        after = min(remedy.setups(question, before, ways), key=lambda one: one.image.step_s)
    except NoPrediction as why:
        return Effect(remedy, why_not=str(why))
    low, gain, high = ratio_of(before.image.interval_s, after.image.interval_s)
    if remedy.variant:  # it is the same step, so only the saving is uncertain
        low, high = before.step.high_s / after.step.high_s, before.step.low_s / after.step.low_s
    if remedy.kept:
        pairs = zip(before.step.interval_s, after.step.interval_s, strict=True)
        low, gain, high = (1 + (after_s - before_s) / before.step.step_s for before_s, after_s in pairs)
    words, line = _in_words(remedy, before, after), _to_paste(remedy, before, after, ways)
    return Effect(remedy, after, "", gain, low, high, words, line)


def _compiled(
    wanted: tuple[Way, ...], already: str, question: Question, before: Setup, ways: Mapping[str, DrivenDevice]
) -> Iterator[Setup]:
    order, of = list(Way), ways[before.by]
    if order.index(of.way) >= order.index(wanted[0]):
        raise NoPrediction(already)
    these = {
        name: one for name, one in ways.items() if one.program == of.program and one.together == 1 and one.way in wanted
    }
    yield from _any(these, "this library has no such way to train here", question, ways)


def _larger_batch(question: Question, before: Setup, ways: Mapping[str, DrivenDevice]) -> Iterator[Setup]:
    size = min(LARGER * before.batch_size, question.rows)
    if size == before.batch_size:
        raise NoPrediction("a batch already has all images")
    yield today(replace(question, batch_size=size), before.by, ways)


def _changed(
    variant: str, kept: bool, question: Question, before: Setup, ways: Mapping[str, DrivenDevice]
) -> Iterator[Setup]:
    """Yield the step of a variant: minus the saving, or for a remedy already in use, plus the cost of dropping it."""
    cost = ways[before.by].saves.get(variant, THERE)
    if isinstance(cost, str):
        raise NoPrediction(cost)
    n_bytes = question.workload(Way.STEP).input_bytes
    spent, step = _seconds(cost, n_bytes), before.step
    pairs = ((step.step_s, spent.step_s), (step.low_s, spent.high_s), (step.high_s, spent.low_s))
    ends = (max(whole_s - spent_s, LEAST_LEFT * whole_s) for whole_s, spent_s in pairs)
    without = step.plus(spent) if kept else Prediction(*ends, warning=step.warning)
    yield replace(before, step=without, variant=variant)


def _seconds(cost: Cost, n_bytes: int) -> Prediction:
    """Return the seconds for `n_bytes`, none below 0."""
    (latency_low, latency_high), (byte_low, byte_high) = cost.latency_interval_s, cost.byte_interval_s
    ends = (cost.seconds(n_bytes), latency_low + byte_low * n_bytes, latency_high + byte_high * n_bytes)
    return Prediction(*(max(0.0, one) for one in ends))


def _together(question: Question, before: Setup, ways: Mapping[str, DrivenDevice]) -> Iterator[Setup]:
    if question.networks == 1:
        raise NoPrediction("there is only one network")
    program = ways[before.by].program
    these = {name: one for name, one in ways.items() if one.program == program and one.together > 1}
    yield from _any(these, "this library does not train several networks in one program here", question, ways)


def _elsewhere(of_keras: bool, question: Question, before: Setup, ways: Mapping[str, DrivenDevice]) -> Iterator[Setup]:
    # Keras runs the same program on several backends, which are a separate remedy.
    own = ways[before.by]
    others = {name: one for name, one in ways.items() if one.program != own.program and one.together == 1}
    same = {name: one for name, one in others.items() if own.backend in _KERAS and one.backend in _KERAS}
    these = same if of_keras else {name: one for name, one in others.items() if name not in same}
    yield from _any(these, "there is no other one here", question, ways)


def _any(
    these: Mapping[str, DrivenDevice], why_not: str, question: Question, ways: Mapping[str, DrivenDevice]
) -> Iterator[Setup]:
    if not these:
        raise NoPrediction(why_not)
    known = [name for name, one in these.items() if one.device is not None]
    if not known:
        raise NoPrediction(f"not calibrated yet: {listed(list(these))}")
    too_large: list[NoPrediction] = []
    for name in known:
        try:
            yield today(question, name, ways)
        except NoPrediction as error:
            too_large.append(error)
    if len(too_large) == len(known):
        raise too_large[0]


_JAX, _KERAS = ("jax-step",), ("keras-jax", "keras-tensorflow", "keras-torch")
_COMPILED_STEP, _COMPILED_EPOCH = "its step is already compiled", "its whole epoch is already compiled"


class Remedy(StrEnum):
    """A single change to how something is trained.

    Attributes:
        setups: Finds the setups that it offers.
        lines: Lines to paste, by prefix of the backend's key.
        backends: Keys of the backends that it applies to; empty: all.
        variant: The variant of the step that a worker runs.
        kept: Whether it is already in use, so that the variant is the step without it.
        on_card: Whether it exists on graphics cards only.
    """

    setups: _Find
    lines: Mapping[str, str]
    backends: tuple[str, ...]
    variant: str
    kept: bool
    on_card: bool

    def __new__(
        cls,
        words: str,
        lines: Mapping[str, str],
        find: _Find | None = None,
        backends: tuple[str, ...] = (),
        variant: str = "",
        kept: bool = False,
        on_card: bool = False,
    ) -> "Remedy":
        self = str.__new__(cls, words)
        self._value_ = words
        self.lines, self.backends, self.variant, self.kept, self.on_card = lines, backends, variant, kept, on_card
        self.setups = find or partial(_changed, variant, kept)
        return self

    STEP = (
        "compile the step",
        {
            "jax": "step = jax.jit(step, donate_argnums=0)",
            "torch": "step = torch.compile(step)  # forward, backward and update in one function",
        },
        partial(_compiled, (Way.STEP,), _COMPILED_STEP),
    )
    EPOCH = (
        "compile the epoch",
        {"jax": "parameters, losses = jax.lax.scan(step, parameters, batches)  # inside one jax.jit"},
        partial(_compiled, (Way.EPOCH, Way.GRAPH), _COMPILED_EPOCH),
    )
    BATCH = (
        "a larger batch",
        {"keras": "model.fit(x, y, batch_size={batch})", "": "batch_size = {batch}"},
        _larger_batch,
    )
    DATA = (
        "data on the device",
        {"jax": "x, y = jax.device_put((x, y))  # once, before the loop"},
        None,
        ("", *_JAX),
        RESIDENT,
    )
    NETWORKS = "many networks at once", {"jax": "step = jax.vmap(step)  # over stacked parameters"}, _together
    KERAS = (
        "another Keras backend",
        {"keras": 'import os; os.environ["KERAS_BACKEND"] = "{other}"  # before “import keras”'},
        partial(_elsewhere, True),
        _KERAS,
    )
    BACKEND = "another backend", {}, partial(_elsewhere, False)
    EXECUTION = (
        "several steps per call",
        {"keras": "model.compile(..., steps_per_execution={steps})"},
        None,
        ("keras-jax", "keras-tensorflow"),
        "steps per execution",
    )
    METRIC = "no metric each step", {"keras": "model.compile(..., metrics=[])"}, None, _KERAS, "no metric"
    XLA = "XLA", {"keras": "model.compile(..., jit_compile=True)"}, None, ("keras-tensorflow",), "jit_compile"
    ARRAYS = (
        "arrays instead of a generator",
        {"keras": "model.fit(x, y, batch_size={batch})  # x and y are arrays"},
        None,
        _KERAS,
        "generator",
        True,
    )
    GRAPH = (
        "a CUDA graph",
        {"torch": "with torch.cuda.graph(graph): loss = step(x, y)  # then graph.replay() each step"},
        None,
        ("torch",),
        "CUDA graph",
        False,
        True,
    )
    MOVED = (
        "images moved to the GPU once",
        {"torch": 'x, y = x.to("cuda"), y.to("cuda")  # once, before the loop'},
        None,
        ("torch",),
        "fed from the host",
        True,
        True,
    )
    DROPPED = (
        "gradients dropped instead of zeroed",
        {"torch": "optimizer.zero_grad(set_to_none=True)"},
        None,
        ("torch",),
        "gradients kept",
        True,
    )
    DONATED = ("donated buffers", {"jax": "step = jax.jit(step, donate_argnums=0)"}, None, _JAX, "undonated", True)


BROUGHT = "its figures assume batches from the host"
NOTHING = Prediction(math.inf, math.inf, math.inf)
WORTH = 1.05  # smaller speedups are not worth a change
FETCHED_S = 60.0  # least saving for advising another machine: a rented one takes this long to start
MOST_ROWS, MOST_OF_ONE = 8, 3  # answers shown at first: in all, and per device
CARDS, PROCESSORS = "other GPUs", "other CPUs"


@dataclass(frozen=True)
class Answer:
    """The predicted time and price of a question's trainings on one device, by one way to train."""

    device: str
    way: str  # includes the library, if the figures belong to one
    here: bool  # predicted from measurements on this machine
    prediction: Prediction  # of all steps of all networks
    dollars: float | None = None
    dated: str = ""  # date of the price; `YOUR_PRICE` if it is the question's own
    why_not: str = ""  # why the device cannot train it
    judged: bool = True  # whether there are figures that show how far off such predictions are
    recorded: bool = False  # predicted from epochs recorded on the device
    on_gpu: bool = False  # always False for this machine
    library: str = ""
    widening: float = 1.0  # for a library known by published figures: the ratio between two figures of the same thing


@dataclass(frozen=True)
class Advice:
    """All answers to a question, and the changes that would help.

    Attributes:
        answers: Answers by this machine's ways to train and by devices known by their figures: judged answers first,
            then unjudged, then impossible, each quickest first.
        remedy: The change that helps most for the advised answer; empty if none does.
        headline: The advised device and way to train, how long they take, how certain that is, and what helps most.
        silent: Why this machine, or some of its ways to train, have no answer.
        changes: Changes to the user's program that help, the best first.
    """

    answers: tuple[Answer, ...]
    remedy: str
    headline: str
    silent: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()


def advise(
    question: Question,
    here: Mapping[str, DrivenDevice],
    devices: Mapping[str, Device],
    recorded: Mapping[str, Mapping[str, DrivenDevice]] = MappingProxyType({}),
    by: str = "",
) -> Advice:
    """Predict how long each device and way to train takes and what it costs, and advise one.

    Args:
        question: The training.
        here: Ways to train on this machine, by display name.
        devices: Devices known by their figures, by key, such as those of `lib.sweeps.experiments.advice`.
        recorded: Ways to train calibrated on other machines, by device, then by display name. They replace predictions
            from the device's figures if a step was timed in reach of the question's.
        by: Key of the backend that the user trains with today; the changes are to its program.

    >>> from lib.timing.prediction.workload import read_devices
    >>> from lib.model.spec import Network
    >>> advise(Question(Network((128,)), 4096, 20), {}, read_devices()).answers[0].device
    'H100 SXM'
    """
    if not question.of_mnist:
        here = {name: _dense(one) for name, one in here.items()}
        recorded = {place: {name: _dense(one) for name, one in of.items()} for place, of in recorded.items()}
    near = {
        place: {
            name: one
            for name, one in of.items()
            if isinstance(known := one.device, Calibration) and known.is_known(question.workload(one.way), REACHED)
        }
        for place, of in recorded.items()
    }
    answers = sorted(_answers(question, here, devices, near), key=_place)
    chosen, why = _chosen([one for one in answers if not one.why_not])
    remedy = _remedy(question, chosen, here, devices, near)
    changes = _changes(question, by, [here, *near.values()])
    headline = _headline(question, chosen, why, changes[0] if changes else remedy)
    return Advice(tuple(answers), remedy, headline, changes=tuple(changes))


def first_rows(answers: Sequence[Answer]) -> list[Answer]:
    """Return at most `MOST_ROWS` answers: the quickest of each device among those measured here or recorded.

    Answers from data sheets alone share one row for cards and one for processors, because none says more than the
    others. Processors get no row if another processor was measured.
    """
    able = [one for one in answers if not one.why_not]
    measured = [one for one in able if one.here or one.recorded]
    devices = dict.fromkeys((one.device, one.here) for one in measured)
    each = [_by_library(one for one in measured if (one.device, one.here) == which) for which in devices]
    ranks = [one for rank in range(MOST_OF_ONE) for of in each for one in of[rank : rank + 1]]
    named = {one.device for one in measured}
    sheets = []
    for words, on_gpu in ((CARDS, True), (PROCESSORS, False)):
        alike = [
            one for one in able if one.judged and not one.here and one.on_gpu is on_gpu and one.device not in named
        ]
        if alike and (on_gpu or not any(one.here or not one.on_gpu for one in measured)):
            sheets.append(_in_one(words, alike))
    return sorted(ranks[: MOST_ROWS - len(sheets)], key=_place) + sheets


def _by_library(answers: Iterable[Answer]) -> list[Answer]:
    quickest = {one.library: one for one in sorted(answers, key=_place, reverse=True)}
    return sorted(quickest.values(), key=_place)[:MOST_OF_ONE]


def _in_one(words: str, alike: Sequence[Answer]) -> Answer:
    each = {one.device: one for one in reversed(alike)}
    found = [one.prediction for one in each.values()]
    ends = min(one.low_s for one in found), max(one.high_s for one in found)
    middle_s = math.sqrt(min(one.step_s for one in found) * max(one.step_s for one in found))
    names = {name.partition(":")[0].partition(" (")[0] for name in each}
    return Answer(
        f"{words}: {', '.join(sorted(names))}",
        listed(sorted({one.library for one in each.values()})),
        False,
        Prediction(middle_s, *ends),
        on_gpu=alike[0].on_gpu,
    )


def _chosen(able: Sequence[Answer]) -> tuple[Answer | None, str]:
    """Return the advised answer, and a remark on the others.

    The default is this machine or a processor; another device must certainly be quicker and save more than `FETCHED_S`.
    """
    judged = [one for one in able if one.judged] or list(able)
    ranks = (
        lambda one: one.here,
        lambda one: one.recorded and not one.on_gpu,
        lambda one: not one.on_gpu,
        lambda one: True,
    )
    usual = next((one for rank in ranks for one in judged if rank(one)), None)
    if usual is None:
        return None, ""
    # A device's own recordings say more than the figures of a similar device.
    known = [one for one in judged if one.recorded] + [one for one in judged if not one.recorded]
    for one in known:
        saved_s = usual.prediction.step_s - one.prediction.step_s
        if not one.here and saved_s > FETCHED_S and quicker(one.prediction, usual.prediction) < 0:
            ends = f"{seconds(usual.prediction.low_s)} to {seconds(usual.prediction.high_s)}"
            return one, f"{_named(usual)} takes {ends}"
    cards = [one for one in judged if one.on_gpu]
    if not cards:
        return usual, ""
    saves_s = usual.prediction.step_s - min(one.prediction.step_s for one in cards)
    return usual, "no GPU is faster" if saves_s <= 0 else "no GPU is certain to save a minute"


def _named(answer: Answer) -> str:
    return answer.device if answer.here else f"a {'GPU' if answer.on_gpu else 'CPU'} such as {answer.device}"


def _headline(question: Question, chosen: Answer | None, why: str, remedy: str) -> str:
    if chosen is None:
        return "no known device can train it; choose a smaller network or batch"
    found, known = chosen.prediction, "90 %" if chosen.here or chosen.recorded else "from data sheets"
    what = f"{question.networks:,} networks" if question.networks > 1 else "it"
    said = (
        f"train {what} on {_named(chosen)} ({chosen.way}): {counted(question.epochs, 'epoch')}"
        f" take{'s' * (question.epochs == 1)} {seconds(found.step_s)} ({known}: {seconds(found.low_s)} to"
        f" {seconds(found.high_s)}{', perhaps further off' if found.warning else ''})"
    )
    return "; ".join(filter(None, (said, why, remedy and f"what helps most: {remedy}")))


def _dense(one: DrivenDevice) -> DrivenDevice:
    """Count all inputs, although a way to train may skip zeros: only MNIST's share of zeros is known."""
    known = one.device
    return replace(one, device=replace(known, density=1.0)) if isinstance(known, Calibration) else one


def _place(answer: Answer) -> tuple[bool, bool, float]:
    return bool(answer.why_not), not answer.judged, answer.prediction.step_s


def _answers(
    question: Question,
    here: Mapping[str, DrivenDevice],
    devices: Mapping[str, Device],
    recorded: Mapping[str, Mapping[str, DrivenDevice]],
) -> Iterator[Answer]:
    for name, one in here.items():
        if one.device is not None and (one.together == 1 or question.networks > 1):
            plain = Answer("this machine", name, True, NOTHING, library=one.library)
            yield _answer(question, one, plain, question.price_per_h, YOUR_PRICE)
    for place, on_gpu in {one.name: one.on_gpu for one in devices.values()}.items():
        for name, one in recorded.get(place, {}).items():
            plain = Answer(place, name, False, NOTHING, recorded=True, on_gpu=on_gpu, library=one.library)
            yield _answer(question, one, plain)
    for device in devices.values():
        price = device.figures.get("price_per_h")
        answered = {(one.way, one.library) for one in recorded.get(device.name, {}).values()}
        for way in (way for way in device.ways if (way, device.library) not in answered):
            about = {"judged": device.judged, "on_gpu": device.on_gpu, "library": device.library}
            plain = Answer(device.name, device.driven(way), False, NOTHING, widening=device.widening, **about)
            one = DrivenDevice(device, way, device.together)
            yield (found := _answer(question, one, plain, price.value if price else None, device.dated))
            if found.why_not:
                break


def _answer(
    question: Question, one: DrivenDevice, plain: Answer, per_h: float | None = None, dated: str = ""
) -> Answer:
    try:
        found = _all(question, one)
    except NoPrediction as error:
        return replace(plain, why_not=str(error))
    if per_h is None:
        return replace(plain, prediction=found)
    return replace(plain, prediction=found, dollars=per_h * found.step_s / 3600, dated=dated)


def _all(question: Question, of: DrivenDevice) -> Prediction:
    at_once = min(of.together, question.networks)
    programs, rest = divmod(question.networks, at_once)
    whole = of.predicted(question.workload(of.way, at_once)).of(question.steps * programs)
    return whole.plus(of.predicted(question.workload(of.way, rest)).of(question.steps)) if rest else whole


def _remedy(
    question: Question,
    chosen: Answer | None,
    here: Mapping[str, DrivenDevice],
    devices: Mapping[str, Device],
    recorded: Mapping[str, Mapping[str, DrivenDevice]],
) -> str:
    """Describe the change that helps most for the advised answer; it never replaces a judged way by an unjudged one."""
    if chosen is None:
        return ""
    entries = [one for one in devices.values() if one.name == chosen.device and one.judged == chosen.judged]
    ways = here if chosen.here else recorded[chosen.device] if chosen.recorded else _ways(entries, question)
    effect = best(effects(question, today(question, chosen.way, ways), ways))
    return "" if effect is None or effect.gain < WORTH else _said(effect)


def _changes(question: Question, by: str, places: Sequence[Mapping[str, DrivenDevice]]) -> list[str]:
    """Return the changes that help a program of this backend, from the first of the places where any does."""
    for ways in places:
        names = [name for name, one in ways.items() if by and one.backend == by and one.together == 1]
        for name in names[:1]:
            every = effects(question, today(question, name, ways), ways)
            own = [one for one in every if one.remedy is not Remedy.BACKEND and not one.remedy.kept]
            helping = [one for one in own if one.gain >= WORTH]
            if helping:
                return [_said(one) for one in sorted(helping, key=lambda one: one.gain, reverse=True)]
    return []


def _said(effect: Effect) -> str:
    line = f" (`{effect.line}`)" if effect.line else ""
    return f"{effect.words}{line}, {times(effect.gain)} times as fast per image"


def quicker(one: Prediction, other: Prediction, common: float = 1.0) -> int:
    """Return -1 if `one` is quicker, 1 if `other` is, and 0 if their intervals make it too close to call.

    Args:
        one: Seconds with their interval.
        other: The same work elsewhere.
        common: Factor by which a common cause, such as how the user feeds the same library, widens both intervals; it
            makes neither quicker, so it is taken out.
    """
    first, second = sorted((one, other), key=lambda each: each.step_s)
    longer = min(second.low_s * common, second.step_s), second.step_s, second.high_s
    shorter = first.low_s, first.step_s, max(first.high_s / common, first.step_s)
    surely, *_ = ratio_of(longer, shorter)
    return 0 if surely <= 1 else -1 if first is one else 1


def _ways(entries: Sequence[Device], question: Question) -> dict[str, DrivenDevice]:
    """Return the ways to train on devices known by their figures, plus “all at once” by the plainest way that can."""
    every = sorted(((way, one) for one in entries for way in one.ways), key=lambda pair: DRIVEN.index(pair[0]))
    ways = {
        one.driven(way): DrivenDevice(
            one, way, library=one.library, saves={RESIDENT: THERE if way.resident else BROUGHT}
        )
        for way, one in every
    }
    able = [ways[one.driven(way)] for way, one in every if one.together > 1 and question.networks > 1]
    if able:
        ways["all at once"] = replace(able[0], together=question.networks)
    return ways
