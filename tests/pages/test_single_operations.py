"""The sections of the notebook on single operations: one mechanism, whose parts fit one another."""

from types import SimpleNamespace

import pytest

from lib.experiments.single_operations import OperationPoint
from lib.pages import single_operations as page
from lib.pages import streaming
from lib.pages.single_operations import Asked
from lib.pages.stage import Stage
from lib.pages.url_state import Address
from lib.storage.store import Store


@pytest.mark.slow
@pytest.mark.parametrize("name", page.sections())
def test_a_section_paints_before_anything_is_measured_and_where_nothing_could_be(name, tmp_path):
    stage = Stage(None, Store(tmp_path / "results.sqlite"))  # pyright: ignore[reportArgumentType]
    section = page.sections()[name]
    values = section.controls.checked(page.panel(name, Address(), stage).value)
    todo = section.tasks(values)
    assert todo
    failed = [OperationPoint(task, why_not="the worker ended") for task in todo]
    empty, full = (section.paint(Asked(values, todo, points, stage.store)) for points in ([], failed))
    assert empty.figures.keys() == full.figures.keys(), "the figures keep their places"
    assert (empty.sentence, full.sentence) == ("", ""), "nothing is said of what was not measured"


def test_a_value_that_is_not_offered_is_refused_in_place_of_the_figures(monkeypatch):
    shown = []
    monkeypatch.setattr(streaming.mo.output, "replace", shown.append)
    panel = SimpleNamespace(value={"size": 3, "again": 0, "stop": 0})
    page.show("first", Stage(None, None), panel, SimpleNamespace(text="the panel"))  # pyright: ignore[reportArgumentType]
    (refused,) = shown
    assert "the panel" in refused.text
    assert "Expected one of" in refused.text or "expected one of" in refused.text
