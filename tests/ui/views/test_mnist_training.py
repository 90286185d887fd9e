"""Charts of the four experiments, from literal results."""

import pytest

from lib.sweeps.experiments.results import Results
from lib.ui.views import mnist_training as view
from tests import made
from tests.sweeps.experiments.test_results import filled


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
    experiment = made.backends(batch_size=32, epochs=2, rate=0.1, hidden="128")
    (dots,) = view.charts(experiment, filled(experiment, [0.95] * len(experiment.items)))
    quoted = {row["label"]: row["y"] for row in dots.spec["datasets"]["published"]}
    assert quoted["NumPy"] == 2.71
    assert quoted["Keras on TensorFlow"] == 11.31
    (dots,) = view.charts(
        *[
            e := made.backends(batch_size=8, epochs=2, rate=0.1, hidden="128"),
            filled(e, [0.95] * len(e.items)),
        ]
    )
    assert dots.spec["datasets"]["published"] == [], "the article has no batch size 8"
