"""What would help a training that is slow: each remedy as predicted, a press that applies and measures it, its miss."""

import html
from collections.abc import Callable, Mapping
from functools import partial

import altair as alt
import pandas as pd

from lib.formatting import seconds, sentence, times
from lib.labs.when_a_gpu_wins.border import remarks
from lib.labs.when_a_gpu_wins.work import parts_on_demand
from lib.model.spec import Network
from lib.sweeps.cost_model import StepTime
from lib.sweeps.experiments import what_would_help
from lib.sweeps.experiments.calibration import TrainingWay
from lib.sweeps.experiments.live_calibration import live_in, ways
from lib.sweeps.experiments.what_would_help import Applied, Findings, findings, miss, too_long
from lib.sweeps.workers.notes import State
from lib.timing.disturbance import disturbances
from lib.timing.prediction.predict import MOST_NETWORKS, Prediction, Question
from lib.timing.prediction.remedies import Effect, Remedy, Setup, best, in_words
from lib.ui import layout
from lib.ui.controls import runtime
from lib.ui.lab import Asked, Drawing, Page, Shown
from lib.ui.panel import Controls, batch_size, dropdown, number, text
from lib.ui.stage import Stage, Work
from lib.ui.views.chart import Chart, log_scale, names_y, styled
from lib.ui.views.markup import table

PREDICTED, MEASURED = "#7b62d3", "#0b7a57"
NAMES: Mapping[Remedy, str] = {one: one.value[0].upper() + one.value[1:] for one in Remedy}
APPLIES = {one: f"apply_{one.name.lower()}" for one in Remedy}  # their names in the panel; the table has them
LEGEND = '<p class="compare-legend">{}</p>'.format(
    "".join(
        f'<span class="compare-key"><span style="color:{color}">{mark}</span> {words}</span>'
        for color, mark, words in (
            (PREDICTED, "●", "predicted, with its 90 % interval"),
            (MEASURED, "◆", "measured"),
            ("inherit", "┆", "as fast as today"),
        )
    )
)
GAIN = "times as fast, an image of one network"
FAIR = (
    "“Times as fast” compares the seconds of an image of one network. A larger batch makes fewer steps of the same"
    " images, so that it may learn less from them: the figure says nothing of that. Once today's step is measured, the"
    " remedies are predicted from it too."
)


def _offered() -> dict[str, str]:
    return {one.label: one.address for one in ways() if not one.together}


class Remedies(Controls):
    """What is trained, and by what today; a button for each remedy."""

    AGAIN = "Measure all", "Apply each remedy, and measure a step with it"
    RESULT_BUTTONS = tuple(
        (name, NAMES[one], "Apply it, and measure a step with it and without") for one, name in APPLIES.items()
    )
    hidden = text("Hidden layers", "128", Network.parse, "256, 128, 64")
    size = batch_size("Batch size", 32)
    by = dropdown(
        "Trained today by",
        lambda: next((one for one in _offered().values() if one == "jax-step/cpu"), next(iter(_offered().values()))),
        _offered,
        full_width=True,
    )
    networks = number("Networks to be trained", 8, 1, MOST_NETWORKS, whole=True)


def asked_by(at: Remedies) -> tuple[Question, TrainingWay]:
    """What is trained, and the way to train before any remedy; raises ValueError with a sentence."""
    return Question(Network.parse(at.hidden), at.size, networks=at.networks), TrainingWay(runtime(at.by))


