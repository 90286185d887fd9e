"""Remedies as a reader sees them: what is predicted of each, what was measured, and how far the two are apart.

Measures nothing.
"""

import html
from collections.abc import Mapping, Sequence

import altair as alt
import pandas as pd

from lib.experiments.what_would_help import Outcome, miss, too_long
from lib.formatting import seconds, sentence, times
from lib.prediction.remedies import Remedy, Setup, best, in_words
from lib.sweeps.cost_model import StepTime
from lib.timing.disturbance import disturbances
from lib.views.chart import Chart, log_scale, names_y, styled
from lib.views.markup import table
from lib.views.predicted_parts import parts_on_demand

PREDICTED, MEASURED = "#7b62d3", "#0b7a57"
NAMES: Mapping[Remedy, str] = {one: one.value[0].upper() + one.value[1:] for one in Remedy}
FAIR = (
    "“Times as fast” compares the seconds of an image of one network. A larger batch makes fewer steps of the same"
    " images, so that it may learn less from them: the figure says nothing of that. Once today's step is measured, the"
    " remedies are predicted from it too."
)


def today_words(before: Setup, measured: StepTime | None) -> str:
    """What a step takes today, predicted and measured, in a sentence."""
    step = before.step
    predicted = _interval(step.step_s, step.low_s, step.high_s)
    said = f"{before.by}, batch size {before.batch_size:,}: a step is predicted to take {predicted}"
    if measured is not None:
        said += (
            f", and took {seconds(measured.step_s)} when it was measured, a miss of {_share(miss(before, measured))}"
        )
    return f"{said}; that is {seconds(before.image.step_s)} an image."


def remedies_sentence(before: Setup, measured: StepTime | None, outcomes: Sequence[Outcome]) -> str:
    """What a step takes, what helps most, and how far off the predictions were that have been measured.

    Args:
        before: How it is trained today.
        measured: A step of that; None before it is measured.
        outcomes: Of all remedies.
    """
    said = [today_words(before, measured)]
    most = best([one.effect for one in outcomes])
    if most is None:
        said.append("No remedy that can be predicted here is predicted to help.")
    else:
        said.append(
            f"Predicted to help most: {most.remedy.value}, {gain_words(most.gain, most.low, most.high)} times as fast,"
            f" with {in_words(most, before)}."
        )
    gains = _measured_gains(before, measured, outcomes)
    if gains:
        first = max(gains, key=gains.__getitem__)
        said.append(f"Of those measured, {first.value} helps most: {times(gains[first])} times as fast.")
    misses = {one.effect.remedy: one.miss for one in outcomes if one.miss is not None}
    if misses:
        worst = max(misses, key=misses.__getitem__)
        said.append(f"Largest miss: {_share(misses[worst])} of the step, with {worst.value}.")
    return " ".join(said)


def _measured_gains(before: Setup, measured: StepTime | None, outcomes: Sequence[Outcome]) -> dict[Remedy, float]:
    if measured is None:
        return {}
    found = {one.effect.remedy: one.measured_gain(before, measured.step_s) for one in outcomes}
    return {remedy: gain for remedy, gain in found.items() if gain is not None}


def warnings(before: Setup, outcomes: Sequence[Outcome]) -> list[str]:
    """Which predictions may be further off than their intervals say, a sentence each."""
    setups = {f"{before.by} today": before}
    setups |= {NAMES[one.effect.remedy]: one.effect.setup for one in outcomes if one.effect.setup is not None}
    by_why: dict[str, list[str]] = {}
    for name, setup in setups.items():
        if setup.step.warning:
            by_why.setdefault(setup.step.warning, []).append(name)
    return [
        f"{', '.join(names)}: {why}, so the prediction may be further off than its interval says."
        for why, names in by_why.items()
    ]


def measured_words(outcomes: Sequence[Outcome]) -> str:
    """How many remedies have been measured, and how to measure more."""
    possible = [one for one in outcomes if one.effect.setup is not None]
    if not possible:
        return "nothing can be predicted yet"
    measured = sum(one.measured is not None for one in possible)
    return f"{measured} of {len(possible)} remedies measured; a press on one in the table applies it"


def disturbed(measured: StepTime | None, outcomes: Sequence[Outcome]) -> str:
    """What disturbed the measurements, in a sentence; empty where nothing did."""
    known = [one for one in (measured, *(outcome.measured for outcome in outcomes)) if one is not None]
    flags = disturbances([warning for one in known for warning in one.disturbed])
    return f"Disturbed: {'; '.join(flags)}." if flags else ""


def remedies_table(
    before: Setup, measured: StepTime | None, outcomes: Sequence[Outcome], buttons: Mapping[Remedy, str]
) -> str:
    """HTML: a row for today and for each remedy: its gain, and a step of it, predicted and measured, with the miss.

    Args:
        before: How it is trained today.
        measured: A step of that.
        outcomes: Of all remedies.
        buttons: HTML of what applies each.
    """
    head = ["remedy", "times as fast, predicted", "… measured", "a step, predicted", "… measured", "miss"]
    step = before.step
    rows = [
        [
            f"Today<br><small>{html.escape(before.by)}</small>",
            "1",
            "1" if measured is not None else "–",
            _interval(step.step_s, step.low_s, step.high_s),
            _seconds(measured),
            _share(miss(before, measured)),
        ]
    ]
    gains = _measured_gains(before, measured, outcomes)
    return table(head, rows + [_row(before, one, gains, buttons) for one in outcomes], "compare remedies")


