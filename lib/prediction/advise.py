"""Which device and which way to train, for a question such as a reader has; and which single change helps most."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lib.prediction import remedies
from lib.prediction.calibration import Calibration
from lib.prediction.device import Device, DoesNotFit
from lib.prediction.predict import Prediction, predict
from lib.prediction.question import Calibrated, Question
from lib.prediction.workload import Way, fully_connected

WAYS = (Way.OPERATIONS, Way.STEP, Way.EPOCH, Way.GRAPH)  # in which a device that is known by its figures may train
NOTHING = Prediction(math.inf, math.inf, math.inf, {})
WORTH = 1.03  # times as fast: less is not worth a change


@dataclass(frozen=True)
class Answer:
    """What all of a question's trainings take on a device, one way."""

    device: str
    way: str
    here: bool  # predicted from what was measured on this machine; else from the device's figures
    prediction: Prediction  # of all steps of all networks
    dollars: float | None = None
    dated: str = ""  # of the price
    why_not: str = ""  # it cannot be trained there


@dataclass(frozen=True)
class Advice:
    """All answers, the quickest first, those that cannot be last; and the change that helps the quickest most."""

    answers: tuple[Answer, ...]
    remedy: str  # empty where nothing does


def advise(question: Question, here: Mapping[str, Calibrated], devices: Mapping[str, Device]) -> Advice:
    """Which device and which way to train takes how long, and what it costs.

    Args:
        question: What is to be trained.
        here: Ways to train that were calibrated on this machine, by their name for people.
        devices: Devices that are known by their figures, by key.

    >>> from lib.prediction.device import read_devices
    >>> from lib.spec import Network
    >>> advise(Question(Network((128,)), 4096, 20), {}, read_devices()).answers[0].device
    'H100 PCIe'
    """
    answers = sorted(_answers(question, here, devices), key=_place)
    return Advice(tuple(answers), _remedy(question, answers, here, devices))


def _place(answer: Answer) -> tuple[bool, float]:
    return bool(answer.why_not), answer.prediction.step_s


def _answers(question: Question, here: Mapping[str, Calibrated], devices: Mapping[str, Device]) -> Iterator[Answer]:
    for name, one in here.items():
        if one.calibration is not None and (one.together == 1 or question.networks > 1):
            at_once = min(one.together, question.networks)
            try:
                one.check(fully_connected(question.network, question.batch_size, one.way, at_once))
            except DoesNotFit as error:
                yield Answer("this machine", name, True, NOTHING, why_not=str(error))
                continue
            yield Answer("this machine", name, True, _all(question, one.calibration, one.way, one.together))
    for device in devices.values():
        price = device.figures.get("price_per_h")
        for way in WAYS:
            try:
                found = _all(question, device, way, question.networks)
            except DoesNotFit as error:
                yield Answer(device.name, way, False, NOTHING, why_not=str(error))
                break
            dollars = None if price is None else price.value * found.step_s / 3600
            yield Answer(device.name, way, False, found, dollars, device.dated if price else "")


def _all(question: Question, device: Device | Calibration, way: Way, together: int) -> Prediction:
    """All steps of all networks, as many at once as one program takes."""
    at_once = min(together, question.networks)
    one = predict(fully_connected(question.network, question.batch_size, way, at_once), device)
    rest = question.networks % at_once
    whole = one.of(question.steps * (question.networks // at_once))
    if not rest:
        return whole
    last = predict(fully_connected(question.network, question.batch_size, way, rest), device).of(question.steps)
    parts = {
        name: whole.parts_s.get(name, 0.0) + last.parts_s.get(name, 0.0) for name in {**whole.parts_s, **last.parts_s}
    }
    ends = (whole.step_s + last.step_s, whole.low_s + last.low_s, whole.high_s + last.high_s)
    return Prediction(*ends, parts, whole.warning or last.warning)


def _remedy(
    question: Question, answers: Sequence[Answer], here: Mapping[str, Calibrated], devices: Mapping[str, Device]
) -> str:
    """The single change that helps most on the device of the quickest answer, from the slowest way to train there."""
    best = answers[0] if answers else None
    if best is None or best.why_not:
        return ""
    ways = here if best.here else _ways(next(one for one in devices.values() if one.name == best.device), question)
    there = (one.way for one in reversed(answers) if one.device == best.device and not one.why_not)
    slowest = next((way for way in there if ways[way].together == 1), None)
    if slowest is None:
        return ""
    before = remedies.today(question, slowest, ways)
    effect = remedies.best(remedies.effects(question, before, ways))
    if effect is None or effect.gain < WORTH:
        return ""
    return f"on {best.device}, {remedies.in_words(effect, before)} is {effect.gain:.2g} times as fast"


def _ways(device: Device, question: Question) -> dict[str, Calibrated]:
    """The ways to train on a device that is known by its figures, the plainest also with all networks at once."""
    ways = {str(way): Calibrated(device, way, library=device.name) for way in WAYS}
    together = {"all at once": Calibrated(device, WAYS[0], question.networks, device.name)}
    return ways | together if question.networks > 1 else ways
