"""What would make a training quicker: remedies, and the gain that is predicted of each; and which device and which way
to train is advised, for a question such as a reader has (`advise`).

A remedy is an entry of `Remedy`: for whom it is, the line to paste, how it is predicted, and how a worker applies it,
which is another way to train, another size, or a variant of the step (`lib.timing.profiling.request.VARIANTS`).

What is compared is the seconds of an image of one network, so that a larger batch and many networks at once are judged
fairly: their steps are longer, and do more. A larger batch makes fewer steps of an epoch, and may learn less from it;
that is no part of the gain.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from types import MappingProxyType

from lib.formatting import listed, seconds, times
from lib.timing.comparison import ratio_of
from lib.timing.prediction.predict import (
    REACHED,
    THERE,
    YOUR_PRICE,
    Calibrated,
    Calibration,
    NotCalibrated,
    Prediction,
    Question,
    predict,
)
from lib.timing.prediction.workload import DRIVEN, Cost, Device, DoesNotFit, Way

LARGER = 4  # times the batch size
RESIDENT = "resident"  # a variant of a step: its batches lie on the device
STEPS_PER_EXECUTION = 50
LEAST_LEFT = 0.1  # of a step, where what bringing its batch costs is measured to be more than the step itself


@dataclass(frozen=True)
class Setup:
    """How networks are trained, and the predicted seconds of a step.

    Attributes:
        by: Name of the way to train.
        batch_size: Images a step, of each network.
        at_once: Networks in one program.
        variant: Of the step that one of `Remedy` has applied; empty: the plain step.
        step: Of all networks of the program.
    """

    by: str
    batch_size: int
    step: Prediction
    at_once: int = 1
    variant: str = ""

    @property
    def images(self) -> int:
        """Images of a step: each network's count."""
        return self.batch_size * self.at_once

    @property
    def image(self) -> Prediction:
        """The seconds of an image of one network."""
        return self.step.of(1 / self.images)


@dataclass(frozen=True)
class Effect:
    """What a remedy is predicted to do.

    Attributes:
        remedy: Which.
        setup: How it is trained then; None where the remedy is applied already, or does not exist.
        why_not: Why there is none.
        gain: Times as fast, an image of one network; below 1 it is slower. `low` and `high` are the ends of its
            interval. Of a remedy that is `kept`, how much slower it would be without.
    """

    remedy: "Remedy"
    setup: Setup | None = None
    why_not: str = ""
    gain: float = 1.0
    low: float = 1.0
    high: float = 1.0


def today(question: Question, by: str, ways: Mapping[str, Calibrated]) -> Setup:
    """How the question's networks are trained before any remedy: one after another.

    Raises:
        DoesNotFit: The memory cannot hold it; the text is a sentence for the person.
        NotCalibrated: The way to train is not calibrated.
    """
    return _setup(question, by, ways, at_once=min(ways[by].together, question.networks))


def effects(question: Question, before: Setup, ways: Mapping[str, Calibrated]) -> list[Effect]:
    """What each remedy is predicted to do, in the order of `Remedy`.

    Args:
        question: What is trained.
        before: From `today`.
        ways: Ways to train that can be predicted, by name; `before.by` is among them.
    """
    backend = ways[before.by].backend
    return [_effect(remedy, question, before, ways) for remedy in Remedy if not remedy.whom or backend in remedy.whom]


def best(found: list[Effect]) -> Effect | None:
    """The effect with the largest gain; None where nothing gains.

    Another library is another program: it is named where nothing helps that can be changed in one's own.
    """
    gaining = [one for one in found if one.setup is not None and one.gain > 1 and not one.remedy.kept]
    return max(gaining, key=lambda one: (one.remedy is not Remedy.BACKEND, one.gain), default=None)


def in_words(effect: Effect, before: Setup) -> str:
    """What is done, in place of what."""
    after = effect.setup
    if after is None:
        return effect.why_not
    if effect.remedy is Remedy.BATCH:
        return f"batch size {after.batch_size:,} in place of {before.batch_size:,}"
    if effect.remedy is Remedy.DATA:
        return "the images on the device in place of a transfer each step"
    if effect.remedy is Remedy.NETWORKS:
        return f"{after.at_once} networks in one program in place of one after another"
    if effect.remedy.kept:
        return f"{effect.remedy.value}: it is so already; the seconds are those without"
    return effect.remedy.value if after.variant else f"{after.by} in place of {before.by}"


