"""When a GPU wins, as a reader sees it: sentences and tables of the surface and of what moves it. Measures nothing."""

import html
from collections.abc import Mapping, Sequence

import numpy as np

from lib.experiments.published_predictions import Row
from lib.experiments.when_does_a_gpu_win import (
    RULE_PARAMETERS,
    RULE_SIZE,
    Answer,
    Cost,
    Point,
    RuleCheck,
    Side,
    Surface,
    Wanted,
)
from lib.formatting import listed, percent, seconds, sentence, times
from lib.prediction.device import QUANTITIES, Device
from lib.prediction.predict import Prediction
from lib.views.markup import table
from lib.views.predicted_parts import parts_on_demand

NAMED_WIDTHS = (128, 1024)  # at which a sentence says where the border lies


def surface_sentence(shown: Surface, left: str, right: str, depth: int, networks: int) -> str:
    """Who is predicted to win where.

    Args:
        shown: Both sides.
        left: Name of the left side.
        right: Name of the right side.
        depth: Hidden layers.
        networks: That are trained.
    """
    known = np.isfinite(shown.ratio)
    if not known.any():
        return "No network of this depth fits into the memory of both sides; choose fewer networks or layers."
    wins, loses, unclear = (shown.share(where) for where in (shown.low > 1, shown.high < 1, shown.unclear))
    layers = "one hidden layer" if depth == 1 else f"{depth} hidden layers"
    trained = "one network" if networks == 1 else f"{networks:,} networks"
    text = (
        f"For {trained} of {layers}, {right} is predicted to be faster than {left} in {wins:.0%} of this field and"
        f" slower in {loses:.0%}; in the other {unclear:.0%} the intervals overlap, and nobody wins for sure."
    )
    starts = [f"at width {width:,} {_from(shown.wins_from(width))}" for width in NAMED_WIDTHS]
    return f"{text} It wins {listed(starts)}." + (
        "" if known.all() else f" Grey: {shown.share(~known):.0%} of the field fits into no memory of its side."
    )


def _from(size: int | None) -> str:
    return "at no batch size" if size is None else f"from batch size {size:,} on"


def rule_sentence(check: RuleCheck, left: str, right: str, measured: Sequence[Point] = ()) -> str:
    """Where the articles' rule fails: by these predictions, and as measured on other machines.

    Args:
        check: Of the predictions.
        left: The processor's name.
        right: The GPU's.
        measured: What contradicts the rule, the clearest first.
    """
    rule = f"The articles' rule: below {RULE_PARAMETERS:,} parameters and batch size {RULE_SIZE}, a fast CPU wins."
    failures = []
    if check.below is not None:
        width, size, ratio = check.below
        failures.append(
            f"below both, {right} wins for sure in {check.gpu_wins_below:.0%} of the corner (at width {width:,} and"
            f" batch size {size:,} it is {times(ratio)} times faster)"
        )
    if check.above is not None:
        width, size, ratio = check.above
        failures.append(
            f"above both, {left} wins for sure in {check.processor_wins_above:.0%} (at width {width:,} and batch size"
            f" {size:,} it is {times(ratio)} times faster)"
        )
    said = f"Here it fails: {'; '.join(failures)}." if failures else "No prediction here contradicts it for sure."
    if measured:
        one, where = measured[0], "one diamond" if len(measured) == 1 else f"{len(measured)} diamonds"
        names = [f"the GPU {one.machine.split(' · ')[-1]}", "the processor beside it"]
        faster, slower = names if one.ratio > 1 else reversed(names)
        said += (
            f" Measured, it fails at {where}: at width {one.width:,} and batch size {one.batch_size:,} {faster} is"
            f" {times(max(one.ratio, 1 / one.ratio))} times faster than {slower}."
        )
    return f"{rule} {said}"


def stand_in(wanted: str, instead: str) -> str:
    """Said where a side is not calibrated yet."""
    return (
        f"{wanted} is not calibrated on this machine yet, so {instead}, known by published figures and its data sheet,"
        " stands in its place until it is: see below."
    )


