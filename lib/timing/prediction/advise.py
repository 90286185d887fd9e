"""Which device and which way to train, for a question such as a reader has; and which single change helps most."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from lib.formatting import listed, seconds, times
from lib.timing.prediction import remedies
from lib.timing.prediction.calibration import REACHED, Calibration
from lib.timing.prediction.device import DRIVEN, Device, DoesNotFit
from lib.timing.prediction.predict import THERE, YOUR_PRICE, Calibrated, Prediction, Question, predict
from lib.timing.prediction.workload import Way

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

    >>> from lib.timing.prediction.device import read_devices
    >>> from lib.model.spec import Network
    >>> advise(Question(Network((128,)), 4096, 20), {}, read_devices()).answers[0].device
    'H100 SXM'
    """
    if not question.of_mnist:
        here = {name: _dense(one) for name, one in here.items()}
        recorded = {place: {name: _dense(one) for name, one in of.items()} for place, of in recorded.items()}
    near = {place: {name: one for name, one in of.items() if _near(question, one)} for place, of in recorded.items()}
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
    before = remedies.today(question, chosen.way, ways)
    effect = remedies.best(remedies.effects(question, before, ways))
    return "" if effect is None or effect.gain < WORTH else _in_words(effect, before, ways)


def _changes(question: Question, by: str, places: Sequence[Mapping[str, Calibrated]]) -> Iterator[str]:
    """What helps a program that is trained by this backend today, as the first place says where anything helps."""
    for ways in places:
        today = [name for name, one in ways.items() if one.backend == by and one.together == 1]
        for name in today[:1]:
            before = remedies.today(question, name, ways)
            every = remedies.effects(question, before, ways)
            found = [one for one in every if one.gain >= WORTH and one.remedy is not remedies.Remedy.BACKEND]
            helping: list[str] = []
            while (effect := remedies.best(found)) is not None:
                found.remove(effect)
                helping.append(_in_words(effect, before, ways))
            if helping:
                yield from helping
                return


def _in_words(effect: remedies.Effect, before: remedies.Setup, ways: Mapping[str, Calibrated]) -> str:
    line = remedies.to_paste(effect, ways, before)
    words = f"{remedies.in_words(effect, before)} (`{line}`)" if line else remedies.in_words(effect, before)
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
    apart = math.log(second.step_s / first.step_s)
    own = (first.high_s / first.step_s / common, second.step_s / second.low_s / common)
    unsure = math.hypot(*(math.log(max(1.0, end)) for end in own))
    return 0 if apart <= unsure else -1 if first is one else 1


def _ways(entries: Sequence[Device], question: Question) -> dict[str, Calibrated]:
    """The ways to train on a device that is known by its figures, the plainest that can also with all at once."""
    every = sorted(((way, one) for one in entries for way in one.ways), key=lambda pair: DRIVEN.index(pair[0]))
    ways = {
        one.driven(way): Calibrated(
            one, way, library=one.library, saves={remedies.RESIDENT: THERE if way.resident else BROUGHT}
        )
        for way, one in every
    }
    able = [ways[one.driven(way)] for way, one in every if one.together > 1]
    if not able or question.networks == 1:
        return ways
    return ways | {"all at once": replace(able[0], together=question.networks)}