def to_paste(effect: Effect, ways: Mapping[str, Calibrated], before: Setup) -> str:
    """The line to write in one's own program; empty where there is none, or it is more than a line.

    Args:
        effect: Any.
        ways: From which it was predicted.
        before: How it is trained today.
    """
    if effect.setup is None:
        return ""
    backend = ways[before.by].backend
    line = next((line for key, line in effect.remedy.lines.items() if backend.startswith(key)), "")
    other = ways[effect.setup.by].backend.partition("-")[2]
    return line.format(batch=effect.setup.batch_size, other=other, steps=STEPS_PER_EXECUTION)


class _NoRemedy(Exception):
    """A remedy is applied already, or does not exist; the text says which."""


_Find = Callable[[Question, Setup, Mapping[str, Calibrated]], Iterator[Setup]]


def _effect(remedy: "Remedy", question: Question, before: Setup, ways: Mapping[str, Calibrated]) -> Effect:
    """The quickest of what a remedy offers."""
    try:
        after = min(remedy.setups(question, before, ways), key=lambda one: one.image.step_s)
    except (_NoRemedy, DoesNotFit) as why:
        return Effect(remedy, why_not=str(why))
    gain = before.image.step_s / after.image.step_s
    if after.variant:  # it is the same step, and only what the change saves is uncertain
        ends = (before.step.high_s / after.step.high_s, before.step.low_s / after.step.low_s)
        if remedy.kept:
            more_s = (after.step.low_s - before.step.low_s, after.step.high_s - before.step.high_s)
            gain, ends = 1 / gain, tuple(1 + one_s / before.step.step_s for one_s in more_s)
        return Effect(remedy, after, "", gain, *ends)
    low, gain, high = ratio_of(before.image.interval_s, after.image.interval_s)
    return Effect(remedy, after, "", gain, low, high)


def _setup(question: Question, by: str, ways: Mapping[str, Calibrated], batch_size: int = 0, at_once: int = 1) -> Setup:
    of, size = ways[by], batch_size or question.batch_size
    if of.calibration is None:
        raise NotCalibrated(f"{by} is not calibrated on this machine, so nothing is predicted of it; calibrate it")
    workload = question.workload(of.way, at_once, size)
    of.check(workload)
    return Setup(by, size, predict(workload, of.calibration), at_once)


def _compiled(
    wanted: tuple[Way, ...], already: str, question: Question, before: Setup, ways: Mapping[str, Calibrated]
) -> Iterator[Setup]:
    """Ways of the same library that compile more of a training than it does today."""
    order, of = list(Way), ways[before.by]
    if order.index(of.way) >= order.index(wanted[0]):
        raise _NoRemedy(already)
    these = {
        name: one for name, one in ways.items() if one.program == of.program and one.together == 1 and one.way in wanted
    }
    yield from _any(these, "there is no such way to train with this library here", question, ways)


def _larger_batch(question: Question, before: Setup, ways: Mapping[str, Calibrated]) -> Iterator[Setup]:
    size = min(LARGER * before.batch_size, question.rows)
    if size == before.batch_size:
        raise _NoRemedy("a batch has all images already")
    yield _setup(question, before.by, ways, size, before.at_once)


def _changed(
    variant: str, kept: bool, question: Question, before: Setup, ways: Mapping[str, Calibrated]
) -> Iterator[Setup]:
    """The same step, changed in one thing: without what that saves; or with what dropping costs that is `kept`."""
    cost = ways[before.by].saves.get(variant, THERE)
    if isinstance(cost, str):
        raise _NoRemedy(cost)
    n_bytes = question.workload(Way.STEP, batch_size=before.batch_size).input_bytes
    low_s, spent_s, high_s = _seconds(cost, n_bytes)
    whole = before.step
    if kept:
        ends = (whole.step_s + spent_s, whole.low_s + low_s, whole.high_s + high_s)
    else:
        pairs = ((whole.step_s, spent_s), (whole.low_s, high_s), (whole.high_s, low_s))
        ends = tuple(max(step_s - spent_s, LEAST_LEFT * step_s) for step_s, spent_s in pairs)
    yield replace(before, step=Prediction(*ends, {}, whole.warning), variant=variant)


