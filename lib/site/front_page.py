"""The front page of the class site and of the static one: every notebook's question and a picture; where a server
computes, also how long its first result takes."""

import functools
import html
from collections.abc import Sequence
from pathlib import Path

from starlette.responses import HTMLResponse

from lib.formatting import sentence
from lib.site.plain_page import plain_page
from lib.ui.notebooks import IN_BROWSER, NOTEBOOKS, STATIC, TEACHERS, Notebook, notebook_of
from lib.ui.presets import PRESETS, Preset

_PICTURES = Path(__file__).with_name("pictures")


def front_page(presets: Sequence[Preset] = PRESETS, computed: str = "", is_teacher: bool = False) -> HTMLResponse:
    """The whole page.

    Args:
        presets: Examples below the notebooks; empty for no gallery of them.
        computed: Where and when the pages of a static site were computed; empty where a server computes them.
        is_teacher: Whether to link the teacher's page, too.
    """
    cards = "".join(_card(notebook, bool(computed)) for notebook in NOTEBOOKS)
    says = (
        f"asks one question. These pages show the answers as computed on {html.escape(computed)}; no server is behind"
        f' them, so their controls do not answer. One page computes: <a href="{IN_BROWSER}">train in your browser</a>.'
        if computed
        else "asks one question, measures the answer on the machine that serves this page, and lets you move what it"
        " depends on."
    )
    teacher = f'<p>You are the teacher here: <a href="{TEACHERS.path}">{TEACHERS.title}</a>.</p>' if is_teacher else ""
    return plain_page(
        "Why is my GPU slower?",
        '<h1>Why is my GPU slower?</h1><p class="lead">For small networks, <b>less overhead beats bigger hardware</b>.'
        f' Each notebook {says}</p>{teacher}<ul class="notebooks">{cards}</ul>{_gallery(presets)}',
        wide=True,
    )


def _card(notebook: Notebook, static: bool) -> str:
    takes = f'<p class="quiet">{html.escape(sentence(notebook.takes))}</p>' if notebook.takes and not static else ""
    address = notebook.address(STATIC if static else "run")
    return (
        f'<li><div class="picture" aria-hidden="true">{_picture(notebook.name)}</div>'
        f'<h2><a href="{address}">{html.escape(notebook.title)}</a></h2>'
        f"<p>{html.escape(notebook.question)}</p>{takes}</li>"
    )


def _gallery(presets: Sequence[Preset]) -> str:
    links = "".join(
        f'<li><a href="{html.escape(notebook_of(one.notebook).address("run", one.query))}">{html.escape(one.title)}</a>'
        f' <span class="quiet">{html.escape(notebook_of(one.notebook).title)}</span></li>'
        for one in presets
    )
    return f'<section class="presets"><h2>Examples to begin with</h2><ul>{links}</ul></section>' if links else ""


@functools.cache
def _picture(name: str) -> str:
    return (_PICTURES / f"{name}.svg").read_text().strip()
