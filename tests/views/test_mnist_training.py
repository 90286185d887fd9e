"""Charts and sentences of the four experiments, from literal results."""

import pytest

from lib.experiments import mnist_training
from lib.experiments.results import Results
from lib.views import mnist_training as view
from lib.views import mnist_training_sentences
from tests.experiments.test_results import filled


def test_sentences_say_what_the_rows_show():
    rates = mnist_training.learning_rate((0.01, 0.1, 10.0), 3, 32, "128")
    text = mnist_training_sentences.sentence(rates, filled(rates, (0.9, 0.965, 0.1), diverged=(2,)))
    assert "Learning rate 0.1 was best: 96.5" in text
    assert "10 diverged" in text
    assert "step 5" in text
    stuck = mnist_training_sentences.sentence(rates, filled(rates, (0.9, 0.95, 0.113)))
    assert "10 did not learn: 11.3" in stuck
    sizes = mnist_training.batch_size((1, 32), 3, 0.01, "128")
    text = mnist_training_sentences.sentence(sizes, filled(sizes, (0.97, 0.9)), 0.95)
    assert "To 95.0" in text
    assert "quickest was batch size 1" in text
    assert "32 did not reach it" in text
    depths = mnist_training.depth(("128", "256"), "", 3, 0.1, 32)
    assert "one seed cannot tell" in mnist_training_sentences.sentence(depths, filled(depths, (0.965, 0.967)))
    chosen = mnist_training.learning_rate((0.01, 0.1), 1, 32, "128", "numpy")
    text = mnist_training_sentences.sentence(chosen, filled(chosen, (0.9, 0.95, 0.9, 0.95)))
    assert "NumPy took" in text
    assert "times as long" in text


@pytest.mark.parametrize(
    "experiment",
    [
        mnist_training.learning_rate((0.01, 0.1, 10.0), 3, 32, "128"),
        mnist_training.batch_size((1, 32, 4096), 3, 0.01, "128"),
        mnist_training.depth(("128", "256→128→64"), "none", 3, 0.1, 32),
        mnist_training.backends(32, 5, 0.1, "128"),
    ],
    ids=lambda experiment: experiment.name,
)
def test_charts_of_empty_and_full_results(experiment):
    empty = view.charts(experiment, Results(experiment.items, experiment.labels))
    results = filled(experiment, [0.95] * len(experiment.items), diverged=(2,))
    full = view.charts(experiment, results)
    for before, after in zip(empty, full, strict=True):
        assert after.spec["datasets"]["rows"]
        assert before.spec["height"] == after.spec["height"]
        encodings = [layer.get("encoding", {}).get("y") for layer in before.spec["layer"]]
        assert encodings == [layer.get("encoding", {}).get("y") for layer in after.spec["layer"]], (
            "axes stay as the lines grow"
        )
    if experiment.name == "learning-rate":
        outcomes = [row["outcome"] for row in full[-1].spec["datasets"]["rows"]]
        assert outcomes == ["learnt", "learnt", "diverged"]


def test_published_figures_stand_beside_measured_ones():
    experiment = mnist_training.backends(32, 2, 0.1, "128")
    (dots,) = view.charts(experiment, filled(experiment, [0.95] * len(experiment.items)))
    quoted = {row["label"]: row["y"] for row in dots.spec["datasets"]["published"]}
    assert quoted["NumPy"] == 2.71
    assert quoted["Keras on TensorFlow"] == 11.31
    (dots,) = view.charts(*[e := mnist_training.backends(8, 2, 0.1, "128"), filled(e, [0.95] * len(e.items))])
    assert dots.spec["datasets"]["published"] == [], "the article has no batch size 8"