def steps_parts(before: Setup, outcomes: Sequence[Outcome]) -> str:
    """HTML: what a step consists of today and with each remedy, predicted, on demand."""
    after = {NAMES[one.effect.remedy]: one.effect.setup.step for one in outcomes if one.effect.setup is not None}
    return parts_on_demand({"": {"Today": before.step} | after})


def _row(before: Setup, one: Outcome, gains: Mapping[Remedy, float], buttons: Mapping[Remedy, str]) -> list[str]:
    effect, after = one.effect, one.effect.setup
    if after is None or too_long(after):
        why = too_long(after) if after is not None else effect.why_not
        return [f"{NAMES[effect.remedy]}<br><small>{html.escape(sentence(why))}</small>", *["–"] * 5]
    words = f"<small>{html.escape(in_words(effect, before))}</small>"
    if one.line:
        words += f"<br><code>{html.escape(one.line)}</code>"
    return [
        f"{buttons.get(effect.remedy, NAMES[effect.remedy])}<br>{words}",
        gain_words(effect.gain, effect.low, effect.high),
        times(gains[effect.remedy]) if effect.remedy in gains else "–",
        _interval(after.step.step_s, after.step.low_s, after.step.high_s),
        _seconds(one.measured),
        _share(one.miss),
    ]


def gain_words(gain: float, low: float, high: float) -> str:
    """Times as fast with its interval; a narrow one has a digit more.

    >>> gain_words(1.43, 0.5, 3.9), gain_words(1.018, 1.011, 1.024)
    ('1.4 (0.5 to 3.9)', '1.02 (1.01 to 1.02)')
    """
    shown = (f"{one:.3g}" if high < 1.2 * low and gain < 10 else times(one) for one in (gain, low, high))
    return "{} ({} to {})".format(*shown)


def _interval(value_s: float, low_s: float, high_s: float) -> str:
    return f"{seconds(value_s)} ({seconds(low_s)} to {seconds(high_s)})"


def _seconds(measured: StepTime | None) -> str:
    return "–" if measured is None else seconds(measured.step_s)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def gains_chart(before: Setup | None, measured: StepTime | None, outcomes: Sequence[Outcome]) -> Chart:
    """How many times as fast each remedy is: predicted with its interval, and measured.

    Args:
        before: How it is trained today; None where nothing can be predicted.
        measured: A step of that.
        outcomes: Of all remedies; those that do not exist have no mark.
    """
    gains = _measured_gains(before, measured, outcomes) if before is not None else {}
    rows = [
        {
            "label": NAMES[one.effect.remedy],
            "gain": one.effect.gain,
            "low": one.effect.low,
            "high": one.effect.high,
            "shown": gain_words(one.effect.gain, one.effect.low, one.effect.high),
        }
        for one in outcomes
        if one.effect.setup is not None
    ]
    taken = [{"label": NAMES[remedy], "gain": gain, "shown": times(gain)} for remedy, gain in gains.items()]
    ends = [row[name] for row in rows for name in ("low", "high")] + [row["gain"] for row in taken]
    scale = log_scale([min([0.5, *(0.9 * end for end in ends)]), max([2.0, *(1.1 * end for end in ends)])])
    axis = alt.Axis(tickCount=5, format="~g", labelOverlap=True)
    names = [NAMES[one.effect.remedy] for one in outcomes] or list(NAMES.values())
    y = names_y(names, 190)
    x = alt.X("gain:Q", scale=scale, axis=axis, title="times as fast, an image of one network")
    predicted = alt.Chart(pd.DataFrame(rows, columns=["label", "gain", "low", "high", "shown"]))
    found = alt.Chart(pd.DataFrame(taken, columns=["label", "gain", "shown"]))
    same = alt.Chart(pd.DataFrame([{"gain": 1.0}])).mark_rule(strokeDash=[4, 3], opacity=0.6, color="currentColor")
    bars = predicted.mark_rule(strokeWidth=2.5, color=PREDICTED).encode(
        x=alt.X("low:Q", title="times as fast, an image of one network"), x2="high:Q", y=y
    )
    tooltip = ["label:N", alt.Tooltip("shown:N", title="predicted")]
    points = predicted.mark_point(filled=True, size=90, opacity=1, color=PREDICTED).encode(x=x, y=y, tooltip=tooltip)
    diamonds = found.mark_point(filled=True, size=110, opacity=1, color=MEASURED, shape="diamond").encode(
        x=x, y=y, tooltip=["label:N", alt.Tooltip("shown:N", title="measured")]
    )
    layers = same.encode(x=x) + bars + points + diamonds
    return Chart(styled(layers, height=34 * len(names)), "times as fast by remedy, predicted and measured")


def legend() -> str:
    """HTML: what the marks of the chart are."""
    keys = {
        f'<span style="color:{PREDICTED}">●</span>': "predicted, with its 90 % interval",
        f'<span style="color:{MEASURED}">◆</span>': "measured",
        "<span>┆</span>": "as fast as today",
    }
    entries = (f'<span class="compare-key">{mark} {words}</span>' for mark, words in keys.items())
    return f'<p class="compare-legend">{"".join(entries)}</p>'