def not_judged(sides: Sequence[Side]) -> list[str]:
    """Why some sides may be further off than their ranges say, a sentence for each reason."""
    reasons: dict[str, list[str]] = {}
    for one in sides:
        if isinstance(one.device, Device) and one.device.warning:
            reasons.setdefault(one.device.warning, []).append(one.label)
    return [f"Unsure: {'; '.join(dict.fromkeys(labels))}: {reason}." for reason, labels in reasons.items()]


def points_sentence(points: Sequence[Point]) -> str:
    """How many points were measured here, on other machines, or published, and who was faster where both were."""
    printed, kept = [one for one in points if one.by], [one for one in points if one.machine]
    measured = len(points) - len(printed) - len(kept)
    parts = []
    if measured:
        parts.append(f"dots are step times that are stored here ({measured})")
    if kept:
        wins = sum(one.ratio > 1 for one in kept)
        parts.append(
            f"diamonds were measured on other machines, each GPU beside its own machine's processor ({len(kept)}): the"
            f" GPU was faster in {wins} of them"
        )
    if printed:
        wins = sum(one.ratio > 1 for one in printed)
        parts.append(
            f"rings are the first article's batch sizes ({len(printed)}), its GPU, by Keras, faster than the quickest"
            f" library on its processor in {wins} of them"
        )
    return sentence("; ".join(parts)) if parts else ""


# What if.

FACTOR_WORDS = {
    "launch": "starting a kernel",
    "dispatch": "calls and dispatch by the host",
    "bandwidth": "memory and cache bandwidth",
    "throughput": "products",
    "feeding": "bringing the batches",
}


def amount(value: float, unit: str) -> str:
    """A figure with its unit, as short as possible.

    >>> amount(4.48e11, "B/s").split(), amount(1.12e13, "FLOP/s").split()
    (['448', 'GB/s'], ['11.2', 'TFLOP/s'])
    """
    if unit == "s":
        return seconds(value)
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= factor:
            return f"{value / factor:.3g}\u202f{prefix}{unit}"
    return f"{value:.3g}\u202f{unit}"


def imagined_table(before: Device, after: Device) -> str:
    """HTML: the figures of a card that were changed, before and after; nothing where none was."""
    rows = [
        [
            html.escape(QUANTITIES[name].words),
            *(amount(card.figures[name].value, QUANTITIES[name].unit) for card in (before, after)),
        ]
        for name in QUANTITIES
        if name in before.figures and before.figures[name].value != after.figures[name].value
    ]
    return table(["figure", html.escape(before.name), "imagined"], rows) if rows else ""


def imagined_sentence(before: Surface, after: Surface, name: str) -> str:
    """How the border moves at the named widths."""
    moved = [
        f"at width {width:,} it wins {_from(after.wins_from(width))} (before: {_from(before.wins_from(width))})"
        for width in NAMED_WIDTHS
    ]
    return f"{name}: {listed(moved)}. The dotted line is the border before the change."


def wanted_sentence(wanted: Sequence[Wanted], right: str, left: str, goal_s: float, batch_size: int, width: int) -> str:
    """What a single figure would have to be for the card to win, or that none alone would do.

    Args:
        wanted: Of all figures that the step pays for; empty where it was not asked.
        right: The card.
        left: The other side.
        goal_s: Seconds of a step of the other side.
        batch_size: Images a step.
        width: Of the hidden layers.
    """
    if not wanted:
        return ""
    case = f"a step of width {width:,} at batch size {batch_size:,}"
    better = [one for one in wanted if one.needed is not None]
    if better and all(is_met(one) for one in better):
        return f"{right} wins already: {case} takes {left} {seconds(goal_s)}, predicted, and {right} less."
    ways = [
        f"{one.words} {amount(one.needed, one.unit)} in place of {amount(one.now, one.unit)}"
        for one in better
        if one.needed is not None
    ]
    never = [one.words for one in wanted if one.needed is None]
    said = f"For {right} to take no longer than the {seconds(goal_s)} that {left} is predicted to take for {case}, "
    if not ways:
        return f"{said}no value of a single figure would do: several would have to change at once."
    return f"{said}one of these would have to be true: {'; or '.join(ways)}." + (
        f" No value of this alone would do: {listed(never)}." if never else ""
    )


