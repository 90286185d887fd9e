"""What would make a training quicker: six remedies, and the gain that is predicted of each.

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
from lib.prediction.calibration import NotCalibrated
from lib.prediction.device import DoesNotFit
from lib.prediction.predict import Prediction, predict
from lib.prediction.question import Calibrated, Question
from lib.prediction.workload import Way
from lib.timing.latency import Cost

LARGER = 4  # times the batch size
LEAST_LEFT = 0.1  # of a step, where what bringing its batch costs is measured to be more than the step itself


class Remedy(StrEnum):
    """A single change to how something is trained."""

    STEP = "compile the step"
    EPOCH = "compile the epoch"
    BATCH = "a larger batch"
    DATA = "data on the device"
    NETWORKS = "many networks at once"
    BACKEND = "another backend"


@dataclass(frozen=True)
class Setup:
    """How networks are trained, and the predicted seconds of a step.

    Attributes:
        by: Name of the way to train.
        batch_size: Images a step, of each network.
        at_once: Networks in one program.
        resident: Whether the remedy “data on the device” has been applied.
        step: Of all networks of the program.
    """

    by: str
    batch_size: int
    step: Prediction
    at_once: int = 1
    resident: bool = False

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
            interval.
    """

    remedy: Remedy
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
    return _setup(question, by, ways)


def effects(question: Question, before: Setup, ways: Mapping[str, Calibrated]) -> list[Effect]:
    """What each remedy is predicted to do, in the order of `Remedy`.

    Args:
        question: What is trained.
        before: From `today`.
        ways: Ways to train that can be predicted, by name; `before.by` is among them.
    """
    found = {
        Remedy.STEP: partial(_compiled, (Way.STEP,), "its step is compiled already"),
        Remedy.EPOCH: partial(_compiled, (Way.EPOCH, Way.GRAPH), "its whole epoch is compiled already"),
        Remedy.BATCH: _larger_batch,
        Remedy.DATA: _resident,
        Remedy.NETWORKS: _together,
        Remedy.BACKEND: _elsewhere,
    }
    return [_effect(remedy, find, question, before, ways) for remedy, find in found.items()]


def best(found: list[Effect]) -> Effect | None:
    """The effect with the largest gain; None where nothing gains."""
    quicker = [one for one in found if one.setup is not None and one.gain > 1]
    return max(quicker, key=lambda one: one.gain, default=None)


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
    return f"{after.by} in place of {before.by}"


class _NoRemedy(Exception):
    """A remedy is applied already, or does not exist; the text says which."""


_Find = Callable[[Question, Setup, Mapping[str, Calibrated]], Iterator[Setup]]


def _effect(remedy: Remedy, find: _Find, question: Question, before: Setup, ways: Mapping[str, Calibrated]) -> Effect:
    """The quickest of what a remedy offers."""
    try:
        after = min(find(question, before, ways), key=lambda one: one.image.step_s)
    except (_NoRemedy, DoesNotFit) as why:
        return Effect(remedy, why_not=str(why))
    gain = before.image.step_s / after.image.step_s
    if remedy is Remedy.DATA:  # it is the same step, and only its transfer's cost is uncertain
        return Effect(
            remedy, after, "", gain, before.step.high_s / after.step.high_s, before.step.low_s / after.step.low_s
        )
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
        name: one for name, one in ways.items() if one.library == of.library and one.together == 1 and one.way in wanted
    }
    yield from _any(these, "there is no such way to train with this library here", question, ways)


def _larger_batch(question: Question, before: Setup, ways: Mapping[str, Calibrated]) -> Iterator[Setup]:
    size = min(LARGER * before.batch_size, question.rows)
    if size == before.batch_size:
        raise _NoRemedy("a batch has all images already")
    yield _setup(question, before.by, ways, size)


def _resident(question: Question, before: Setup, ways: Mapping[str, Calibrated]) -> Iterator[Setup]:
    """The same step without the transfer of its batch."""
    cost = ways[before.by].batches
    if isinstance(cost, str):
        raise _NoRemedy(cost)
    n_bytes = question.workload(Way.STEP, batch_size=before.batch_size).input_bytes
    low_s, transfer_s, high_s = _seconds(cost, n_bytes)
    whole = before.step
    pairs = ((whole.step_s, transfer_s), (whole.low_s, high_s), (whole.high_s, low_s))
    ends = (max(step_s - spent_s, LEAST_LEFT * step_s) for step_s, spent_s in pairs)
    yield replace(before, step=Prediction(*ends, {}, whole.warning), resident=True)


def _seconds(cost: Cost, n_bytes: int) -> tuple[float, float, float]:
    """The low end, the value and the high end of a transfer's seconds, none below 0."""
    (latency_low, latency_high), (byte_low, byte_high) = cost.latency_interval_s, cost.byte_interval_s
    ends = (latency_low + byte_low * n_bytes, cost.seconds(n_bytes), latency_high + byte_high * n_bytes)
    low_s, value_s, high_s = (max(0.0, one) for one in ends)
    return low_s, value_s, high_s


def _together(question: Question, before: Setup, ways: Mapping[str, Calibrated]) -> Iterator[Setup]:
    if question.networks == 1:
        raise _NoRemedy("there is one network only, and none to train beside it")
    library = ways[before.by].library
    these = {name: one for name, one in ways.items() if one.library == library and one.together > 1}
    yield from _any(these, "this library does not train several networks in one program here", question, ways)


def _elsewhere(question: Question, before: Setup, ways: Mapping[str, Calibrated]) -> Iterator[Setup]:
    library = ways[before.by].library
    these = {name: one for name, one in ways.items() if one.library != library and one.together == 1}
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
