"""Draws the rooms of `lib/` from the imports into docs/architecture.md; a test says when the picture is stale."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from lib import ROOT

PAGE = ROOT / "docs" / "architecture.md"
# Low to high; a room knows those of lower floors, and those before it on its own.
FLOORS = (
    ("formatting", "cache_folder", "once"),
    ("model",),
    ("timing",),
    ("sweeps",),
    ("ui",),
    ("labs", "site"),
    ("cli",),
)
_PICTURE = re.compile(r"(?<=```mermaid\n).*?(?=```)", re.DOTALL)


def modules() -> dict[str, Path]:
    """All modules of `lib`, by name; a package by its own."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted((ROOT / "lib").rglob("*.py"))
    }


def imports(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Names of what a module imports, anywhere in it; of what it takes from a package, the module where it is one."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in known else node.module


def arrows() -> dict[str, list[str]]:
    """Of each module, the modules of `lib` that it imports."""
    known = modules()
    return {name: sorted({one for one in imports(path, known) if one in known}) for name, path in known.items()}


def room(module: str) -> str:
    """The room of a module; empty for `lib` itself."""
    return module.split(".")[1] if "." in module else ""


def picture() -> str:
    """A Mermaid graph: a node a room with the number of its modules, an arrow where a module of one imports one of
    another.

    Arrows that follow from others are left out, so that the floors can be seen.
    """
    size: dict[str, int] = {}
    knows: dict[str, set[str]] = {}
    for module, others in arrows().items():
        if here := room(module):
            size[here] = size.get(here, 0) + 1
            knows.setdefault(here, set()).update({room(other) for other in others} - {"", here})
    label = {name: f"{name}/ ({size[name]})" if (ROOT / "lib" / name).is_dir() else f"{name}.py" for name in size}
    nodes = [f'  {name}["{label[name]}"]\n' for floor in reversed(FLOORS) for name in floor]
    reach = {name: _reached(name, knows) for name in knows}
    drawn = [
        f"  {name} --> {other}\n"
        for name in sorted(knows)
        for other in sorted(knows[name])
        if not any(other in reach[between] for between in knows[name] - {other})
    ]
    return "graph TD\n" + "".join(nodes + drawn)


def _reached(name: str, knows: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = set(knows[name])
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting |= knows[one]
    return found


def drawn() -> str:
    """The page with the picture of today's imports."""
    return _PICTURE.sub(lambda _: picture(), PAGE.read_text())


if __name__ == "__main__":
    PAGE.write_text(drawn())
