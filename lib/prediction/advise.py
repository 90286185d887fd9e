"""Which device and which way to train, for a question such as a reader has; and which single change helps most."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from lib.formatting import seconds, times
from lib.prediction import remedies
from lib.prediction.calibration import REACHED, Calibration
from lib.prediction.device import DRIVEN, Device, DoesNotFit
from lib.prediction.predict import Prediction, predict
from lib.prediction.question import THERE, YOUR_PRICE, Calibrated, Question
from lib.prediction.workload import Way

BROUGHT = "its figures are of batches that the host brings"
NOTHING = Prediction(math.inf, math.inf, math.inf, {})
WORTH = 1.03  # times as fast: less is not worth a change


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


@dataclass(frozen=True)
class Advice:
    """All answers: the quickest first, then those that nothing judges, those that cannot be last; and what would help.

    Attributes:
        answers: Of this machine's ways to train, and of devices that are known by their figures.
        remedy: The single change that helps most: on this machine where it answers, else on the quickest device. Empty
            where nothing does.
        elsewhere: What a device that is not this machine would gain; empty where this machine does not answer, or is
            predicted to be the quickest.
        silent: Why this machine, or ways to train on it, do not answer.
        close: Of each library that answers on processors and on cards: which of its quickest two is quicker, or that it
            is too close to call.
    """

    answers: tuple[Answer, ...]
    remedy: str
    elsewhere: str = ""
    silent: tuple[str, ...] = ()
    close: tuple[str, ...] = ()


def advise(
    question: Question,
    here: Mapping[str, Calibrated],
    devices: Mapping[str, Device],
    recorded: Mapping[str, Mapping[str, Calibrated]] = MappingProxyType({}),
) -> Advice:
    """Which device and which way to train takes how long, and what it costs.

    Args:
        question: What is to be trained.
        here: Ways to train that were calibrated on this machine, by their name for people.
        devices: Devices that are known by their figures, by key, such as those of `lib.experiments.known_devices`.
        recorded: Ways to train that were calibrated on other machines, by their name for people, by device. Those of
            the devices answer where a step was timed near the question's, in place of the same by the device's figures.

    >>> from lib.prediction.device import read_devices
    >>> from lib.spec import Network
    >>> advise(Question(Network((128,)), 4096, 20), {}, read_devices()).answers[0].device
    'H100 SXM'
    """
    if not question.of_mnist:
        here = {name: _dense(one) for name, one in here.items()}
        recorded = {place: {name: _dense(one) for name, one in of.items()} for place, of in recorded.items()}
    near = {place: {name: one for name, one in of.items() if _near(question, one)} for place, of in recorded.items()}
    answers = sorted(_answers(question, here, devices, near), key=_place)
    able = [one for one in answers if not one.why_not]
    remedy = _remedy(question, able, here, devices)
    return Advice(tuple(answers), remedy, _elsewhere(able), close=tuple(_close(able)))


def _near(question: Question, one: Calibrated) -> bool:
    return isinstance(one.calibration, Calibration) and one.calibration.is_known(question.workload(one.way), REACHED)


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
            at_once = min(one.together, question.networks)
            try:
                one.check(question.workload(one.way, at_once))
            except DoesNotFit as error:
                yield Answer("this machine", name, True, NOTHING, why_not=str(error))
                continue
            found, per_h = _all(question, one.calibration, one.way, one.together), question.price_per_h
            yield Answer("this machine", name, True, found, *_priced(found, per_h, YOUR_PRICE))
    for place, on_gpu in {one.name: one.on_gpu for one in devices.values()}.items():
        for name, one in recorded.get(place, {}).items():
            if one.calibration is not None:
                found = _all(question, one.calibration, one.way, one.together)
                yield Answer(place, name, False, found, recorded=True, on_gpu=on_gpu, library=one.library)
    for device in devices.values():
        price = device.figures.get("price_per_h")
        answered = {(one.way, one.library) for one in recorded.get(device.name, {}).values()}
        for way in (way for way in device.ways if (way, device.library) not in answered):
            try:
                found = _all(question, device, way, device.together)
            except DoesNotFit as error:
                yield Answer(device.name, device.driven(way), False, NOTHING, why_not=str(error))
                break
            priced = _priced(found, price.value if price else None, device.dated)
            about = {"judged": device.judged, "on_gpu": device.on_gpu, "library": device.library}
            yield Answer(device.name, device.driven(way), False, found, *priced, **about)


def _priced(found: Prediction, per_h: float | None, dated: str) -> tuple[float | None, str]:
    """Dollars, and of when or whose the price is; neither without a price."""
    return (None, "") if per_h is None else (per_h * found.step_s / 3600, dated)


def _all(question: Question, device: Device | Calibration, way: Way, together: int) -> Prediction:
    """All steps of all networks, as many at once as one program takes."""
    at_once = min(together, question.networks)
    one = predict(question.workload(way, at_once), device)
    rest = question.networks % at_once
    whole = one.of(question.steps * (question.networks // at_once))
    if not rest:
        return whole
    last = predict(question.workload(way, rest), device).of(question.steps)
    parts = {
        name: whole.parts_s.get(name, 0.0) + last.parts_s.get(name, 0.0) for name in {**whole.parts_s, **last.parts_s}
    }
    ends = (whole.step_s + last.step_s, whole.low_s + last.low_s, whole.high_s + last.high_s)
    return Prediction(*ends, parts, whole.warning or last.warning)


def _remedy(
    question: Question, answers: Sequence[Answer], here: Mapping[str, Calibrated], devices: Mapping[str, Device]
) -> str:
    """The change that helps most on this machine, else on the first device, from the slowest way to train there.

    No way that nothing judges is put in place of one that is judged.

    Args:
        question: What is to be trained.
        answers: Those that can be, in their order.
        here: Ways to train of this machine.
        devices: Known by their figures.
    """
    best = next((one for one in answers if one.here), answers[0] if answers else None)
    if best is None:
        return ""
    entries = [one for one in devices.values() if one.name == best.device and one.judged == best.judged]
    ways = here if best.here else _ways(entries, question)
    alike = [one.way for one in answers if (one.device, one.here) == (best.device, best.here) and one.way in ways]
    there = reversed(alike)
    slowest = next((way for way in there if ways[way].together == 1), None)
    if slowest is None:
        return ""
    before = remedies.today(question, slowest, ways)
    effect = remedies.best(remedies.effects(question, before, ways))
    if effect is None or effect.gain < WORTH:
        return ""
    return f"on {best.device}, {remedies.in_words(effect, before)} is {times(effect.gain)} times as fast"


def _elsewhere(answers: Sequence[Answer]) -> str:
    """What the quickest device that is not this machine would gain over the quickest way to train here."""
    here, there = (next((one for one in answers if one.here is here), None) for here in (True, False))
    if here is None or there is None or here.prediction.step_s < WORTH * there.prediction.step_s:
        return ""
    ends_s = (there.prediction.step_s, there.prediction.high_s, there.prediction.low_s)
    gain, low, high = (times(here.prediction.step_s / end_s) for end_s in ends_s)
    known, measured = "known by its figures alone", "; it was not measured"
    if there.recorded:
        known, measured = "by epochs that were recorded on it", ""
    return (
        f"{there.device}, {known}, would be {gain} times as fast ({low} to {high}) as this machine"
        f" at its quickest, trained by {there.way}{measured}"
    )


def _close(answers: Sequence[Answer]) -> Iterator[str]:
    for library in dict.fromkeys(one.library for one in answers if one.library and not one.here):
        of_it = [one for one in answers if one.library == library and one.judged]
        of_it.sort(key=lambda one: not one.recorded)  # what was timed near the question says more than figures do
        pair = [next((one for one in of_it if one.on_gpu is on_gpu), None) for on_gpu in (False, True)]
        if None not in pair:
            first, second = sorted(filter(None, pair), key=lambda one: one.prediction.step_s)
            said = "quicker" if quicker(first.prediction, second.prediction) else "too close to call"
            words = [f"{one.device} ({seconds(one.prediction.step_s)})" for one in (first, second)]
            yield f"{library}, processor or card: {said}, {words[0]} against {words[1]}"


def quicker(one: Prediction, other: Prediction) -> int:
    """-1 where the one is quicker, 1 where the other is, 0 where their intervals leave that too close to call."""
    first, second = sorted((one, other), key=lambda each: each.step_s)
    apart = math.log(second.step_s / first.step_s)
    unsure = math.hypot(math.log(first.high_s / first.step_s), math.log(second.step_s / second.low_s))
    return 0 if apart <= unsure else -1 if first is one else 1


def _ways(entries: Sequence[Device], question: Question) -> dict[str, Calibrated]:
    """The ways to train on a device that is known by its figures, the plainest that can also with all at once."""
    every = sorted(((way, one) for one in entries for way in one.ways), key=lambda pair: DRIVEN.index(pair[0]))
    ways = {
        one.driven(way): Calibrated(one, way, library=one.library, batches=THERE if way.resident else BROUGHT)
        for way, one in every
    }
    able = [ways[one.driven(way)] for way, one in every if one.together > 1]
    if not able or question.networks == 1:
        return ways
    return ways | {"all at once": replace(able[0], together=question.networks)}
