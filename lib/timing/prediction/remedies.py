"""What would make a training quicker: remedies, and the gain that is predicted of each.

A remedy is an entry of `Remedy`: for whom it is, the line to paste, how it is predicted, and how a worker applies it,
which is another way to train, another size, or a variant of the step (`lib.timing.profiling.request.VARIANTS`).

What is compared is the seconds of an image of one network, so that a larger batch and many networks at once are judged
fairly: their steps are longer, and do more. A larger batch makes fewer steps of an epoch, and may learn less from it;
that is no part of the gain.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from lib.formatting import listed
from lib.timing.prediction.calibration import NotCalibrated
from lib.timing.prediction.device import DoesNotFit
from lib.timing.prediction.predict import THERE, Calibrated, Prediction, Question, predict
from lib.timing.prediction.workload import Way
from lib.timing.roofline import Cost

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
    quicker = [one for one in found if one.setup is not None and one.gain > 1 and not one.remedy.kept]
    return max(quicker, key=lambda one: (one.remedy is not Remedy.BACKEND, one.gain), default=None)


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
    down = math.hypot(_octaves(before.step.low_s, before.step.step_s), _octaves(after.step.step_s, after.step.high_s))
    up = math.hypot(_octaves(before.step.step_s, before.step.high_s), _octaves(after.step.low_s, after.step.step_s))
    return Effect(remedy, after, "", gain, gain * 2**-down, gain * 2**up)


def _octaves(low: float, high: float) -> float:
    return math.log2(high / low)


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
    DONATED = (
        "donated buffers",
        {"jax": "step = jax.jit(step, donate_argnums=0)"},
        None,
        _JAX,
        "undonated",
        True,
    )
