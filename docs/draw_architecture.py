"""Draws the packages of `lib/` and their imports into docs/architecture.md; a test fails if the picture is stale."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from lib import ROOT

PAGE = ROOT / "docs" / "architecture.md"
# Layers, low to high; a package may import from lower layers, and from packages before it in its own.
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
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted((ROOT / "lib").rglob("*.py"))
    }


def imports(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Yield the modules that a file imports anywhere, including `module` in `from package import module`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in known else node.module


def arrows() -> dict[str, list[str]]:
    """Return the modules of `lib` that each module imports."""
    known = modules()
    return {name: sorted({one for one in imports(path, known) if one in known}) for name, path in known.items()}


def room(module: str) -> str:
    """Return the package or top-level module of a module; empty for `lib` itself."""
    return module.split(".")[1] if "." in module else ""


def picture() -> str:
    """Return a Mermaid graph of packages, with their numbers of modules, and of imports between them.

    Imports implied by others are omitted, so that the layers are visible.
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
    """Return the page with the current picture."""
    return _PICTURE.sub(lambda _: picture(), PAGE.read_text())


if __name__ == "__main__":
    PAGE.write_text(drawn())
