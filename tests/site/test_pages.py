"""The front page's HTML: every notebook, and examples if a server can answer them."""

import re
import xml.etree.ElementTree as ElementTree
from html import unescape

import pytest

from lib import ROOT
from lib.site.pages import front_page
from lib.ui.notebooks import FIRST, NOTEBOOKS
from lib.ui.presets import PRESETS

PICTURES = ROOT / "lib/site/pictures"


def text(computed: str = "") -> str:
    return bytes(front_page(computed).body).decode()


def test_the_front_page_lists_every_notebook_with_its_question():
    page = unescape(text("Machine, 2026-11-01"))
    for notebook in NOTEBOOKS:
        card = re.search(
            rf'<li>.*?<a href="{notebook.file_name}">(.*?)</a></h2><p>(.*?)</p>',
            page.partition('<ul class="notebooks"')[2],
        )
        assert card is not None, notebook.name
        assert notebook.title in page
        assert notebook.question in page
    assert page.count("<li>") == len(NOTEBOOKS)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.name)
def test_a_picture_is_a_drawing_without_figures(notebook):
    """It must not be mistaken for a chart of measurements."""
    drawing = ElementTree.parse(PICTURES / f"{notebook.name}.svg").getroot()
    assert drawing.get("viewBox") == "0 0 80 80"
    assert {path.stem for path in PICTURES.iterdir()} == {notebook.name for notebook in NOTEBOOKS}
    used = {element.tag.rpartition("}")[2] for element in drawing.iter()}
    assert used <= {"svg", "g", "path", "rect", "circle"}


def test_examples_need_a_server_and_the_teachers_link_a_teacher():
    assert 'class="presets"' not in text("Machine, 2026-11-01")
    assert "/teacher/" not in text()
    assert '<a href="/teacher/">' in bytes(front_page(is_teacher=True).body).decode()


@pytest.mark.parametrize("computed", ["", "Machine, 2026-11-01"])
def test_the_front_page_shows_the_answer_and_describes_itself(computed):
    page = text(computed)
    answer = page.partition('class="answer"')[2].partition("</section>")[0]
    assert "The H100 helps only when compiled whole" in answer
    assert answer.count("<li ") >= 10
    assert f'href="{FIRST.file_name if computed else FIRST.path}"' in answer
    assert ".ways-mark" in page.partition("</style>")[0], "its rules come with it"
    assert page.count('name="description"') == page.count('property="og:description"') == 1


def test_every_preset_is_linked():
    page = unescape(text())
    for title, _, query in PRESETS:
        assert f'?{query}">{title}</a>' in page