def _seconds(cost: Cost, n_bytes: int) -> tuple[float, float, float]:
    """The low end, the value and the high end of what is spent on a batch of so many bytes, none below 0."""
    (latency_low, latency_high), (byte_low, byte_high) = cost.latency_interval_s, cost.byte_interval_s
    ends = (latency_low + byte_low * n_bytes, cost.seconds(n_bytes), latency_high + byte_high * n_bytes)
    low_s, value_s, high_s = (max(0.0, one) for one in ends)
    return low_s, value_s, high_s


def _together(question: Question, before: Setup, ways: Mapping[str, Calibrated]) -> Iterator[Setup]:
    if question.networks == 1:
        raise _NoRemedy("there is one network only, and none to train beside it")
    program = ways[before.by].program
    these = {name: one for name, one in ways.items() if one.program == program and one.together > 1}
    yield from _any(these, "this library does not train several networks in one program here", question, ways)


def _elsewhere(of_keras: bool, question: Question, before: Setup, ways: Mapping[str, Calibrated]) -> Iterator[Setup]:
    """Ways of another library; Keras runs the same program on several, which are a remedy of their own."""
    own = ways[before.by]
    others = {name: one for name, one in ways.items() if one.program != own.program and one.together == 1}
    same = {name: one for name, one in others.items() if own.is_keras and one.is_keras}
    these = same if of_keras else {name: one for name, one in others.items() if name not in same}
    yield from _any(these, "there is no other here", question, ways)


def _any(
    these: Mapping[str, Calibrated], why_not: str, question: Question, ways: Mapping[str, Calibrated]
) -> Iterator[Setup]:
    """Each of these ways that is calibrated, and whose memory holds it."""
    if not these:
        raise _NoRemedy(why_not)
    known = [name for name, one in these.items() if one.calibration is not None]
    if not known:
        raise _NoRemedy(f"not calibrated yet: {listed(list(these))}")
    too_large: list[DoesNotFit] = []
    for name in known:
        try:
            yield _setup(question, name, ways, at_once=min(these[name].together, question.networks))
        except DoesNotFit as error:
            too_large.append(error)
    if len(too_large) == len(known):
        raise too_large[0]


_JAX, _KERAS = ("jax-step",), ("keras-jax", "keras-tensorflow", "keras-torch")
_COMPILED_STEP, _COMPILED_EPOCH = "its step is compiled already", "its whole epoch is compiled already"


class Remedy(StrEnum):
    """A single change to how something is trained.

    Attributes:
        setups: What it offers.
        lines: To paste, by how the key of a backend begins.
        whom: Backends that it is for; empty: all.
        variant: Of the step, which a worker knows.
        kept: Whether it is so already, and the variant is the step without it.
        on_card: Whether a processor knows no such thing.
    """

    setups: _Find
    lines: Mapping[str, str]
    whom: tuple[str, ...]
    variant: str
    kept: bool
    on_card: bool

    def __new__(
        cls,
        words: str,
        lines: Mapping[str, str],
        find: _Find | None = None,
        whom: tuple[str, ...] = (),
        variant: str = "",
        kept: bool = False,
        on_card: bool = False,
    ) -> "Remedy":
        self = str.__new__(cls, words)
        self._value_ = words
        self.lines, self.whom, self.variant, self.kept, self.on_card = lines, whom, variant, kept, on_card
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
        {"jax": "parameters, losses = jax.lax.scan(step, parameters, batches)  # within one jax.jit"},
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
    NETWORKS = "many networks at once", {"jax": "step = jax.vmap(step)  # of stacked parameters"}, _together
    KERAS = (
        "another backend of Keras",
        {"keras": 'os.environ["KERAS_BACKEND"] = "{other}"  # before “import keras”'},
        partial(_elsewhere, True),
        _KERAS,
    )
    BACKEND = "another backend", {}, partial(_elsewhere, False)
    EXECUTION = (
        "several steps a call",
        {"keras": "model.compile(..., steps_per_execution={steps})"},
        None,
        ("keras-jax", "keras-tensorflow"),
        "steps per execution",
    )
    METRIC = "no metric each step", {"keras": "model.compile(..., metrics=[])"}, None, _KERAS, "no metric"
    XLA = "XLA", {"keras": "model.compile(..., jit_compile=True)"}, None, ("keras-tensorflow",), "jit_compile"
    ARRAYS = (
        "arrays, no generator",
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
        "images moved to the card once",
        {"torch": 'x, y = x.to("cuda"), y.to("cuda")  # once, before the loop'},
        None,
        ("torch",),
        "fed from the host",
        True,
        True,
    )
    DROPPED = (
        "gradients dropped, not set to 0",
        {"torch": "optimizer.zero_grad(set_to_none=True)"},
        None,
        ("torch",),
        "gradients kept",
        True,
    )
    DONATED = ("donated buffers", {"jax": "step = jax.jit(step, donate_argnums=0)"}, None, _JAX, "undonated", True)


