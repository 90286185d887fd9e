"""A class's machines side by side: the sentence counts them, and software is never counted as a GPU."""

from dataclasses import replace

import pytest

from lib.model.spec import Network
from lib.sweeps.experiments.recorded_machines import browsers_in, told_apart
from lib.sweeps.experiments.your_gpu import BrowserAdapter, contests
from lib.sweeps.storage.store import Store
from lib.ui.views import kept_machines as view
from lib.ui.widgets import MeasureInBrowser
from tests.sweeps.experiments.test_your_gpu import CELL, SWIFTSHADER, WHO, keep


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "results.sqlite")


def of(store):
    return contests(told_apart(browsers_in(store)), *CELL)


def test_the_sentence_counts_and_names_those_that_differ(store):
    assert view.sentence([], *CELL) == ""
    for reader, gpu_s in (("a", 0.001), ("b", 0.002), ("c", 0.003)):
        keep(store, replace(WHO, reader=reader), gpu_s, 0.004)
    assert view.sentence(of(store), *CELL) == (
        "With batch size 32 and hidden layers of 16 the GPU wins on 3 of 3 machines, in 0.25 to 0.75 of the"
        " processor's time."
    )
    keep(store, replace(WHO, reader="d", platform="Windows"), 0.008, 0.004)
    keep(store, replace(WHO, reader="e", platform="Android"), 0.004, 0.004)
    keep(store, replace(WHO, reader="f", platform="Linux", clock_s=0.02), 0.003, 0.004)
    keep(store, SWIFTSHADER, 0.02, 0.004)
    keep(store, replace(WHO, reader="g", adapter=None), 0, 0.004)
    said = view.sentence(of(store), *CELL)
    for words in (
        "the GPU wins on 3 of 6 machines",
        "The processor wins on 1, where the GPU takes 2 times as long: apple metal-3 · Windows, Safari 26 · 8 cores.",
        "On 1 both are equally fast: apple metal-3 · Android, Safari 26 · 8 cores.",
        "On 1 it cannot be told: apple metal-3 · Linux, Safari 26 · 8 cores.",
        "1 machine offered software in the place of a GPU",
        "Of 1 machine only one of both devices was kept.",
    ):
        assert words in said


def test_without_a_gpu_nobody_wins(store):
    keep(store, SWIFTSHADER, 0.02, 0.004)
    said = view.sentence(of(store), *CELL)
    assert "wins" not in said
    ((caption, seconds), (_, ratios)) = view.charts(of(store))
    assert "seconds of an epoch" in caption
    rows = [row for chart in (seconds, ratios) for data in chart.spec["datasets"].values() for row in data]
    assert {row["color"] for row in rows} == {view.SOFTWARE_COLOR, view.CPU_COLOR}
    assert {row["filled"] for row in rows if row.get("of") == "software, no GPU"} == {0.0}


def test_each_machine_has_a_row_of_its_own_in_both_charts_and_the_table(store):
    for reader in ("a", "b"):
        keep(store, replace(WHO, reader=reader), 0.001, 0.004)
    keep(store, replace(WHO, reader="c", adapter=None), 0, 0.004)
    found = of(store)
    yours = found[1].machine.records[0].machine
    labels = [view.label(one.machine, yours) for one in found]
    assert len(set(labels)) == 3
    assert labels[1].startswith("yours: apple metal-3")
    for _, chart in view.charts(found, yours):
        assert all(row["machine"] in labels for data in chart.spec["datasets"].values() for row in data)
    table = view.contests_table(found, yours)
    assert table.count("<tr>") == 4
    assert "0.25 (" in table
    assert len(view.charts(found[2:])) == 1, "no ratio without a GPU"


def test_the_colours_are_those_of_the_drawing_above():
    for color in (view.GPU_COLOR, view.CPU_COLOR, view.SOFTWARE_COLOR):
        assert color in str(MeasureInBrowser._esm)
        assert color in view.legend()


def test_other_settings_are_named():
    assert view.elsewhere_note({}) == ""
    assert view.elsewhere_note({(Network((16,)), 32): 2, (Network(()), 1024): 1}) == (
        "Kept with other settings: batch size 32 with hidden layers of 16 (2 machines) and batch size 1,024 with no"
        " hidden layer (1 machine)."
    )


def test_what_a_browser_calls_itself_is_text(store):
    hostile = BrowserAdapter("<img src=x onerror=alert(1)>", "a&b", fallback=False)
    keep(store, replace(WHO, platform="</td><script>", adapter=hostile), 0.001, 0.004)
    shown = view.contests_table(of(store))
    assert "<img" not in shown
    assert "<script" not in shown
    assert "&lt;img src=x onerror=alert(1)&gt;" in shown
