"""The worksheet: a sheet for every experiment and every other notebook, with what is trained."""

import re
from html import unescape

import pytest

from lib.pages import mnist_training as page
from lib.pages.notebooks import FIRST, NOTEBOOKS
from lib.pages.worksheet import worksheet
from lib.spec import RATE_STEPS
from lib.views.worksheet import QUESTIONS, Sheet, as_html


@pytest.fixture(scope="module")
def sheets():
    return unescape(bytes(worksheet().body).decode()).split("<section")[1:]


def test_there_is_a_sheet_for_every_experiment_and_for_every_other_notebook(sheets):
    assert list(QUESTIONS) == list(page.EXPERIMENTS)
    assert len(sheets) == len(QUESTIONS) + len(NOTEBOOKS) - 1
    for one in NOTEBOOKS:
        assert one is FIRST or sum(one.question in sheet for sheet in sheets) == 1


def test_what_is_predicted_and_written_down_is_what_the_page_trains(sheets):
    for sheet, asked in zip(sheets, QUESTIONS.values(), strict=False):
        ticked = re.findall(r"<li>(.*?)</li>", sheet)
        assert ticked == re.findall(r'<th scope="row">(.*?)</th>', sheet)
        assert len(ticked) >= 2, asked.heading
        assert sheet.count("<td></td>") == len(ticked) * len(asked.columns)
    assert all(float(label) in RATE_STEPS for label in re.findall(r"<li>(.*?)</li>", sheets[0]))


def test_a_label_is_escaped():
    assert "<b>" not in as_html([Sheet("<b>", "<b>", "<b>", "<b>", ("<b>",), ("<b>",), ("<b>",))])