BROUGHT = "its figures are of batches that the host brings"
NOTHING = Prediction(math.inf, math.inf, math.inf, {})
WORTH = 1.05  # times as fast: less is not worth a change
FETCHED_S = 60.0  # that another machine must save at least: a rented one takes as long to start
MOST_ROWS, MOST_OF_ONE = 8, 3  # answers at first sight, and of one device
CARDS, PROCESSORS = "other cards", "other processors"


@dataclass(frozen=True)
class Answer:
    """What all of a question's trainings take on a device, one way."""

    device: str
    way: str  # with the library, where the figures are of one
    here: bool  # predicted from what was measured on this machine; else from the device's figures
    prediction: Prediction  # of all steps of all networks
    dollars: float | None = None
    dated: str = ""  # of the price; `YOUR_PRICE` where it is the question's own
    why_not: str = ""  # it cannot be trained there
    judged: bool = True  # there are figures that say how far off such a prediction is
    recorded: bool = False  # predicted from epochs that were recorded on it
    on_gpu: bool = False  # of a device that is not this machine
    library: str = ""
    widening: float = 1.0  # of a library known by published figures: how far apart two of one thing are


@dataclass(frozen=True)
class Advice:
    """All answers: the quickest first, then those that nothing judges, those that cannot be last; and what would help.

    Attributes:
        answers: Of this machine's ways to train, and of devices that are known by their figures.
        headline: What to train on, by what, how long that takes and how sure that is, and what helps most.
        remedy: The single change that helps most: on this machine where it answers, else on the quickest device. Empty
            where nothing does.
        silent: Why this machine, or ways to train on it, do not answer.
        changes: Of the program that whoever asks has, those that help, the best first.
    """

    answers: tuple[Answer, ...]
    remedy: str
    headline: str
    silent: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()


def advise(
    question: Question,
    here: Mapping[str, Calibrated],
    devices: Mapping[str, Device],
    recorded: Mapping[str, Mapping[str, Calibrated]] = MappingProxyType({}),
    by: str = "",
) -> Advice:
    """Which device and which way to train takes how long, and what it costs.

    Args:
        question: What is to be trained.
        here: Ways to train that were calibrated on this machine, by their name for people.
        devices: Devices that are known by their figures, by key, such as those of
            `lib.sweeps.experiments.advice`.
        recorded: Ways to train that were calibrated on other machines, by their name for people, by device. Those of
            the devices answer where a step was timed near the question's, in place of the same by the device's figures.
        by: Key of the backend that whoever asks trains with today; its program is what is to be changed.

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
            if isinstance(known := one.calibration, Calibration) and known.is_known(question.workload(one.way), REACHED)
        }
        for place, of in recorded.items()
    }
    answers = sorted(_answers(question, here, devices, near), key=_place)
    able = [one for one in answers if not one.why_not]
    chosen, why = _chosen(able)
    remedy = _remedy(question, chosen, here, devices, near)
    changes = tuple(_changes(question, by, [here, *near.values()])) if by else ()
    headline = _headline(question, chosen, why, changes[0] if changes else remedy)
    return Advice(tuple(answers), remedy, headline, changes=changes)


def first_rows(answers: Sequence[Answer]) -> list[Answer]:
    """At most `MOST_ROWS` answers: what was measured here or recorded, the quickest of each device.

    Those by data sheets alone are one row, from the lowest end to the highest: none says more than the others. Those of
    processors have none where another processor was measured.
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
    found: dict[str, Answer] = {}
    for one in answers:
        found.setdefault(one.library, one)
    return list(found.values())[:MOST_OF_ONE]


