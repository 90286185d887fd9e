"""The house: a room knows only the rooms below it, and marimo and altair stay upstairs. Read from the syntax trees."""

import ast
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from lib import ROOT

# Low to high; the rooms of a floor do not know each other, but for those of a line in the order in which they stand there.
FLOORS = (
    ("spec", "formatting", "cache_folder", "once", "hardware"),
    ("data", "timing"),
    ("backends",),
    ("profiling", "storage"),
    ("workers",),
    ("sweeps",),
    ("experiments",),
    ("views",),
    ("pages",),
    ("cli",),
)
ROOMS = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
MODULES = sorted((ROOT / "lib").rglob("*.py"))


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path) -> Iterator[str]:
    """Names of what a module imports, anywhere in it; of what it takes from a package, the module where it is one."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in KNOWN else node.module


KNOWN = {name_of(path) for path in MODULES}
ARROWS = {name_of(path): sorted({one for one in imports(path) if one in KNOWN}) for path in MODULES}


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def test_every_module_is_in_a_room():
    assert {room(module) for module in KNOWN} - {""} == set(ROOMS)


@pytest.mark.parametrize("module", sorted(ARROWS))
def test_no_arrow_runs_up(module):
    floor = ROOMS.get(room(module), -1)
    up = [other for other in ARROWS[module] if room(other) not in ("", room(module)) and ROOMS[room(other)] >= floor and not beside(module, other)]  # fmt: skip
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
    who = {name_of(path) for path in MODULES if any(one.split(".")[0] == library for one in imports(path))}
    assert who, "somebody needs it"
    assert {module for module in who if room(module) not in rooms} == set()


def test_a_name_stands_once_on_a_floor():
    for rooms in FLOORS:
        names = [module.split(".")[-1] for module in KNOWN if room(module) in rooms and module.count(".") > 1]
        assert sorted(names) == sorted(set(names))


def test_a_notebook_has_one_name_on_three_floors():
    notebooks = {path.stem for path in chain(ROOT.glob("notebooks/*.py"), [ROOT / "mnist_training.py"])}
    assert {name for name in notebooks if f"lib.pages.{name}" not in KNOWN} == set()
