"""The articles' figures beside predictions: none dropped, few used, and no other lets anything leak."""

import csv
import io
from dataclasses import replace

import pytest

from docs.published_figures import FILE, written
from lib.labs.claims import SWEEP_STEPS
from lib.model.backends.registry import DEFAULT, Runtime
from lib.model.spec import N_TRAIN
from lib.sweeps.experiments import known_devices, published
from lib.sweeps.experiments import known_devices as judged
from lib.sweeps.experiments.backend_race import BATCH_SIZES, NETWORK
from lib.sweeps.experiments.known_devices import CARD, Accuracy, Row, accuracy, published_figures, published_rows
from lib.sweeps.experiments.recorded_machines import recorded_here
from lib.timing.prediction.predict import predict
from lib.timing.prediction.workload import Way, fully_connected
from tests.conftest import ROOT


def test_no_published_time_is_left_out():
    figures = published_figures()
    times = [figure.published_s for figure in figures]
    expected = [s for by_size in published.EPOCH_S.values() for s in by_size.values()]
    expected += [s for pair in published.EXPERIMENT_S.values() for s in pair]
    expected += [s for pair in published.OPERATION_S.values() for s in pair]
    expected += [*published.PRODUCT_S, *published.COMPILED_S, *published.SINE_S]
    expected += [published.CUDA_EPOCH_S, published.CPU_EPOCH_S, published.CUPY_EPOCH_S, published.SWEEP_S[1]]
    assert sorted(times) == sorted(expected)
    assert len({figure.name for figure in figures}) == len(figures)


def test_less_than_a_third_is_used_and_by_the_rule():
    figures = published_figures()
    used = [figure.name for figure in figures if figure.sets or figure.widens]
    assert 3 * len(used) <= len(figures)
    assert [name for name in used if name.startswith("NumPy")] == [
        "NumPy, CPU, an epoch at batch size 32",
        "NumPy, CPU, an epoch at batch size 1024",
        "NumPy, CPU, one step at batch size 32, forward: hidden layer",
        "NumPy, CPU, one step at batch size 32, softmax and loss",
    ]
    assert [figure.published_s for figure in figures if figure.widens] == [4.4]
    assert {row.name for row in published_rows() if row.used} == set(used)


def test_steps_are_those_of_the_training_images():
    """48,000 images an epoch in both articles: the second counts 60,000, as if no image were held back."""
    work = {figure.name: [steps for steps, _ in figure.work] for figure in published_figures()}
    assert work["NumPy, CPU, an epoch at batch size 32"] == [1_500]
    assert work["Keras on TensorFlow, L4, the batch-size experiment"] == [144_000, 4_500, 561]
    assert sum(work["Keras on TensorFlow, L4, the learning-rate experiment"]) == SWEEP_STEPS == 18_000
    assert work["JAX, 22 vCPUs, by vmap, the learning-rate experiment"] == [4_500]


def test_an_operation_by_operation_step_is_the_sum_of_its_rows():
    figures = [figure for figure in published_figures() if figure.question.startswith("one step's")]
    parts = [figure for figure in figures if not figure.question.endswith("total")]
    operations = sum((figure.work[0][1].operations for figure in parts if figure.machine == CARD), ())
    (total,) = (figure for figure in figures if figure.machine == CARD and figure not in parts)
    assert operations == total.work[0][1].operations


def test_a_figure_that_is_not_used_changes_no_prediction(monkeypatch):
    """All of them a thousand times as long: were one looked at, something would move."""
    before = {row.name: (row.predicted_s, row.low_s, row.high_s) for row in published_rows()}
    figures = [
        one if one.sets or one.widens else replace(one, published_s=1_000 * one.published_s)
        for one in published_figures()
    ]
    monkeypatch.setattr(known_devices, "published_figures", lambda: figures)
    monkeypatch.setattr(judged, "published_figures", lambda: figures)
    assert {row.name: (row.predicted_s, row.low_s, row.high_s) for row in published_rows()} == before


def row(question, published_s, predicted_s, used=False):
    return Row(f"{question} {published_s}", question, published_s, predicted_s, predicted_s / 2, 2 * predicted_s, used)


def test_accuracy_on_rows_counted_by_hand():
    rows = [
        row("a", 1.0, 1.1),  # 10 %
        row("a", 2.0, 1.0),  # 50 %, and the wrong winner; 2.0 is the interval's end
        row("a", 3.0, 3.0, used=True),  # counts for nothing
        row("b", 4.0, 1.0),  # 75 %, outside
        row("b", 8.0, 8.0),  # 0 %, the right winner
        row("c", 5.0, 6.0),  # 20 %, no pair
    ]
    found = accuracy(rows)
    assert (found.n, found.median_error, found.winner_share, found.covered_share) == (5, pytest.approx(0.2), 0.5, 0.8)
    assert found.p90_error == pytest.approx(0.5 + 0.6 * 0.25), "between 50 and 75 %, as NumPy's percentiles are"
    assert accuracy([row("a", 1.0, 1.0, used=True)]) == Accuracy(0, None, None, None, None)
    assert accuracy([row("a", 1.0, 1.0), row("a", 1.0, 2.0)]).winner_share is None, "equal figures have no winner"
    for pair in ([1.0, 2.0], [2.0, 1.0]):
        assert accuracy([row("a", s, 5.0) for s in pair]).winner_share == 0, "predicted alike: no winner is named"


def test_the_table_in_docs_is_of_today_s_predictions_the_worst_first():
    assert FILE.read_text() == written(), "run `python -m docs.published_figures`"
    rows = list(csv.DictReader(io.StringIO(written())))
    predicted = rows[: -len(judged.NOT_PREDICTED)]
    assert [row["figure"] for row in predicted] == [one.name for one in published_rows()]
    errors = [abs(int(row["error_percent"])) for row in predicted]
    assert errors == sorted(errors, reverse=True)
    set_from = [row["figure"] for row in predicted if row["remark"] == "the model was set from it"]
    assert set_from == [one.name for one in published_rows() if one.used]
    assert [row["figure"] for row in rows[len(predicted) :]] == list(judged.NOT_PREDICTED)


def test_the_steps_of_a_recorded_card_lie_in_its_data_sheet_s_ranges():
    """As one graph an epoch, of which no published figure speaks: nothing that this H100 measured sets the model."""
    (machine,) = [one for one in recorded_here().machines if "H100" in one.name]
    device = known_devices.known_devices()["h100-sxm"]
    ratios = []
    for size in BATCH_SIZES:
        epoch = machine.epoch(Runtime(DEFAULT, "gpu"), size)
        assert epoch is not None
        step_s = epoch.middle / (N_TRAIN // size)
        found = predict(fully_connected(NETWORK, size, Way.GRAPH), device)
        assert found.low_s < step_s < found.high_s
        ratios.append(step_s / found.step_s)
    assert min(ratios) > 1, "a card does not reach its data sheet"
    told = (ROOT / "docs" / "predicting.md").read_text()
    assert f"{min(ratios[1:]):.1f} to {max(ratios[1:]):.1f} times as long as predicted" in " ".join(told.split())