def remedies(page: Page) -> tuple[Callable[[Remedies], Asked], Callable[[Shown], Drawing]]:
    """What a press measures, all remedies in a script; and what is predicted and known of each."""
    live, section = live_in(page.store.path), page.sections["remedy"]

    def ask(at: Remedies) -> Asked:
        question, by = asked_by(at)

        def make(pressed: bool) -> tuple[tuple, Work]:
            wanted = [] if section.stage.streams else list(Remedy)
            if pressed:
                new = [one for one, name in APPLIES.items() if section.pressed(name) or section.pressed("again")]
                wanted = chosen(section.stage, (question, by), new)
            return (wanted,), partial(what_would_help.apply, question, by, wanted, live)

        return Asked((question, by), make)

    def draw(shown: Shown) -> Drawing:
        question, by = asked_by(shown.at)
        found, now, (wanted,) = findings(question, by, live.view().items, page.store), shown.now, shown.known
        state, n_done = now.state, sum(isinstance(item, Applied) for item in now.items)
        n_measured, n_possible = sum(one.measured is not None for one in found.outcomes), len(_possible(found))
        if not wanted and state is State.DONE:
            state = State.SAVED if n_measured else State.NOT_RUNNING
        words = f"{n_measured} of {n_possible} remedies measured; a press on one in the table applies it"
        line = layout.state_line(state, n_done, len(wanted), now.note or words, now.problem)
        chart = layout.figure("how many times as fast each remedy is", gains_chart(found)) + LEGEND + line
        if found.before is None:
            return Drawing(chart + layout.problems([sentence(found.problem)]), found.problem)
        said = remedies_sentence(found)
        steps = {"Today": found.before.step} | {NAMES[one.remedy]: setup.step for one, setup in _possible(found)}
        measured = [one for one in (found.measured, *(outcome.measured for outcome in found.outcomes)) if one]
        flags = disturbances([warning for one in measured for warning in one.disturbed])
        notes = [FAIR, *([f"Disturbed: {'; '.join(flags)}."] if flags else [])]
        below = (
            remedies_table(found, {one: shown.section.button(name) for one, name in APPLIES.items()})
            + parts_on_demand({"": steps})
            + remarks(notes, ((name, step.warning) for name, step in steps.items()))
            + layout.software([by.runtime])
        )
        return Drawing(chart + layout.sentence(said) + below, said)

    return ask, draw


def chosen(stage: Stage, about: tuple, pressed: list[Remedy]) -> list[Remedy]:
    """What is measured now: the remedies that were waited for, and those whose buttons were pressed since.

    Args:
        stage: Where it is measured; it knows what was asked before.
        about: What is asked now.
        pressed: Whose buttons were pressed since then.
    """
    if stage.asked[0] != about or stage.running is None:
        return pressed
    now = stage.running.view()
    done = [item.remedy for item in now.items if isinstance(item, Applied)]
    waited_for = [one for one in stage.began_with[0] if one not in done and now.state is not State.STOPPED]
    return list(dict.fromkeys([*waited_for, *pressed]))


def _possible(found: Findings) -> list[tuple[Effect, Setup]]:
    return [(one.effect, one.effect.setup) for one in found.outcomes if one.effect.setup is not None]


def _gains(found: Findings) -> dict[Remedy, float]:
    """Times as fast, of the remedies that were measured."""
    if found.before is None or found.measured is None:
        return {}
    gains = {one.effect.remedy: one.measured_gain(found.before, found.measured.step_s) for one in found.outcomes}
    return {remedy: gain for remedy, gain in gains.items() if gain is not None}


def remedies_sentence(found: Findings) -> str:
    """What a step takes today, what helps most, and how far off the predictions were that have been measured."""
    before, gains, most = found.before, _gains(found), best([one.effect for one in found.outcomes])
    assert before is not None, "something is predicted"
    said = [f"{before.by}, batch size {before.batch_size:,}: a step is predicted to take {_interval(before.step)}"]
    if found.measured is not None:
        off = _share(miss(before, found.measured))
        said[0] += f", and took {seconds(found.measured.step_s)} when it was measured, a miss of {off}"
    said[0] += f"; that is {seconds(before.image.step_s)} an image."
    if most is None:
        said.append("No remedy that can be predicted here is predicted to help.")
    else:
        gain, words = gain_words(most), in_words(most, before)
        said.append(f"Predicted to help most: {most.remedy.value}, {gain} times as fast, with {words}.")
    if gains:
        gain, first = max((gain, remedy) for remedy, gain in gains.items())
        said.append(f"Of those measured, {first.value} helps most: {times(gain)} times as fast.")
    if misses := [(one.miss, one.effect.remedy) for one in found.outcomes if one.miss is not None]:
        off, worst = max(misses)
        said.append(f"Largest miss: {_share(off)} of the step, with {worst.value}.")
    return " ".join(said)


