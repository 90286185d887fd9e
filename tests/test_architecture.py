"""The house: a room knows only the rooms below it, and marimo and altair stay upstairs. Read from the syntax trees."""

import ast
from importlib import import_module
from itertools import chain

import pytest

from docs.draw_architecture import FLOORS, PAGE, arrows, drawn, imports, modules, room
from lib import ROOT

MODULES, ARROWS = modules(), arrows()
ROOMS = {name: floor for floor, rooms in enumerate(FLOORS) for name in rooms}


def test_every_module_is_in_a_room():
    assert {room(module) for module in MODULES} - {""} == set(ROOMS)


@pytest.mark.parametrize("module", sorted(ARROWS))
def test_no_arrow_runs_up(module):
    floor = ROOMS.get(room(module), -1)
    up = [
        other
        for other in ARROWS[module]
        if room(other) not in ("", room(module)) and ROOMS[room(other)] >= floor and not beside(module, other)
    ]
    assert up == [], f"{module} is on floor {floor}; what it needs of these belongs on a lower one"


def beside(module: str, other: str) -> bool:
    """Whether they are on one floor, and the other's room stands before this one's."""
    rooms = FLOORS[ROOMS[room(module)]]
    return room(other) in rooms and rooms.index(room(other)) < rooms.index(room(module))


def test_there_is_no_circle():
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " → ".join([*path[path.index(module) :], module])
        if module not in done:
            for other in ARROWS[module]:
                visit(other, (*path, module))
            done.add(module)

    for module in ARROWS:
        visit(module, ())


@pytest.mark.parametrize(("library", "rooms"), [("marimo", {"pages"}), ("altair", {"views", "pages"})])
def test_the_page_s_libraries_stay_upstairs(library, rooms):
    who = {
        name for name, path in MODULES.items() if any(one.split(".")[0] == library for one in imports(path, MODULES))
    }
    assert who, "somebody needs it"
    assert {module for module in who if room(module) not in rooms} == set()


def test_a_name_stands_once_on_a_floor():
    for rooms in FLOORS:
        names = [module.split(".")[-1] for module in MODULES if room(module) in rooms and module.count(".") > 1]
        assert sorted(names) == sorted(set(names))


def test_a_notebook_has_one_name_on_three_floors():
    notebooks = {path.stem for path in chain(ROOT.glob("notebooks/*.py"), [ROOT / "mnist_training.py"])}
    assert {name for name in notebooks if f"lib.pages.{name}" not in MODULES} == set()


@pytest.mark.parametrize(
    "notebook", [*ROOT.glob("notebooks/*.py"), ROOT / "mnist_training.py"], ids=lambda path: path.stem
)
def test_what_a_notebook_imports_is_there(notebook):
    """No other check reads the cells of a notebook before somebody opens it."""
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


def test_the_picture_is_of_today_s_imports():
    assert PAGE.read_text() == drawn(), "run `python -m docs.draw_architecture`"


# About what several modules of a room do together.
TOGETHER = {
    "backends": {"backends"},
    "storage": {"import"},
    "views": {"contrast"},
    "pages": {
        "browser",
        "browser_compare",
        "browser_export",
        "browser_for_everybody",
        "browser_layout",
        "browser_navigation",
        "browser_notebooks",
        "browser_single_operations",
        "browser_trace",
        "browser_what_would_help",
        "class_attacks",
        "behind_a_proxy",
        "page_css",
        "viewers",
    },
}


@pytest.mark.parametrize(
    "file", sorted(ROOT.glob("tests/*/test_*.py")), ids=lambda file: f"{file.parent.name}/{file.stem}"
)
def test_tests_stand_in_the_room_of_what_they_test(file):
    inside, name = file.parent.name, file.stem.removeprefix("test_")
    if inside == "pages" and name not in TOGETHER["pages"]:
        name = name.removeprefix("browser_")  # of one page
    if inside in ("deploy", "benchmarks"):  # beside lib
        assert (ROOT / inside).is_dir()
    else:
        within = {"backends": ("backends.stacked", "backends.webgpu"), "data": ("data.own",)}
        rooms = (inside, *within.get(inside, ()))
        assert any(f"lib.{room}.{name}" in MODULES for room in rooms) or name in TOGETHER.get(inside, ())