def is_met(one: Wanted) -> bool:
    """Whether the figure is at least as good as it would have to be."""
    if one.needed is None:
        return False
    return one.now >= one.needed if one.unit.endswith("/s") else one.now <= one.needed


# Moving the border.


def moves_sentence(surfaces: Mapping[str, Surface], chosen: str, right: str, left: str) -> str:
    """Where the border lies by the chosen way, and by all others."""
    width = NAMED_WIDTHS[0]
    places = {name: shown.wins_from(width) for name, shown in surfaces.items()}
    others = [f"{name}, {_from(size)}" for name, size in places.items() if name != chosen]
    wins = surfaces[chosen].share(surfaces[chosen].ratio > 1)
    return (
        f"Driven by {chosen}, {right} is predicted to be faster than {left} in {wins:.0%} of the field; at width"
        f" {width:,} {_from(places[chosen])}. By the others: {'; '.join(others)}."
    )


# Larger work, costs, and the articles' figures.


def larger_table(found: Sequence[Answer]) -> str:
    """HTML: larger work by device, the quickest first; each number says whether it was measured or predicted."""
    rows: list[list[str]] = []
    for work in dict.fromkeys(one.work for one in found):
        rows.append([html.escape(work)])
        rows += [_larger_row(one) for one in sorted((one for one in found if one.work == work), key=_step_s)]
    return table(["trained by", "how it is known", "a step", "from – to", "an epoch of 48,000 images"], rows)


def larger_parts(found: Sequence[Answer]) -> str:
    """HTML: what the predicted steps of larger work consist of, on demand; in the order of the table."""
    groups: dict[str, dict[str, Prediction]] = {}
    for one in sorted(found, key=_step_s):
        if one.prediction is not None:
            groups.setdefault(one.work, {})[one.side] = one.prediction
    return parts_on_demand({work: groups[work] for work in dict.fromkeys(one.work for one in found) if work in groups})


def _step_s(one: Answer) -> float:
    if one.measured is not None:
        return one.measured.step_s
    return one.prediction.step_s if one.prediction is not None else np.inf


def _larger_row(one: Answer) -> list[str]:
    if one.prediction is None:
        return [html.escape(one.side), html.escape(one.why_not), "–", "–", "–"]
    step_s, ends, word = one.prediction.step_s, (one.prediction.low_s, one.prediction.high_s), "predicted"
    if one.prediction.warning:
        word = "predicted, unsure"
    if one.measured is not None:
        word = f"measured; predicted: {seconds(step_s)}"
        step_s, ends = one.measured.step_s, (one.measured.low_s, one.measured.high_s)
    span = f"{seconds(ends[0])} – {seconds(ends[1])}"
    return [html.escape(one.side), word, seconds(step_s), span, seconds(step_s * one.steps)]


def unsure_sentence(found: Sequence[Answer]) -> str:
    """Why some predictions of larger work are unsure; empty where none is."""
    warnings = dict.fromkeys(one.prediction.warning for one in found if one.prediction and one.prediction.warning)
    return f"Unsure: {'; '.join(warnings)}." if warnings else ""


def larger_sentence(found: Sequence[Answer], batch_size: int) -> str:
    """Who is quickest at each work, and how many times faster than the quickest without a GPU."""
    parts = []
    for work in dict.fromkeys(one.work for one in found):
        mine = sorted((one for one in found if one.work == work and one.prediction is not None), key=_step_s)
        processor = next((one for one in mine if not one.on_gpu), None)
        if mine and processor is not None:
            beside = _step_s(processor) / _step_s(mine[0])
            parts.append(
                f"{work}: {mine[0].side}"
                + (f", {times(beside)} times faster than {processor.side}" if mine[0] is not processor else "")
            )
    return f"At batch size {batch_size:,} the quickest is, by prediction, for {'; for '.join(parts)}." if parts else ""


