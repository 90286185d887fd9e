"""Packages of `lib` import only from layers below; marimo and altair stay at the top. Read from the syntax trees."""

import ast
import runpy
import sys
from graphlib import TopologicalSorter
from importlib import import_module

import pytest

from docs.draw_architecture import FLOORS, PAGE, arrows, drawn, imports, modules, room
from lib import ROOT

MODULES = modules()
ROOMS = {name: (floor, place) for floor, rooms in enumerate(FLOORS) for place, name in enumerate(rooms)}


def test_every_package_has_a_layer():
    assert {room(module) for module in MODULES} - {""} == set(ROOMS)


@pytest.fixture(scope="module")
def imported():
    return arrows()


@pytest.mark.slow
def test_no_import_points_up(imported):
    """Move what a module needs to a lower floor, or to a room further left on its own."""
    up = [
        f"{module} → {other}"
        for module in sorted(imported)
        for other in imported[module]
        if room(other) not in ("", room(module)) and ROOMS[room(other)] > ROOMS.get(room(module), (-1, 0))
    ]
    assert up == []


def test_imports_have_no_cycle(imported):
    TopologicalSorter(imported).prepare()  # raises CycleError, which names the modules


@pytest.mark.slow
@pytest.mark.parametrize(("library", "rooms"), [("marimo", {"ui", "labs", "site"}), ("altair", {"ui", "labs"})])
def test_only_upper_layers_import_marimo_and_altair(library, rooms):
    who = {
        name for name, path in MODULES.items() if any(one.split(".")[0] == library for one in imports(path, MODULES))
    }
    assert who, "somebody needs it"
    assert {module for module in who if room(module) not in rooms} == set()


@pytest.mark.parametrize(
    "notebook", [*ROOT.glob("notebooks/*.py"), ROOT / "mnist_training.py"], ids=lambda path: path.stem
)
def test_imports_of_notebooks_exist(notebook):
    """No other check imports what a notebook's cells need."""
    taken = [
        (node.module, alias.name)
        for node in ast.walk(ast.parse(notebook.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("lib")
        for alias in node.names
    ]
    assert taken
    missing = [
        f"{module}.{name}"
        for module, name in taken
        if f"{module}.{name}" not in MODULES and not hasattr(import_module(module), name)
    ]
    assert missing == []


@pytest.mark.parametrize(
    "module",
    [path for folder in ("lib/labs", "lib/ui", "notebooks") for path in ROOT.glob(f"{folder}/**/*.py")],
    ids=lambda one: "/".join(one.parts[-2:]),
)
def test_labels_have_no_values(module):
    """Labels in marimo are Markdown, which lets HTML through."""
    put = [
        ast.unparse(part.value)
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.keyword) and node.arg == "label" and isinstance(node.value, ast.JoinedStr)
        for part in node.value.values
        if isinstance(part, ast.FormattedValue)
    ]
    assert put == []


@pytest.mark.slow
def test_the_drawing_shows_the_current_imports():
    assert PAGE.read_text() == drawn(), "run `python -m docs.draw_architecture`"


def test_windows_is_refused_in_one_sentence(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ImportError, match=r"expected Linux or macOS, got Windows itself; install WSL"):
        runpy.run_path(str(ROOT / "lib" / "__init__.py"))
    monkeypatch.setattr(sys, "platform", "darwin")
    assert runpy.run_path(str(ROOT / "lib" / "__init__.py"))["ROOT"] == ROOT
