"""Links between notebooks, for each way of serving them."""

import re
import shutil
import subprocess
import sys

import pytest

from lib import ROOT
from lib.sweeps.experiments import published
from lib.ui.heading import heading
from lib.ui.notebooks import FIRST, NOTEBOOKS, SERVED, STATIC, link, navigation, notebook_of, present_file, present_path
from lib.ui.presets import listed_presets
from lib.ui.url_state import Address


@pytest.mark.parametrize(
    ("served", "address"),
    [("edit", "/?file=notebooks/claims.py&amp;view-as=present"), ("run", "/claims/"), (STATIC, "claims.html")],
)
def test_links_use_the_address_of_each_way_of_serving(served, address):
    assert link("claims", {SERVED: served}) == f'<a href="{address}">Claims</a>'


def test_static_pages_have_no_links_with_settings_and_unserved_ones_none():
    assert link("claims", {}) == "Claims"
    assert navigation("claims", {}) == ""
    assert link("claims", {SERVED: STATIC}, "claims.size=8") == "Claims"
    assert listed_presets({SERVED: STATIC}) == ""
    shown = navigation(FIRST.name, {SERVED: STATIC})
    assert re.findall(r'href="([^"]+)"', shown) == ["index.html", *(one.file_name for one in NOTEBOOKS[1:])]


@pytest.mark.parametrize("name", ["anatomy_of_a_step", "traps"])
def test_a_former_name_leads_to_the_current_notebook(name):
    now = notebook_of("inside_a_step")
    assert notebook_of(name) is now
    assert present_path(f"/{name}") == present_path(f"/{name}/") == now.path
    assert present_file(f"notebooks/{name}.py") == now.file
    assert link(name, {SERVED: "run"}, "traps.size=8") == f'<a href="{now.path}?traps.size=8">{now.title}</a>'


def test_names_are_unique_and_other_addresses_unchanged():
    names = [name for one in NOTEBOOKS for name in (one.name, *one.former)]
    assert len(names) == len(set(names))
    assert [present_path(one) for one in ("/", "/enter", "/claims/ws")] == ["/", "/enter", "/claims/ws"]
    assert present_file("notebooks/my_own.py") == "notebooks/my_own.py"


def test_navigation_lists_every_notebook_and_marks_the_open_one():
    shown = navigation(FIRST.name, {SERVED: "run"})
    assert shown.count("<li") == len(NOTEBOOKS) + 1
    assert shown.count("<a href") == len(NOTEBOOKS)
    assert '<a href="/">All notebooks</a>' in shown
    assert f'<li aria-current="page">{FIRST.title}</li>' in shown


def test_only_a_teacher_of_a_class_sees_the_teachers_link():
    assert [
        "/teacher/" in navigation(FIRST.name, {SERVED: served}, is_teacher)
        for served, is_teacher in (("run", True), ("run", False), ("edit", True))
    ] == [True, False, False]
    assert "All notebooks" not in navigation(FIRST.name, {SERVED: "edit"}), "the editor has no front page"


def test_notebooks_name_all_articles():
    named = {title for notebook in NOTEBOOKS for title in notebook.articles}
    assert named == {title for name, title in vars(published).items() if name.endswith("_ARTICLE")}


@pytest.mark.parametrize(("served", "there"), [("edit", 9), ("run", 9), (STATIC, 0)])
def test_the_readers_network_is_kept_in_links_to_other_pages(monkeypatch, served, there):
    monkeypatch.setenv(SERVED, served)
    address = Address(arguments={"net.hidden": "64,32", "net.size": "7"})
    shown = heading("claims", "Claims", address)
    assert shown.count("net.hidden=64,32&amp;net.size=7") == there - 2 * bool(there)
    assert ('name="net.hidden" value="64,32"' in shown) == bool(there)
    assert ('name="file" value="notebooks/claims.py"' in shown) == (served == "edit")
    assert "net." not in heading("claims", "Claims", Address()).split("<form")[0], "nothing is said where it is usual"


def test_a_notebook_without_its_project_says_how_to_get_it(tmp_path):
    says = "this is one file of a project: get all of it, and call `make edit` there"
    assert all(says in path.read_text() for path in (ROOT / "mnist_training.py", *(ROOT / "notebooks").glob("*.py")))
    alone = shutil.copy(ROOT / "notebooks" / "claims.py", tmp_path)
    done = subprocess.run([sys.executable, alone], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert says in done.stderr
