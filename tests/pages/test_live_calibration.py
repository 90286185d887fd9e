"""The panel that every page that predicts has: which ways are calibrated, and what is said of them."""

from types import SimpleNamespace

import pytest

from lib.experiments import live_calibration as experiment
from lib.pages import live_calibration as page
from lib.pages import streaming
from lib.pages.stage import Stage
from lib.pages.url_state import Address
from lib.storage.store import Store
from tests.experiments.test_live_calibration import invented


@pytest.fixture
def stage(tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "measure_trials", invented)
    return Stage(None, Store(tmp_path / "results.sqlite"))  # pyright: ignore[reportArgumentType]


@pytest.fixture
def shown(monkeypatch):
    found = []
    monkeypatch.setattr(streaming.mo.output, "replace", lambda html: found.append(html.text))
    return found


PANEL = SimpleNamespace(text="the panel")


def test_every_way_has_an_address_of_its_own():
    assert len(page.by_address()) == len(experiment.ways())
    assert "jax-epoch/cpu/together" in page.by_address()


@pytest.mark.slow
def test_the_cheap_ways_are_calibrated_on_their_own_and_the_others_by_choice(stage, shown):
    page.show("any", stage, page.panel("any", Address(), stage), PANEL)  # pyright: ignore[reportArgumentType]
    assert "the panel" in shown[-1]
    assert "This machine is calibrated for" in shown[-1]
    assert "<b>Done</b>" in shown[-1]
    chosen = page.panel("any", Address(arguments={"any.ways": "jax-epoch/cpu"}), stage)
    page.show("any", stage, chosen, PANEL)  # pyright: ignore[reportArgumentType]
    assert "<b>Saved result</b>" in shown[-1], "nothing is missing for it"


def test_a_way_that_is_not_here_is_refused_in_a_sentence(stage, shown):
    page.show("any", stage, SimpleNamespace(value={"ways": ["abacus/cpu"], "again": 0, "stop": 0}), PANEL)  # pyright: ignore[reportArgumentType]
    assert "expected some of" in shown[-1].lower()
