"""Measures the size of the project; `make check` fails if a count exceeds its limit.

    python -m docs.house

Limits are the lowest counts reached: lower a limit when its count falls, and never raise one.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator

from lib import ROOT

NOTEBOOK = ROOT / "mnist_training.py"
LIMITS = {
    "statements in lib": 21_944,
    "real ones, without imports and docstrings": 18_191,
    "modules in lib": 126,
    "classes in lib": 312,
    "class names with two meanings": 0,
    "stations from slider to chart": 10,
    "lines of mnist_training.py": 205,
    "cells": 18,
    "lines of the longest cell": 6,
    "names that a cell takes": 2,
    "names that cells share": 10,
    "lines of tests": 27_928,
    "words of docs and README": 8_664,
}


def rows() -> dict[str, int]:
    """Return the current counts, named as in `LIMITS`."""
    trees = {path: ast.parse(path.read_text()) for path in (ROOT / "lib").rglob("*.py")}
    every = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    imports = sum(isinstance(node, ast.Import | ast.ImportFrom) for node in every)
    docstrings = sum(map(_docstrings, trees.values()))
    classes = [node.name for node in every if isinstance(node, ast.ClassDef)]
    cells = list(_cells())
    architecture = (ROOT / "docs/architecture.md").read_text()
    documents = (*ROOT.glob("docs/*.md"), ROOT / "README.md", *ROOT.glob("deploy/*.md"))
    return {
        "statements in lib": len(every),
        "real ones, without imports and docstrings": len(every) - imports - docstrings,
        "modules in lib": len(trees),
        "classes in lib": len(classes),
        "class names with two meanings": sum(n > 1 for n in Counter(name.lstrip("_") for name in classes).values()),
        "stations from slider to chart": len(re.findall(r"^\d+\. `", architecture, re.MULTILINE)),
        "lines of mnist_training.py": len(NOTEBOOK.read_text().splitlines()),
        "cells": len(cells),
        "lines of the longest cell": max(map(_code_lines, cells)),
        "names that a cell takes": max(len(cell.args.args) for cell in cells),
        "names that cells share": len({argument.arg for cell in cells for argument in cell.args.args}),
        "lines of tests": sum(len(path.read_text().splitlines()) for path in (ROOT / "tests").rglob("*.py")),
        "words of docs and README": sum(len(path.read_text().split()) for path in documents),
    }


def _docstrings(tree: ast.Module) -> int:
    with_one = (n for n in ast.walk(tree) if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef))
    return sum(ast.get_docstring(node, clean=False) is not None for node in with_one)


def _cells() -> Iterator[ast.FunctionDef]:
    for node in ast.parse(NOTEBOOK.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            yield node


def _code_lines(cell: ast.FunctionDef) -> int:
    """Count the lines of a cell's body, without prose and the `return` that marimo generates."""
    prose = [node for node in ast.walk(cell) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    long = sum((node.end_lineno or node.lineno) - node.lineno for node in prose)
    *body, last = cell.body
    end = body[-1].end_lineno if body and isinstance(last, ast.Return) else last.end_lineno
    return (end or cell.lineno) - cell.lineno - long


def main() -> int:
    """Print the counts, and return how many exceed their limit."""
    above = 0
    for name, count in rows().items():
        over = count > LIMITS[name]
        above += over
        print(f"{name:45}{count:7,} {'>' if over else '≤'} {LIMITS[name]:,}")
    if above:
        print("The house has grown: remove what a new thing replaces.", file=sys.stderr)
    return above


if __name__ == "__main__":
    raise SystemExit(min(main(), 1))
