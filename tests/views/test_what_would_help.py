"""What is said of remedies: words that change with the figures, a button in its row, and a chart that says the same."""

from dataclasses import replace

import pytest

from lib.experiments.what_would_help import Outcome
from lib.prediction.predict import Prediction
from lib.prediction.remedies import Effect, Remedy, Setup
from lib.sweeps.cost_model import StepTime
from lib.views.what_would_help import (
    NAMES,
    disturbed,
    gains_chart,
    legend,
    measured_words,
    remedies_sentence,
    remedies_table,
    warnings,
)


def plain(text: str) -> str:
    """With usual spaces before units."""
    return text.replace("\u202f", " ")


def took(step_s: float) -> Prediction:
    return Prediction(step_s, 0.8 * step_s, 1.25 * step_s, {})


BEFORE = Setup("JAX, one call a step", 32, took(1e-3))
COMPILED = Effect(Remedy.EPOCH, Setup("JAX, one call an epoch", 32, took(0.5e-3)), "", 2.0, 1.5, 2.5)
LARGER = Effect(Remedy.BATCH, Setup(BEFORE.by, 128, took(1e-3)), "", 4.0, 3.0, 5.0)
SLOWER = Effect(Remedy.BACKEND, Setup("NumPy", 32, took(2e-3)), "", 0.5, 0.4, 0.6)
NONE = Effect(Remedy.STEP, why_not="its step is compiled already")
EFFECTS = (NONE, COMPILED, LARGER, SLOWER)
PLAIN = [Outcome(one) for one in EFFECTS]
MEASURED = [
    Outcome(NONE),
    Outcome(COMPILED, StepTime(0.25e-3, 0.1)),
    Outcome(LARGER, StepTime(2e-3, 0.1)),
    Outcome(SLOWER),
]


def test_what_is_predicted_to_help_most_is_said_before_anything_is_measured():
    said = plain(remedies_sentence(BEFORE, None, PLAIN))
    assert "JAX, one call a step, batch size 32: a step is predicted to take 1 ms" in said
    assert "31 μs an image" in said
    assert (
        "Predicted to help most: a larger batch, 4 (3 to 5) times as fast, with batch size 128 in place of 32." in said
    )
    assert "Of those measured" not in said
    assert "miss" not in said


def test_what_was_measured_and_the_largest_miss_are_said():
    said = plain(remedies_sentence(BEFORE, StepTime(2e-3, 0.1), MEASURED))
    assert "took 2 ms when it was measured, a miss of 50%" in said
    assert "Of those measured, compile the epoch helps most: 8 times as fast." in said
    assert "Largest miss: 100% of the step, with compile the epoch." in said


def test_where_nothing_helps_that_is_said():
    said = remedies_sentence(BEFORE, None, [Outcome(NONE), Outcome(SLOWER)])
    assert "No remedy that can be predicted here is predicted to help." in said


def test_each_row_has_its_button_or_says_why_it_has_none():
    slow = Outcome(replace(COMPILED, remedy=Remedy.NETWORKS, setup=replace(BEFORE, step=took(100.0))))
    buttons = {remedy: f"<b>press {remedy.name}</b>" for remedy in Remedy}
    shown = remedies_table(BEFORE, StepTime(2e-3, 0.1), [*MEASURED, slow], buttons)
    assert shown.count("<tr") == 1 + 1 + 5
    assert "press EPOCH" in shown
    assert "press STEP" not in shown
    assert "Its step is compiled already." in shown
    assert "expected at most 3 s" in shown
    assert "2 (1.5 to 2.5)" in shown
    assert "<td>8</td>" in shown, "measured: 2 ms become 0.25 ms"
    assert "<td>100%</td>" in shown, "0.5 ms predicted, 0.25 ms measured"


def test_text_of_others_is_escaped():
    shown = remedies_table(replace(BEFORE, by="<script>"), None, PLAIN, {})
    assert "<script>" not in shown


@pytest.mark.parametrize(
    ("before", "measured", "outcomes"),
    [(None, None, []), (BEFORE, None, PLAIN), (BEFORE, StepTime(2e-3, 0.1), MEASURED)],
)
def test_the_chart_keeps_its_rows_and_has_a_mark_for_what_is_known(before, measured, outcomes):
    chart = gains_chart(before, measured, outcomes)
    layers = chart.spec["layer"]
    data = chart.spec["datasets"]
    rows = [data[one["data"]["name"]] for one in layers]
    assert len(rows[1]) == sum(one.effect.setup is not None for one in outcomes)
    assert len(rows[3]) == (sum(one.measured is not None for one in outcomes) if measured else 0)
    low, high = layers[0]["encoding"]["x"]["scale"]["domain"]
    assert low < 1 < high
    for row in rows[1]:
        assert low < row["low"] <= row["gain"] <= row["high"] < high
    names = [NAMES[one.effect.remedy] for one in outcomes] or list(NAMES.values())
    assert layers[1]["encoding"]["y"]["scale"]["domain"] == names, "those of this program"
    assert "measured" in legend()


def test_what_is_far_from_the_calibration_and_what_was_disturbed_is_said():
    far = replace(LARGER, setup=replace(BEFORE, step=replace(took(1.0), warning="far from every step")))
    assert warnings(BEFORE, [Outcome(far), Outcome(COMPILED)]) == [
        "A larger batch: far from every step, so the prediction may be further off than its interval says."
    ]
    assert warnings(BEFORE, PLAIN) == []
    assert disturbed(None, MEASURED) == ""


def test_how_many_are_measured_counts_what_exists():
    assert measured_words(MEASURED) == "2 of 3 remedies measured; a press on one in the table applies it"
    assert measured_words([]) == "nothing can be predicted yet"