def _in_one(words: str, alike: Sequence[Answer]) -> Answer:
    """The quickest of each device as one answer: from the lowest end to the highest."""
    each = {one.device: one for one in reversed(alike)}
    found = [one.prediction for one in each.values()]
    ends = min(one.low_s for one in found), max(one.high_s for one in found)
    middle_s = math.sqrt(min(one.step_s for one in found) * max(one.step_s for one in found))
    names = {name.partition(":")[0].partition(" (")[0] for name in each}
    return Answer(
        f"{words}: {', '.join(sorted(names))}",
        listed(sorted({one.library for one in each.values()})),
        False,
        Prediction(middle_s, *ends, {}),
        on_gpu=alike[0].on_gpu,
    )


def _chosen(able: Sequence[Answer]) -> tuple[Answer | None, str]:
    """The answer that is advised, and what else there is to say of others.

    This machine, or a processor: another device must surely be quicker, and save more than it takes to fetch it.
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
    # What was recorded of a device says more than the figures of one like it.
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
    return usual, "no card is quicker" if saves_s <= 0 else "no card surely saves a minute"


def _named(answer: Answer) -> str:
    return answer.device if answer.here else f"a {'card' if answer.on_gpu else 'processor'} such as {answer.device}"


def _headline(question: Question, chosen: Answer | None, why: str, remedy: str) -> str:
    if chosen is None:
        return "nothing that is known can train it; choose a smaller network or batch"
    found, known = chosen.prediction, "90 %" if chosen.here or chosen.recorded else "by data sheets"
    what = f"{question.networks:,} networks" if question.networks > 1 else "it"
    often = f"{question.epochs:,} epoch{'s' * (question.epochs > 1)}"
    said = (
        f"train {what} on {_named(chosen)} ({chosen.way}): {often} take{'s' * (question.epochs == 1)}"
        f" {seconds(found.step_s)} ({known}: {seconds(found.low_s)} to {seconds(found.high_s)}"
        f"{', and perhaps further off' if found.warning else ''})"
    )
    return "; ".join(filter(None, (said, why, remedy and f"what helps most: {remedy}")))


def _dense(one: Calibrated) -> Calibrated:
    """The way to train without the zeros of MNIST, which it may skip: nobody knows those of other data."""
    known = one.calibration
    return replace(one, calibration=replace(known, density=1.0)) if isinstance(known, Calibration) else one


def _place(answer: Answer) -> tuple[bool, bool, float]:
    return bool(answer.why_not), not answer.judged, answer.prediction.step_s


def _answers(
    question: Question,
    here: Mapping[str, Calibrated],
    devices: Mapping[str, Device],
    recorded: Mapping[str, Mapping[str, Calibrated]],
) -> Iterator[Answer]:
    for name, one in here.items():
        if one.calibration is not None and (one.together == 1 or question.networks > 1):
            plain = Answer("this machine", name, True, NOTHING, library=one.library)
            yield _answer(question, one, plain, question.price_per_h, YOUR_PRICE)
    for place, on_gpu in {one.name: one.on_gpu for one in devices.values()}.items():
        for name, one in recorded.get(place, {}).items():
            if one.calibration is not None:
                plain = Answer(place, name, False, NOTHING, recorded=True, on_gpu=on_gpu, library=one.library)
                yield _answer(question, replace(one, memory_bytes=math.inf), plain)
    for device in devices.values():
        price = device.figures.get("price_per_h")
        answered = {(one.way, one.library) for one in recorded.get(device.name, {}).values()}
        for way in (way for way in device.ways if (way, device.library) not in answered):
            about = {"judged": device.judged, "on_gpu": device.on_gpu, "library": device.library}
            plain = Answer(device.name, device.driven(way), False, NOTHING, widening=device.widening, **about)
            one = Calibrated(device, way, device.together)
            yield (found := _answer(question, one, plain, price.value if price else None, device.dated))
            if found.why_not:
                break


def _answer(question: Question, one: Calibrated, plain: Answer, per_h: float | None = None, dated: str = "") -> Answer:
    """The answer with what all trainings take, and with what they cost where there is a price; or why they cannot."""
    assert one.calibration is not None, "only these answer"
    try:
        one.check(question.workload(one.way, min(one.together, question.networks)))
        found = _all(question, one.calibration, one.way, one.together)
    except DoesNotFit as error:
        return replace(plain, why_not=str(error))
    if per_h is None:
        return replace(plain, prediction=found)
    return replace(plain, prediction=found, dollars=per_h * found.step_s / 3600, dated=dated)


def _all(question: Question, device: Device | Calibration, way: Way, together: int) -> Prediction:
    """All steps of all networks, as many at once as one program takes."""
    at_once = min(together, question.networks)
    one = predict(question.workload(way, at_once), device)
    rest = question.networks % at_once
    whole = one.of(question.steps * (question.networks // at_once))
    if not rest:
        return whole
    last = predict(question.workload(way, rest), device).of(question.steps)
    return whole.plus(last)


def _remedy(
    question: Question,
    chosen: Answer | None,
    here: Mapping[str, Calibrated],
    devices: Mapping[str, Device],
    recorded: Mapping[str, Mapping[str, Calibrated]],
) -> str:
    """The single change that helps most where and as it is advised to train, with what to write for it.

    No way that nothing judges is put in place of one that is judged.
    """
    if chosen is None:
        return ""
    entries = [one for one in devices.values() if one.name == chosen.device and one.judged == chosen.judged]
    ways = here if chosen.here else recorded[chosen.device] if chosen.recorded else _ways(entries, question)
    before = today(question, chosen.way, ways)
    effect = best(effects(question, before, ways))
    return "" if effect is None or effect.gain < WORTH else _in_words(effect, before, ways)


def _changes(question: Question, by: str, places: Sequence[Mapping[str, Calibrated]]) -> Iterator[str]:
    """What helps a program that is trained by this backend today, as the first place says where anything helps."""
    for ways in places:
        names = [name for name, one in ways.items() if one.backend == by and one.together == 1]
        for name in names[:1]:
            before = today(question, name, ways)
            every = effects(question, before, ways)
            found = [one for one in every if one.gain >= WORTH and one.remedy is not Remedy.BACKEND]
            helping: list[str] = []
            while (effect := best(found)) is not None:
                found.remove(effect)
                helping.append(_in_words(effect, before, ways))
            if helping:
                yield from helping
                return


def _in_words(effect: Effect, before: Setup, ways: Mapping[str, Calibrated]) -> str:
    line = to_paste(effect, ways, before)
    words = f"{in_words(effect, before)} (`{line}`)" if line else in_words(effect, before)
    return f"{words}, {times(effect.gain)} times as fast an image"


def quicker(one: Prediction, other: Prediction, common: float = 1.0) -> int:
    """-1 where the one is quicker, 1 where the other is, 0 where their intervals leave that too close to call.

    Args:
        one: Seconds with their interval.
        other: The same work.
        common: How many times wider both are made by what would make both longer, such as how somebody feeds the same
            library: that makes neither of them the quicker.
    """
    first, second = sorted((one, other), key=lambda each: each.step_s)
    longer = min(second.low_s * common, second.step_s), second.step_s, second.high_s
    shorter = first.low_s, first.step_s, max(first.high_s / common, first.step_s)
    surely, *_ = ratio_of(longer, shorter)
    return 0 if surely <= 1 else -1 if first is one else 1


def _ways(entries: Sequence[Device], question: Question) -> dict[str, Calibrated]:
    """The ways to train on a device that is known by its figures, the plainest that can also with all at once."""
    every = sorted(((way, one) for one in entries for way in one.ways), key=lambda pair: DRIVEN.index(pair[0]))
    ways = {
        one.driven(way): Calibrated(one, way, library=one.library, saves={RESIDENT: THERE if way.resident else BROUGHT})
        for way, one in every
    }
    able = [ways[one.driven(way)] for way, one in every if one.together > 1]
    if not able or question.networks == 1:
        return ways
    return ways | {"all at once": replace(able[0], together=question.networks)}
