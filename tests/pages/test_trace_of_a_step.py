"""The page of traces: who may name a path, what is shown of a choice, and what a part may be."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from lib.experiments.trace_of_a_step import shipped
from lib.pages import trace_of_a_step as page
from lib.pages.stage import Stage
from lib.pages.url_state import Address


@pytest.fixture
def mode(monkeypatch):
    def served_as(name):
        monkeypatch.setattr(page.mo, "app_meta", lambda: SimpleNamespace(mode=name, request=None))

    return served_as


def test_a_path_is_read_for_who_edits_and_never_for_a_viewer(mode):
    """Whatever a browser sends in place of the field that it does not have."""
    said = {"files": [SimpleNamespace(name="a.json", contents=b"{}")], "path": " /etc/passwd "}
    mode("run")
    assert page.files_of(said) == (("a.json", b"{}"),)
    assert "path" not in page.drop().elements
    mode("edit")
    assert page.files_of(said) == (("a.json", b"{}"), ("passwd", Path("/etc/passwd")))
    assert "path" in page.drop().elements


def test_nothing_brought_is_nothing_to_read(mode):
    mode("edit")
    assert page.files_of({"files": None, "path": ""}) == ()


def test_the_project_s_traces_are_shown_and_compared_at_once():
    panel = page.file_panel(Address(), (), None, page.Choices())
    assert panel.value["trace"] == shipped()[0].title
    text = page.show_file(panel, (), None).text
    assert "recorded by this project" in text
    assert "kernels run" in text
    told = page.compare(page.compare_panel((), None, page.Choices()), (), None).text
    assert "A step of the second takes" in told


def test_what_was_brought_comes_first():
    brought = (shipped()[2],)
    assert page.file_panel(Address(), brought, None, page.Choices()).value["trace"] == shipped()[2].title
    live = shipped()[1]
    assert page.compare_panel((), live, page.Choices()).value["after"] == f"{live.title} (2)"


def test_a_trace_stays_chosen_while_another_is_profiled_and_new_files_come_first():
    choices, live = page.Choices(), shipped()[1]
    brought = (shipped()[0],)

    def chosen(brought, live):
        field = page.file_panel(Address(), brought, live, choices).elements["trace"]
        return field, field.value

    field, _ = chosen((), None)
    field._update([shipped()[2].title])
    assert chosen((), live)[1] == shipped()[2].title
    assert page.compare_panel((), live, choices).value["before"] == shipped()[0].title
    assert chosen(brought, live)[1] == shipped()[0].title, "what was brought is shown"


def test_files_that_were_cleared_are_shown_no_longer(mode, monkeypatch):
    mode("run")
    monkeypatch.setattr(page.mo.output, "replace", lambda _: None)
    stage, told = Stage(None, None), []  # pyright: ignore[reportArgumentType]
    nothing = SimpleNamespace(value={"files": ()}, elements={})
    page.read(stage, nothing, told.append)  # pyright: ignore[reportArgumentType]
    assert told == [], "none were there"
    stage.running = SimpleNamespace()  # pyright: ignore[reportAttributeAccessIssue]
    page.read(stage, nothing, told.append)  # pyright: ignore[reportArgumentType]
    assert told == [()]


def test_a_choice_that_is_no_more_is_a_sentence():
    panel = page.file_panel(Address(), (), None, page.Choices())
    panel.elements["trace"]._value = "gone"
    panel._value = {"trace": "gone", "part": [0, 100]}
    assert "Choose a trace." in page.show_file(panel, (), None).text


@pytest.mark.parametrize(
    ("ends", "part"), [((20, 60), (0.2, 0.6)), ((50, 50), (0.45, 0.55)), ((100, 100), (0.95, 1)), ((0, 0), (0, 0.05))]
)
def test_a_part_is_never_empty(ends, part):
    assert page._part(ends) == pytest.approx(part)


def test_settings_that_cannot_be_used_are_refused_on_the_page(monkeypatch):
    shown = []
    monkeypatch.setattr(page, "refuse", lambda _stage, _controls, error: shown.append(str(error)))
    panel = SimpleNamespace(value={"by": "jax-step/cpu", "size": 32, "hidden": "x", "part": [0, 100], "again": 0})
    page.live(Stage(None, None), panel, SimpleNamespace(text=""), shown.append)  # pyright: ignore[reportArgumentType]
    assert len(shown) == 1
    assert "hidden layers: expected widths" in shown[0]
