"""The frame of an experiment: escaping, reserved space, and parts that are left out when they have nothing to say."""

import re

import pytest

from lib.model.backends.registry import Runtime
from lib.model.data.mnist import Facts
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.messages import State
from lib.ui import layout
from lib.ui.notebooks import SERVED, STATIC
from lib.ui.views.chart import Chart


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


def test_a_software_adapter_is_called_no_gpu():
    assert layout.software([Runtime(), Runtime("webgpu-step", "discrete")]) == layout.software([]) == ""
    said = layout.software([Runtime(), Runtime("webgpu-step", "software")])
    assert "A software adapter computes on the CPU and says nothing about a GPU" in said


def test_a_chart_has_its_text_as_accessible_label():
    chart = Chart({"height": 100, "layer": []}, "loss", {"<a>": "training"})
    for shown in (layout.figure("Loss", chart), layout.framed("Loss", chart)):
        assert '<div class="lab-chart" role="img" aria-label="Loss. Training: &lt;a&gt;."' in shown
        assert "<summary>Values: Loss</summary>" in shown
