"""The page's style sheet, read as text: what no browser complains of, and every reader waits for."""

import re

from lib import ROOT

CSS = re.sub(r"/\*.*?\*/", "", (ROOT / "lib/ui/page.css").read_text(), flags=re.S)
SELECTORS = [
    selector.strip()
    for rule in re.findall(r"([^{}]+)\{", CSS)
    if not rule.strip().startswith("@")
    for selector in re.split(r",(?![^(]*\))", rule)
]


def test_no_rule_is_for_everything_below_what_has_something():
    """After `:has(…)`, a part that any element may be (`*`, `:first-child`) has a browser compute the styles of all
    elements again at every change: two such rules made the page's first chart wait twice as long. After that of the
    whole page, a part that many elements may be does so for these: it made each kept result wait 30 ms longer."""
    below = {selector: re.split(r":has\((?:[^()]|\([^()]*\))*\)", selector)[-1] for selector in SELECTORS}
    having = {selector: rest.split()[-1] for selector, rest in below.items() if ":has(" in selector and rest.split()}
    assert len(having) >= 2, "the rules are found"
    assert not [selector for selector, last in having.items() if re.match(r"\*|:(?!is\()", last)]
    page_wide = {selector: last for selector, last in having.items() if re.match(r"(:root|html|body):has", selector)}
    assert list(page_wide.values()) == ["#App"], f"expected one element alone after each, got {page_wide}"