def remedies_table(found: Findings, buttons: Mapping[Remedy, str]) -> str:
    """HTML: a row for today and for each remedy: its gain, and a step of it, predicted and measured, with the miss.

    Args:
        found: What is known.
        buttons: HTML of what applies each.
    """
    before, measured = found.before, found.measured
    assert before is not None, "something is predicted"
    head = ["remedy", "times as fast, predicted", "… measured", "a step, predicted", "… measured", "miss"]
    of_today = "1", "1" if measured is not None else "–", _interval(before.step), _seconds(measured)
    rows = [[f"Today<br><small>{html.escape(before.by)}</small>", *of_today, _share(miss(before, measured))]]
    gains = _gains(found)
    for one in found.outcomes:
        effect, after = one.effect, one.effect.setup
        if after is None or too_long(after):
            why = html.escape(sentence(too_long(after) if after is not None else effect.why_not))
            rows.append([f"{NAMES[effect.remedy]}<br><small>{why}</small>", *["–"] * 5])
            continue
        line = f"<br><code>{html.escape(one.line)}</code>" if one.line else ""
        words = f"<small>{html.escape(in_words(effect, before))}</small>{line}"
        rows.append(
            [
                f"{buttons.get(effect.remedy, NAMES[effect.remedy])}<br>{words}",
                gain_words(effect),
                times(gains[effect.remedy]) if effect.remedy in gains else "–",
                _interval(after.step),
                _seconds(one.measured),
                _share(one.miss),
            ]
        )
    return table(head, rows, "compare remedies")


def gain_words(effect: Effect) -> str:
    """Times as fast with its interval; a narrow one has a digit more.

    >>> gain_words(Effect(Remedy.STEP, None, "", 1.43, 0.5, 3.9))
    '1.4 (0.5 to 3.9)'
    >>> gain_words(Effect(Remedy.STEP, None, "", 1.018, 1.011, 1.024))
    '1.02 (1.01 to 1.02)'
    """
    narrow = effect.high < 1.2 * effect.low and effect.gain < 10
    shown = (f"{one:.3g}" if narrow else times(one) for one in (effect.gain, effect.low, effect.high))
    return "{} ({} to {})".format(*shown)


def _interval(step: Prediction) -> str:
    return f"{seconds(step.step_s)} ({seconds(step.low_s)} to {seconds(step.high_s)})"


def _seconds(measured: StepTime | None) -> str:
    return "–" if measured is None else seconds(measured.step_s)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def gains_chart(found: Findings) -> Chart:
    """How many times as fast each remedy is: predicted with its interval, and measured; one that does not exist has no
    mark."""
    rows = [
        {"label": NAMES[one.remedy], "gain": one.gain, "low": one.low, "high": one.high, "shown": gain_words(one)}
        for one, _ in _possible(found)
    ]
    taken = [{"label": NAMES[remedy], "gain": gain, "shown": times(gain)} for remedy, gain in _gains(found).items()]
    ends = [row[name] for row in rows for name in ("low", "high")] + [row["gain"] for row in taken]
    scale = log_scale([min([0.5, *(0.9 * end for end in ends)]), max([2.0, *(1.1 * end for end in ends)])])
    names = [NAMES[one.effect.remedy] for one in found.outcomes] or list(NAMES.values())
    y = names_y(names, 190)
    x = alt.X("gain:Q", scale=scale, axis=alt.Axis(tickCount=5, format="~g", labelOverlap=True), title=GAIN)
    predicted = alt.Chart(pd.DataFrame(rows, columns=["label", "gain", "low", "high", "shown"]))
    measured = alt.Chart(pd.DataFrame(taken, columns=["label", "gain", "shown"]))
    same = alt.Chart(pd.DataFrame([{"gain": 1.0}])).mark_rule(strokeDash=[4, 3], opacity=0.6, color="currentColor")
    bars = predicted.mark_rule(strokeWidth=2.5, color=PREDICTED).encode(x=alt.X("low:Q", title=GAIN), x2="high:Q", y=y)
    points = predicted.mark_point(filled=True, size=90, opacity=1, color=PREDICTED).encode(
        x=x, y=y, tooltip=["label:N", alt.Tooltip("shown:N", title="predicted")]
    )
    diamonds = measured.mark_point(filled=True, size=110, opacity=1, color=MEASURED, shape="diamond").encode(
        x=x, y=y, tooltip=["label:N", alt.Tooltip("shown:N", title="measured")]
    )
    layers = same.encode(x=x) + bars + points + diamonds
    return Chart(styled(layers, height=34 * len(names)), "times as fast by remedy, predicted and measured")
