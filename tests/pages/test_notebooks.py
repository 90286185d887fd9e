"""The way from one notebook to another, by how they are served."""

import pytest

from lib.experiments import published
from lib.pages.notebooks import FIRST, NOTEBOOKS, SERVED, link, navigation, notebook_of


@pytest.mark.parametrize(("served", "address"), [("edit", "/?file=notebooks/traps.py"), ("run", "/traps/")])
def test_a_link_leads_where_the_server_has_the_notebook(served, address):
    assert link("traps", {SERVED: served}) == f'<a href="{address}">How to mistime a step</a>'


def test_a_notebook_alone_has_no_way_to_others():
    assert link("traps", {}) == "How to mistime a step"
    assert navigation("traps", {}) == ""


def test_the_way_names_every_notebook_once_and_marks_the_one_that_is_open():
    shown = navigation(FIRST.name, {SERVED: "run"})
    assert shown.count("<li") == len(NOTEBOOKS)
    assert shown.count("<a href") == len(NOTEBOOKS) - 1
    assert f'<li aria-current="page">{FIRST.title}</li>' in shown


def test_each_notebook_names_the_articles_that_it_follows():
    named = {title for notebook in NOTEBOOKS for title in notebook.articles}
    assert named == {title for name, title in vars(published).items() if name.endswith("_ARTICLE")}
    assert notebook_of("input_pipeline").articles == (published.SLOWER_ARTICLE, published.CREATING_ARTICLE)
