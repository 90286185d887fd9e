"""What README and the pages of docs/ say to type is there: targets of make, modules, benchmarks, files; and README
stays short."""

import re
from importlib.util import find_spec

import pytest

from benchmarks.__main__ import NAMES
from lib import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md"), ROOT / "deploy/README.md"]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))


def test_the_readme_ends():
    assert len((ROOT / "README.md").read_text().split()) <= 900


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_says_to_type_is_there(page):
    text = page.read_text()
    typed = "\n".join(re.findall(r"`([^`\n]+)`", text) + re.findall(r"^    (.+)$", text, re.MULTILINE))
    for targets in re.findall(r"\bmake ((?:[a-z]+ ?)+)", typed):
        assert set(targets.split()) <= TARGETS
    for name in re.findall(r"python3? -m ([\w.]+)", typed):
        assert find_spec(name) is not None, name
    for name in re.findall(r"BENCH=(\w+)", typed):
        assert name in NAMES
    for file in re.findall(r"(?:python |NOTEBOOK=|-r )([\w./-]+\.(?:py|txt))", typed):
        assert (ROOT / file).exists(), file


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_link_leads_somewhere(page):
    text = page.read_text()
    for target, _, anchor in (link.partition("#") for link in re.findall(r"\]\(([^)]+)\)", text)):
        if target.startswith(("http:", "https:")):
            continue
        file = page.parent / target if target else page
        assert file.exists(), target
        heads = (
            [
                re.sub(r"[^\w -]", "", head).strip().lower().replace(" ", "-")
                for head in re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
            ]
            if anchor
            else []
        )
        assert not anchor or anchor in heads, f"{target}#{anchor}"


def test_every_benchmark_is_named_in_the_how_to():
    text = (ROOT / "docs/how_to.md").read_text()
    assert [name for name in NAMES if f"`{name}`" not in text and f"BENCH={name}" not in text] == []


def test_the_changelog_has_this_version():
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    heads = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert version
    assert heads[0] == "Unreleased"
    assert version[1] in heads
    kinds = set(re.findall(r"^### (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
