"""The front page's HTML: every notebook, and a gallery only where there are presets."""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from html import unescape

import pytest

from lib import ROOT
from lib.site.pages import front_page
from lib.ui.notebooks import FIRST, NOTEBOOKS
from lib.ui.presets import PRESETS, Preset

PICTURES = ROOT / "lib/site/pictures"


def text(presets: Sequence[Preset] = ()) -> str:
    return bytes(front_page(presets).body).decode()


def test_it_names_every_notebook_with_its_question():
    page = unescape(text())
    for notebook in NOTEBOOKS:
        card = re.search(
            rf'<li>.*?<a href="{notebook.path}">(.*?)</a></h2><p>(.*?)</p>', page.partition('<ul class="notebooks"')[2]
        )
        assert card is not None, notebook.name
        assert notebook.title in page
        assert notebook.question in page
    assert page.count("<li>") == len(NOTEBOOKS)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.name)
def test_a_picture_is_a_drawing_without_figures(notebook):
    """Nobody may take it for a chart of something that was measured."""
    drawing = ElementTree.parse(PICTURES / f"{notebook.name}.svg").getroot()
    assert drawing.get("viewBox") == "0 0 80 80"
    used = {element.tag.rpartition("}")[2] for element in drawing.iter()}
    assert used <= {"svg", "g", "path", "rect", "circle"}


def test_no_picture_is_left_over():
    assert {path.stem for path in PICTURES.iterdir()} == {notebook.name for notebook in NOTEBOOKS}


def test_without_presets_there_is_no_gallery_and_without_a_teacher_no_link_to_the_teacher_s_page():
    assert 'class="presets"' not in text()
    assert "/teacher/" not in text()
    assert '<a href="/teacher/">' in bytes(front_page(is_teacher=True).body).decode()


@pytest.mark.parametrize("computed", ["", "Machine, 2026-11-01"])
def test_the_answer_stands_before_the_notebooks_and_a_link_says_what_is_behind_it(computed):
    page = bytes(front_page((), computed).body).decode()
    answer = page.partition('class="answer"')[2].partition("</section>")[0]
    assert "One H100 takes" in answer
    assert answer.count("<li ") >= 10
    assert f'href="{FIRST.file_name if computed else FIRST.path}"' in answer
    assert ".ways-mark" in page.partition("</style>")[0], "its rules come with it"
    assert page.count('name="description"') == page.count('property="og:description"') == 1


def test_a_preset_is_a_link_with_its_settings():
    page = text([Preset("Steps that are <too> large", "mnist_training", "rate.epochs=4&rate.count=2")])
    assert '<a href="/mnist_training/?rate.epochs=4&amp;rate.count=2">Steps that are &lt;too&gt; large</a>' in page


def test_every_preset_is_there():
    page = unescape(bytes(front_page().body).decode())
    for preset in PRESETS:
        assert f'?{preset.query}">{preset.title}</a>' in page
