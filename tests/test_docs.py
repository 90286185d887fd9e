"""README and docs/ name only existing make targets, modules, benchmarks and files; README is short and shows code."""

import re
from importlib.util import find_spec

import pytest

from benchmarks.__main__ import NAMES
from lib import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md"), ROOT / "deploy/README.md"]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))


def test_the_readme_is_short_and_shows_a_cell_of_the_first_notebook():
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 500
    (cell,) = re.findall(r"```python\n(.+?)```", text, re.DOTALL)
    assert f"\n\n{cell}\n\n" in (ROOT / "mnist_training.py").read_text()
    assert "```python" in "".join(text.splitlines(keepends=True)[:20]), "on its first screen"


def test_the_readme_quotes_measured_times():
    answer = (ROOT / "README.md").read_text().split("\n## ")[0]
    h100 = (ROOT / "docs/measured.md").read_text().split("### An H100")[1].split("###")[0]
    for way in ("GPU: PyTorch, eager", "GPU: JAX, one call an epoch", "CPU: Numba, zeros left out"):
        (epoch_s,) = re.findall(rf"^\| {way} \| [\d.]+ \| ([\d.]+)", h100, re.MULTILINE)  # batch size 32
        assert f"{epoch_s} s" in answer or f"{float(epoch_s):.2g} s" in answer, way


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_documented_commands_and_files_exist(page):
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
    for file in re.findall(r"`((?:lib|tests|docs|notebooks)/[\w/.]+)`", text):
        assert re.search("LIBRARY|NAME", file) or (ROOT / file).exists(), file


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_have_targets(page):
    text = page.read_text()
    for target, _, anchor in (link.partition("#") for link in re.findall(r"\]\(([^)]+)\)", text)):
        if target.startswith(("http:", "https:")):
            continue
        file = page.parent / target if target else page
        assert file.exists(), target
        heads = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE) if anchor else []
        anchors = [re.sub(r"[^\w -]", "", head).strip().lower().replace(" ", "-") for head in heads]
        assert not anchor or anchor in anchors, f"{target}#{anchor}"


def test_every_benchmark_is_named_in_the_how_to():
    text = (ROOT / "docs/how_to.md").read_text()
    assert [name for name in NAMES if f"`{name}`" not in text and f"BENCH={name}" not in text] == []


def test_the_changelog_has_this_version():
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    text = (ROOT / "CHANGELOG.md").read_text()
    heads = re.findall(r"^## \[(.+?)\]", text, re.MULTILINE)
    assert version
    assert heads[0] == "Unreleased"
    assert version[1] in heads
    kinds = set(re.findall(r"^### (.+)$", text, re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
