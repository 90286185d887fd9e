"""The frame of an experiment: escaping, reserved space, and parts that are left out when they have nothing to say."""

import re

import numpy as np
import pandas as pd
import pytest

from lib.model.backends.base import Epoch, FirstCall, no_parameters
from lib.model.backends.registry import Runtime
from lib.model.data.mnist import Facts
from lib.model.spec import Training
from lib.sweeps.experiments.results import Results
from lib.sweeps.storage.records import Curve
from lib.sweeps.storage.store import Store
from lib.sweeps.sweep import Finished, ToTrain
from lib.sweeps.workers.messages import Item, Note, Progress, Ready, State, Waiting
from lib.timing.diagnosis import CardFacts
from lib.timing.measurement import Disturbance
from lib.ui import layout
from lib.ui.notebooks import SERVED, STATIC
from lib.ui.views import mnist_training as view
from lib.ui.views.chart import Chart
from tests import made


@pytest.mark.parametrize("state", list(State))
def test_a_progress_bar_is_shown_while_something_runs(state):
    line = layout.state_line(state, 1, 4, "a < b", "it < failed")
    assert ("<progress" in line) is state.under_way
    assert ('value="0.250"' in line) is state.under_way
    assert "a &lt; b" in line
    assert '<p class="lab-problem" role="alert">it &lt; failed</p>' in line


def test_space_is_reserved_while_there_is_no_sentence():
    assert "aria-hidden" in layout.sentence("", "what was said")
    assert layout.sentence("new", "old") == '<p class="lab-sentence" aria-live="polite">new</p>'
    assert layout.said("") == layout.quiet("") == layout.problems([]) == ""


def test_only_a_finished_run_counts_as_saved():
    assert layout.saved_or(State.DONE, True) is State.SAVED
    assert layout.saved_or(State.DONE, False) is State.DONE
    assert layout.saved_or(State.FAILED, True) is State.FAILED


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


@pytest.mark.parametrize(
    ("facts", "wanted"),
    [
        (None, "looking for MNIST"),
        (Facts("MNIST", "1"), "Images: MNIST"),
        (Facts("MNIST", "1", "damaged"), "MNIST, but read this"),
        (Facts("digits", "0", "no connection"), "digits, not MNIST"),
    ],
)
def test_the_line_about_the_images_names_their_source(facts, wanted):
    shown = layout.images_line(facts)
    assert wanted in re.sub("<[^>]+>", "", shown)
    assert shown.count('class="lab-images') == 1


@pytest.mark.parametrize("served", ["edit", "run", STATIC])
def test_only_the_editor_reveals_the_folder_of_results(served, tmp_path, monkeypatch):
    monkeypatch.setenv(SERVED, served)
    monkeypatch.setenv("MNIST_CACHE_DIR", str(tmp_path))
    (tmp_path / "results.sqlite").mkdir()
    store = Store()
    store.records()
    unwritable = f"The cache folder {tmp_path} cannot be written"
    shown = [
        layout.problems([store.trouble]),
        layout.failed(unwritable).text,
        layout.state_line(State.FAILED, 0, 1, "", store.trouble),
        layout.images_line(Facts("MNIST", "", unwritable)),
    ]
    assert {str(tmp_path) in text for text in shown} == {served == "edit"}
    if served != "edit":
        assert "saved: results.sqlite cannot be used" in shown[0]
        assert "The cache folder of this server cannot be written" in shown[1]


@pytest.mark.parametrize(
    ("passed", "words"), [("30s", "a moment ago"), ("10min", "10 minutes ago"), ("5h", "5 hours ago")]
)
def test_recent_times_are_in_words(passed, words):
    assert view._ago((pd.Timestamp.now("UTC") - pd.Timedelta(passed)).isoformat()) == words


def test_old_times_and_times_on_static_pages_are_dates(monkeypatch):
    assert view._ago("2026-01-31T10:00:00+00:00") == "on 2026-01-31"
    assert view._ago("") == "earlier"
    monkeypatch.setenv(SERVED, STATIC)
    assert view._ago(pd.Timestamp.now("UTC").isoformat()).startswith("on 20")


def test_a_software_adapter_is_called_no_gpu():
    assert layout.software([Runtime(), Runtime("webgpu-step", "discrete")]) == layout.software([]) == ""
    said = layout.software([Runtime(), Runtime("webgpu-step", "software")])
    assert "A software adapter computes on the CPU and says nothing about a GPU" in said


def test_a_card_is_named_as_by_its_library():
    item = Item(Training(epochs=1), Runtime("jax-epoch", "gpu"))
    results = Results([item], ["0.1"])
    assert "The library reports" not in view._how_swept(results)
    results.add(Ready(Facts("MNIST", "1"), CardFacts("NVIDIA <L4>", "570.86.10", "float32")))
    assert "the device as NVIDIA &lt;L4&gt;, driver 570.86.10, products in float32." in view._how_swept(results)


def test_a_chart_has_its_text_as_accessible_label():
    chart = Chart({"height": 100, "layer": []}, "loss", {"<a>": "training"})
    for shown in (layout.figure("Loss", chart), layout.framed("Loss", chart)):
        assert '<div class="lab-chart" role="img" aria-label="Loss. Training: &lt;a&gt;."' in shown
        assert "<summary>Values: Loss</summary>" in shown


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
