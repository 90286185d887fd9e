"""The page's style sheet as text: rules that slow every reader's browser down without any error."""

import re

from lib import ROOT

CSS = re.sub(r"/\*.*?\*/", "", (ROOT / "lib/ui/page.css").read_text(), flags=re.S)
SELECTORS = [
    selector.strip()
    for rule in re.findall(r"([^{}]+)\{", CSS)
    if not rule.strip().startswith("@")
    for selector in re.split(r",(?![^(]*\))", rule)
]


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
