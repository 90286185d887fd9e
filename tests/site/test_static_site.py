"""The files of the static site: what each says of its figures, and its links, which need no server."""

import re
from html import unescape

import pytest

from lib.labs.your_gpu import InBrowser
from lib.model.hardware.machine import this_machine
from lib.site.static_site import (
    CannotWrite,
    begin,
    write_failure,
    write_former,
    write_front_page,
    write_notebook,
)
from lib.ui.notebooks import FIRST, IN_BROWSER, NOTEBOOKS, SERVED, STATIC, link, navigation, notebook_of
from lib.ui.presets import listed_presets
from lib.ui.where_computed import static_note, where_and_when

THERE = {SERVED: STATIC}


def test_it_says_on_which_machine_and_day_its_figures_were_computed():
    assert re.search(r", 20\d\d-\d\d-\d\d$", where_and_when())
    assert this_machine().line in where_and_when()
    note = unescape(static_note("claims"))
    assert IN_BROWSER not in note
    assert f'href="{IN_BROWSER}"' in static_note(FIRST.name)
    assert f"Computed on {where_and_when()}" in note
    assert "its controls do not answer" in note


def test_links_lead_to_files_beside_each_other():
    assert link("claims", THERE) == '<a href="claims.html">Claims</a>'
    shown = navigation(FIRST.name, THERE)
    assert '<a href="index.html">All notebooks</a>' in shown
    assert re.findall(r'href="([^"]+)"', shown)[1:] == [one.file_name for one in NOTEBOOKS[1:]]


def test_there_is_no_link_to_settings_that_nothing_would_answer():
    assert link("claims", THERE, "claims.size=8") == "Claims"
    assert listed_presets(THERE) == ""


def test_the_front_page_links_to_every_page_and_offers_no_examples(tmp_path):
    begin(tmp_path / "site")
    written_bytes = write_front_page(tmp_path / "site")
    page = (tmp_path / "site" / "index.html").read_text()
    assert len(page.encode()) == written_bytes
    assert re.findall(r'href="([^"#:]+)"', page) == [IN_BROWSER, *(one.file_name for one in NOTEBOOKS)]
    assert f"as computed on {where_and_when()}" in unescape(page)
    assert "Examples to begin with" not in page
    assert "first figure after" not in page


def test_an_earlier_page_outlives_a_failure(tmp_path):
    write_failure(tmp_path, FIRST.file_name, FIRST.title, "no <room>")
    page = (tmp_path / FIRST.file_name).read_text()
    assert "no &lt;room&gt;" in page
    write_notebook(tmp_path, FIRST, "an earlier page")
    write_failure(tmp_path, FIRST.file_name, FIRST.title, "no room")
    assert (tmp_path / FIRST.file_name).read_text() == "an earlier page"


def test_a_former_name_has_a_page_that_leads_on(tmp_path):
    write_former(tmp_path, notebook_of("inside_a_step"))
    for name in ("anatomy_of_a_step", "traps"):
        assert "url=inside_a_step.html" in (tmp_path / f"{name}.html").read_text()


def test_no_file_is_larger_than_page_hosts_take(tmp_path):
    with pytest.raises(ValueError, match=r"expected at most 25 MiB, which page hosts take, got 26"):
        write_notebook(tmp_path, FIRST, "x" * (26 * 2**20))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_it_wrote_is_written_again(tmp_path):
    assert begin(tmp_path / "site") == begin(tmp_path / "site") > 10e6
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").touch()
    with pytest.raises(CannotWrite, match="earlier site"):
        begin(tmp_path / "other")


def test_what_only_a_server_can_ask_a_browser_for_is_not_begun(monkeypatch):
    monkeypatch.setenv(SERVED, STATIC)
    assert "make run NOTEBOOK=notebooks/your_gpu.py" in InBrowser().show().text
