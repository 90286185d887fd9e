"""The charts and sentences of the four experiments, from literal rows."""

from dataclasses import replace

import pytest

from lib.sweeps.experiments.results import Results
from lib.ui.views import mnist_training as view
from tests import made
from tests.sweeps.experiments.test_results import filled, on_rows


@pytest.mark.parametrize(
    "experiment",
    [
        made.learning_rate((0.01, 0.1, 10.0), epochs=3, batch_size=32, hidden="128"),
        made.batch_size((1, 32, 4096), epochs=3, rate=0.01, hidden="128"),
        made.depth(("128", "256→128→64"), own="none", epochs=3, rate=0.1, batch_size=32),
        made.backends(batch_size=32, epochs=5, rate=0.1, hidden="128"),
    ],
    ids=lambda experiment: experiment.name,
)
def test_charts_keep_their_size_and_axes_as_results_arrive(experiment):
    empty = view.charts(experiment, Results(experiment.items, experiment.labels))
    results = filled(experiment, [0.95] * len(experiment.items), diverged=(2,))
    full = view.charts(experiment, results)
    for before, after in zip(empty, full, strict=True):
        assert after.spec["datasets"]["rows"]
        assert before.spec["height"] == after.spec["height"]
        axes = [[layer.get("encoding", {}).get("y") for layer in one.spec["layer"]] for one in (before, after)]
        assert axes[0] == axes[1], "they stay as the lines grow"
    if experiment.name == "learning-rate":
        outcomes = [row["outcome"] for row in full[-1].spec["datasets"]["rows"]]
        assert outcomes == ["learnt", "learnt", "diverged"]


def test_published_figures_are_shown_for_matching_settings():
    experiment = made.backends(batch_size=32, epochs=2, rate=0.1, hidden="128")
    (dots,) = view.charts(experiment, filled(experiment, [0.95] * len(experiment.items)))
    quoted = {row["label"]: row["y"] for row in dots.spec["datasets"]["published"]}
    assert quoted["NumPy"] == 2.71
    assert quoted["Keras on TensorFlow"] == 11.31
    other = made.backends(batch_size=8, epochs=2, rate=0.1, hidden="128")
    (dots,) = view.charts(other, filled(other, [0.95] * len(other.items)))
    assert dots.spec["datasets"]["published"] == [], "the article has no batch size 8"
    four, three = (
        made.batch_size(sizes, epochs=3, rate=0.01, hidden="128") for sizes in ((1, 8, 32, 256), (1, 32, 256))
    )
    assert "423" in view.published_note(three)
    others = four, replace(three, name="your"), made.batch_size((1, 32, 256), epochs=5, rate=0.01, hidden="128")
    assert [view.published_note(one) for one in others] == ["", "", ""]


def test_sentences_state_the_outcome_of_each_experiment():
    rates = made.learning_rate((0.01, 0.1, 10.0), epochs=3, batch_size=32, hidden="128")
    text = view.run_sentence(rates, filled(rates, (0.9, 0.965, 0.1), diverged=(2,)))
    assert "Learning rate 0.1 was best: 96.5" in text
    assert "10 diverged" in text
    assert "step 5" in text
    stuck = view.run_sentence(rates, filled(rates, (0.9, 0.95, 0.113)))
    assert "10 did not learn: 11.3" in stuck
    sizes = made.batch_size((1, 32), epochs=3, rate=0.01, hidden="128")
    text = view.run_sentence(sizes, filled(sizes, (0.97, 0.9)))
    assert "was quickest to 95.0" in text
    assert "Batch size 1 was quickest" in text
    assert "32 did not reach it" in text
    sizes = made.batch_size((1, 32), epochs=3, rate=0.01, hidden="128", target=0.9)
    nearly = view.run_sentence(sizes, filled(sizes, (0.8997, 0.88)))
    assert "(90.0\u202f% after" in nearly
    assert "None reached 90.0\u202f% (0.03 points short)" in nearly, "it would read as if it had"
    depths = made.depth(("128", "256"), epochs=3, rate=0.1, batch_size=32)
    assert "one seed cannot tell" in view.run_sentence(depths, filled(depths, (0.965, 0.967)))
    assert "one seed cannot tell" not in view.run_sentence(depths, filled(depths, (0.95, 0.965)))
    few = on_rows(depths, 300)
    assert "one seed cannot tell" in view.run_sentence(few, filled(few, (0.95, 0.965)))


def test_seconds_to_a_target_include_training_and_evaluation():
    experiment = made.learning_rate((0.1, 1.0), epochs=3, batch_size=32, hidden="128")
    line = filled(experiment, (0.9, 0.9)).lines[0]  # per epoch 0.1 s of training and 0.01 s of evaluation
    reached = [epoch.validation_accuracy for epoch in line.epochs]
    assert line.seconds_to(reached[1]) == 2 * (0.1 + 0.01)
    assert line.seconds_to(0.99) is None
