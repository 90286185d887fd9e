"""The page of remedies: what it refuses, what a press asks for, and what it says before anything is calibrated."""

from types import SimpleNamespace

import pytest

from lib.backends.registry import Runtime
from lib.experiments import live_calibration, what_would_help
from lib.experiments.calibration import Trained
from lib.experiments.what_would_help import Applied
from lib.pages import streaming
from lib.pages import what_would_help as page
from lib.pages.stage import Stage
from lib.pages.url_state import Address
from lib.prediction.remedies import Remedy
from lib.storage.store import Store
from lib.workers.notes import State
from tests.experiments.test_live_calibration import invented, run

CONTROLS = SimpleNamespace(text="the panel")


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """One whose machine is calibrated at once, and whose remedies are applied at once."""
    monkeypatch.setattr(live_calibration, "measure_trials", invented)
    return Stage(None, Store(tmp_path / "results.sqlite"))  # pyright: ignore[reportArgumentType]


@pytest.fixture
def shown(monkeypatch):
    found = []
    monkeypatch.setattr(streaming.mo.output, "replace", lambda html: found.append(html.text))
    return found


@pytest.fixture
def applied(monkeypatch):
    """What was asked for, call by call; each is done at once."""
    found = []

    def apply(_question, _by, chosen, *_):
        found.append(list(chosen))
        yield from map(Applied, chosen)

    monkeypatch.setattr(what_would_help, "apply", apply)
    return found


class Panel:
    """The page's panel, whose values a test sets as a browser does."""

    def __init__(self, stage):
        self._panel = page.panel(Address(), stage)
        self.value = dict(self._panel.value)

    def __getitem__(self, name):
        return self._panel[name]


def showing(stage):
    """What shows the page, with whatever has been pressed or moved since."""
    stage.streams = False
    panel, changes = Panel(stage), page.news(stage)

    def show(**values):
        panel.value |= values
        page.show(stage, changes, panel, CONTROLS)  # pyright: ignore[reportArgumentType]

    return show


def test_before_anything_is_calibrated_the_page_says_so_where_the_remedies_will_be(stage, shown, applied):
    showing(stage)()
    assert "JAX, one call a step is not calibrated on this machine" in shown[-1]
    assert "Not running" in shown[-1] or "Done" in shown[-1]


def test_a_script_asks_for_all_remedies_and_a_page_for_none(stage, shown, applied):
    showing(stage)()
    assert applied == [list(Remedy)]


def test_what_today_s_step_and_the_others_consist_of_is_there_on_demand(stage, shown, applied):
    run(live_calibration.live_in(stage.store.path), [Trained(Runtime(key)) for key in ("jax-step", "jax-epoch")])
    showing(stage)()
    parts = shown[-1].rpartition("<details")[2].partition("</details>")[0]
    for name in ("Today", "Compile the epoch", "A larger batch", "calls by the host", "products"):
        assert name in parts
    assert "Another backend" not in parts, "none is calibrated"


def test_a_press_asks_for_its_remedy_alone_and_one_button_for_all(stage, shown, applied):
    show = showing(stage)
    show()
    show(apply_epoch=1)
    show(apply_batch=1)
    show(again=1)
    show()
    assert applied == [list(Remedy), [Remedy.EPOCH], [Remedy.BATCH], list(Remedy)], (
        "what is shown again is not asked again"
    )


def test_what_was_waited_for_is_not_lost_by_another_press_and_is_by_another_question(stage, shown):
    asked, none = ("a question", "a way"), (0,) * (len(page.BUTTONS) + 1)
    first = (0, 1, *none[2:])
    stage.asked, stage.began_with = (asked, none), ([Remedy.NETWORKS, Remedy.DATA],)
    stage.running = SimpleNamespace(
        view=lambda: SimpleNamespace(items=[Applied(Remedy.NETWORKS)], state=State.MEASURING)
    )
    assert page._chosen(stage, asked, first) == [Remedy.DATA, Remedy.EPOCH]
    assert page._chosen(stage, ("another", "a way"), first) == [Remedy.EPOCH]
    stage.running = SimpleNamespace(view=lambda: SimpleNamespace(items=[], state=State.STOPPED))
    assert page._chosen(stage, asked, first) == [Remedy.EPOCH]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"hidden": "12a"}, "Hidden layers: expected widths"),
        ({"networks": 0}, "expected a whole number from 1 to 100000, got 0"),
        ({"by": "cupy-image/gpu"}, "expected one of"),
        ({"size": 3}, "expected one of"),
    ],
)
def test_what_cannot_be_used_is_one_sentence_in_place_of_the_remedies(stage, shown, values, words):
    showing(stage)(**values)
    assert len(shown) == 1
    assert words in shown[0]
    assert "the panel" in shown[0]


@pytest.mark.slow
def test_a_calibrated_machine_answers_and_each_remedy_that_exists_has_its_button(stage, shown, applied):
    run(live_calibration.live_in(stage.store.path), live_calibration.unasked())
    showing(stage)()
    assert "JAX, one call a step, batch size 32: a step is predicted to take" in shown[-1]
    assert "Its step is compiled already." in shown[-1]
    assert "Not calibrated yet: JAX, one call an epoch, many networks at once." in shown[-1]
    assert [name in shown[-1] for name in ("Compile the epoch", "A larger batch", "Another backend")] == [True] * 3
    assert shown[-1].count("marimo-button") >= 3