def cost_table(found: Sequence[Cost]) -> str:
    """HTML: dollars of an epoch and to the accuracy, by device, with the date of each price."""
    rows = []
    for one in found:
        price = f"{one.per_h:g} $ an hour ({html.escape(one.dated)})" if one.per_h is not None else "no price is listed"
        rows.append(
            [
                html.escape(one.side),
                price,
                seconds(one.epoch.step_s),
                f"{seconds(one.epoch.low_s)} – {seconds(one.epoch.high_s)}",
                _dollars(one.dollars),
                _dollars(one.to_accuracy),
            ]
        )
    costs = ["$ for 1,000 epochs", "$ for 1,000 trainings to the accuracy"]
    return table(["trained by", "price", "an epoch, predicted", "from – to", *costs], rows)


def _dollars(value: float | None) -> str:
    """Of a thousand."""
    return "–" if value is None else f"{1000 * value:.2g}"


def cost_sentence(found: Sequence[Cost], target: float, batch_size: int, counted: str) -> str:
    """Which device is the cheapest, and how many epochs the accuracy takes.

    Args:
        found: The cheapest first.
        target: Validation accuracy, 0 to 1.
        batch_size: Images a step.
        counted: What is known of the epochs to it, in words; empty where they were not counted.
    """
    priced = [one for one in found if one.dollars]
    if len(priced) < 2:
        return "Fewer than two of these devices have a price, so none is the cheapest."
    ratio = (priced[-1].dollars or 0) / (priced[0].dollars or 1)
    text = (
        f"1,000 epochs at batch size {batch_size:,} are predicted to cost {_dollars(priced[0].dollars)} $ on"
        f" {priced[0].side}, the cheapest of those with a price; on {priced[-1].side} {times(ratio)} times as much."
    )
    if not counted:
        return (
            f"{text} How many epochs {percent(target)} takes at this batch size was not counted on this machine: the"
            " race of the backends counts them."
        )
    return f"{text} Of {percent(target)}, counted here with JAX: {counted}."


def own_price_sentence(calibrated: bool, per_h: float) -> str:
    """What this machine's rows lack: a price, or a calibration; empty where they lack nothing.

    Args:
        calibrated: Whether it has rows.
        per_h: Dollars of an hour of it, as the reader said; 0: nothing was said.
    """
    if not calibrated:
        return "This machine is not calibrated yet, so it has no row here: see above."
    return "" if per_h else "What this machine costs is for you to say: its $ per hour above stands here as your price."


def published_table(rows: Sequence[Row]) -> str:
    """HTML: the articles' figures with what is predicted for them, the worst errors first."""
    cells = [
        [
            html.escape(one.name),
            seconds(one.published_s),
            seconds(one.predicted_s),
            f"{seconds(one.low_s)} – {seconds(one.high_s)}",
            f"{one.error:+.0%}",
            "the model was set from it" if one.used else "" if one.covered else "outside of its range",
        ]
        for one in rows
    ]
    return table(["figure", "published", "predicted", "from – to", "error", "remark"], cells)


def published_sentence(rows: Sequence[Row]) -> str:
    """How far off the predictions are for figures that the model was not set from."""
    unseen = [one for one in rows if not one.used]
    errors = sorted(abs(one.error) for one in unseen)
    covered = sum(one.covered for one in unseen)
    return (
        f"Of {len(rows)} figures that the articles print, {len(rows) - len(unseen)} set the model. The other"
        f" {len(unseen)} are off by {np.median(errors):.0%} at the median and by {errors[-1]:.0%} at worst;"
        f" {covered} of them lie in the range that was predicted."
    )
