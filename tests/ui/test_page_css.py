"""The style sheets as text: their tokens, and rules that slow every reader's browser down without any error."""

import re

import pytest

from lib import ROOT

CSS = re.sub(r"/\*.*?\*/", "", (ROOT / "lib/ui/page.css").read_text(), flags=re.S)
SELECTORS = [
    selector.strip()
    for rule in re.findall(r"([^{}]+)\{", CSS)
    if not rule.strip().startswith("@")
    for selector in re.split(r",(?![^(]*\))", rule)
]


@pytest.mark.parametrize("name", ["lib/ui/page.css", "lib/site/pages.css", "lib/site/in_your_browser/page.css"])
def test_sizes_of_type_and_space_are_tokens(name):
    """Except reserved room (above 3 rem), marks' offsets (negative), and headings of pages without marimo."""
    rules = re.sub(
        r"/\*.*?\*/|:root \{[^}]*\}|\.dark \{[^}]*\}|\bh[12] \{[^}]*\}", "", (ROOT / name).read_text(), flags=re.S
    )
    assert len(re.findall(r"var\(--(?:text|space)-", rules)) > 20
    spaces = re.findall(r"(?:margin|padding|gap|font-size)[a-z-]*: ([^;}]+)", rules)
    sizes = [float(size) for space in spaces if "clamp" not in space for size in re.findall(r"(-?[\d.]+)rem", space)]
    assert not [size for size in sizes if 0 < size <= 3]
    assert name != "lib/ui/page.css" or not re.search(r"#[0-9a-f]{3,6}\b", rules), "colours are tokens"


def test_no_has_rule_applies_to_all_descendants():
    """After `:has(…)`, a selector that matches any element (`*`, `:first-child`) makes the browser recompute the styles
    of all elements at each change: two such rules doubled the wait for the page's first chart. After a page-wide
    `:has(…)`, one that matches many elements recomputes theirs: it delayed each saved result by 30 ms."""
    below = {selector: re.split(r":has\((?:[^()]|\([^()]*\))*\)", selector)[-1] for selector in SELECTORS}
    having = {selector: rest.split()[-1] for selector, rest in below.items() if ":has(" in selector and rest.split()}
    assert len(having) >= 2, "the rules are found"
    assert not [selector for selector, last in having.items() if re.match(r"\*|:(?!is\()", last)]
    page_wide = {selector: last for selector, last in having.items() if re.match(r"(:root|html|body):has", selector)}
    assert list(page_wide.values()) == ["#App"], f"expected one element alone after each, got {page_wide}"
