"""The sections that docs/mission.md names exist, and it names every section of every notebook."""

import ast
import re

import pytest

from lib import ROOT
from lib.ui.notebooks import NOTEBOOKS, OF_A_CLASS_SITE, Notebook

NAMED = {
    (name, heading)
    for name, headings in re.findall(r"`(\w+)`((?:, “[^”]+”)+)", (ROOT / "docs/mission.md").read_text())
    for heading in re.findall(r"“([^”]+)”", headings)
}


def headings(notebook: Notebook) -> set[str]:
    """Return section headings without numbers, and every string in the notebook's code, among them its title."""
    text = [
        node.value
        for node in ast.walk(ast.parse((ROOT / notebook.file).read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return {*text, *re.findall(r"^ *## (?:\d+ · )?(.+)$", "\n".join(text), re.MULTILINE)}


@pytest.mark.parametrize(("name", "heading"), sorted(NAMED))
def test_a_section_of_the_mission_exists(name, heading):
    answers = [one for one in OF_A_CLASS_SITE if name in (one.name, *one.former)]
    assert answers, f"no notebook is or was called {name}"
    assert heading in headings(answers[0]), f"no heading “{heading}” in {answers[0].file}"


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda one: one.name)
def test_every_section_serves_the_mission(notebook):
    numbered = re.findall(r"^ *## \d+ · (.+)$", (ROOT / notebook.file).read_text(), re.MULTILINE)
    assert set(numbered) - {heading for _, heading in NAMED} == set(), "a row of docs/mission.md"
