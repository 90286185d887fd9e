"""The charts and sentences of the four experiments, from literal rows, and the HTML around them."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from lib.model.backends.base import Epoch, FirstCall, no_parameters
from lib.model.backends.registry import Runtime
from lib.model.data.mnist import Facts
from lib.model.spec import Training
from lib.sweeps.experiments.results import Results
from lib.sweeps.storage.records import Curve
from lib.sweeps.sweep import Finished, ToTrain
from lib.sweeps.workers.messages import Item, Note, Progress, Ready, State, Waiting
from lib.timing.diagnosis import CardFacts
from lib.timing.measurement import Disturbance
from lib.ui import layout
from lib.ui.notebooks import SERVED, STATIC
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


def test_space_is_reserved_for_a_chart_before_it_is_drawn():
    experiment = made.learning_rate((0.1,), epochs=3, batch_size=32, hidden="128")
    results = Results(experiment.items, experiment.labels)
    blank, drawn = (view.result(experiment, results, "", blank=blank) for blank in (True, False))
    places = [re.findall(r'class="lab-chart".*?style="(height:\d+px)"', shown) for shown in (blank, drawn)]
    assert places[0] == places[1] != []
    assert "data-spec" in drawn
    assert "data-spec" not in blank
    assert layout.framed("a < b", "<svg>", "low").startswith('<figure class="lab-figure low"><figcaption>a &lt; b')


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_compiling_is_reported_as_starting(device):
    """On an H100 JAX compiled the first step of a shape for 2 to 29 s, which is not queueing."""
    item = Item(Training(), Runtime("jax-epoch", device))
    results, facts = Results((item,), ("a",)), Facts("MNIST", "1")
    results.add(Ready(facts))
    assert "<b>Waiting</b>" in view.state_of(results), "the store is asked"
    results.add(ToTrain((item,)))
    results.add(Note("a worker starts", State.STARTING))
    assert view.progress_text(results) == "a worker starts"
    results.add(Ready(facts))
    assert "<b>Starting</b><span>preparing the first step" in view.state_of(results)
    assert ("half a minute on a GPU" in view.progress_text(results)) is (device == "gpu")
    results.add(Waiting(1))
    assert "<b>Waiting</b>" in view.state_of(results)
    results.add(Ready(facts))
    results.add(Progress(item, FirstCall(3.0)))
    assert "<b>Training</b>" in view.state_of(results)


def test_recent_times_are_in_words_but_old_ones_and_all_on_static_pages_are_dates(monkeypatch):
    for passed, words in (("30s", "a moment ago"), ("10min", "10 minutes ago"), ("5h", "5 hours ago")):
        assert view._ago((pd.Timestamp.now("UTC") - pd.Timedelta(passed)).isoformat()) == words
    assert view._ago("2026-01-31T10:00:00+00:00") == "on 2026-01-31"
    assert view._ago("") == "earlier"
    monkeypatch.setenv(SERVED, STATIC)
    assert view._ago(pd.Timestamp.now("UTC").isoformat()).startswith("on 20")


def test_a_card_is_named_as_by_its_library():
    item = Item(Training(epochs=1), Runtime("jax-epoch", "gpu"))
    results = Results([item], ["0.1"])
    assert "The library reports" not in view._how_swept(results)
    results.add(Ready(Facts("MNIST", "1"), CardFacts("NVIDIA <L4>", "570.86.10", "float32")))
    assert "the device as NVIDIA &lt;L4&gt;, driver 570.86.10, products in float32." in view._how_swept(results)


def test_disturbances_are_reported_in_the_details_once():
    experiment = made.learning_rate((0.1,), epochs=1, batch_size=4096, hidden="8")
    results = Results(experiment.items, experiment.labels)
    epoch = Epoch(0, 11, 0.3, 0.9, 0.1, 0.01, no_parameters)
    # A training that was continued has been disturbed twice, to different degrees.
    warnings = ("timed while another one measured", *Disturbance(1, 0, 1.2, 0).flags, *Disturbance(1, 0, 1.5, 0).flags)

    def shown(*warnings):
        curve = Curve(0.1, (epoch,), np.ones(11, np.float32), warnings=warnings)
        results.add(Finished(experiment.items[0], curve, cached=False))
        return view.result(experiment, results, "") + view.details(experiment, results)

    assert "Disturbed" not in shown()
    html = shown(*warnings)
    results.end(State.DONE)
    assert "measured on a busy machine" in view.state_of(results)
    said = "Disturbed, so times are too long: other programs kept 1.5 cores busy: close them, and measure again."
    assert html.count(said) == 1
    assert html.index("How this was measured") < html.index(said)
    assert layout.problems([warnings[0]]) in html, "what needs to be acted on is not in the menu"
    assert html.count("lab-problem") == 1, "and nothing else"
