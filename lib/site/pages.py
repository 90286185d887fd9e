"""The plain HTML pages of the class site and the static site: their common frame, and the front page."""

import functools
import html
from pathlib import Path
from urllib.parse import quote

from starlette.responses import HTMLResponse

from lib.sweeps.storage.records import Kind
from lib.sweeps.storage.store import Store
from lib.ui.notebooks import FIRST, IN_BROWSER, NOTEBOOKS, STATIC, TEACHERS, Notebook, notebook_of
from lib.ui.presets import PRESETS

_HERE = Path(__file__).parent
USUAL_SIZE = 32  # images per step
DESCRIPTION = "Seconds of a training epoch on CPU and GPU: for small networks, less overhead beats bigger hardware."
ICON_SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">'
    '<path d="M2 3c2 12 10 12 12 0" fill="none" stroke="#3a72d8" stroke-width="3"/></svg>'
)


def plain_page(title: str, content: str, status: int = 200, wide: bool = False) -> HTMLResponse:
    """Return a whole page, which must not be cached. `title` is text, `content` the HTML of `<main>`."""
    return HTMLResponse(
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{html.escape(title)}</title>'
        f'<meta name="description" content="{DESCRIPTION}"><meta property="og:title" content="{html.escape(title)}">'
        f'<meta property="og:description" content="{DESCRIPTION}"><meta property="og:type" content="website">'
        f'<link rel="icon" href="data:image/svg+xml,{quote(ICON_SVG)}">'
        f"<style>{_style_of_the_answer()}{_read('pages.css')}</style></head>"
        f'<body><main id="App"{" class=wide" if wide else ""}>{content}</main></body></html>',
        status,
        {"Cache-Control": "no-store"},
    )


def front_page(computed: str = "", is_teacher: bool = False) -> HTMLResponse:
    """Return the front page.

    `computed` says when and where a static site was computed; empty on a server, which also offers the examples.
    """
    cards = "".join(_card(notebook, bool(computed)) for notebook in NOTEBOOKS)
    says = (
        f"asks one question. These pages show the answers as computed on {html.escape(computed)}; they have no server,"
        f' so their controls do not respond. One page computes: <a href="{IN_BROWSER}">train in your browser</a>.'
        if computed
        else "asks one question, measures the answer on the machine that serves this page, and lets you change what"
        " it depends on."
    )
    teacher = f'<p>You are the teacher here: <a href="{TEACHERS.path}">{TEACHERS.title}</a>.</p>' if is_teacher else ""
    return plain_page(
        "Why is my GPU slower?",
        '<h1>Why is my GPU slower?</h1><p class="lead">For small networks, <b>less overhead beats bigger hardware</b>.'
        f" Each notebook {says}</p>{teacher}{_answer(bool(computed))}"
        f'<ul class="notebooks">{cards}</ul>{"" if computed else _gallery()}',
        wide=True,
    )


def _answer(static: bool) -> str:
    """HTML of the first notebook's first section, at its usual batch size, from stored measurements."""
    from lib.labs.why_slower import legend, rows_html, sentence, ways_at  # slow to import: let the server start first

    ways = ways_at(USUAL_SIZE, Store().records(Kind.RACE))
    rows = rows_html(ways).replace(' tabindex="0"', "")  # keyboard users should tab to the notebooks' links
    move = f'<a href="{FIRST.address(STATIC if static else "run")}">{FIRST.title}</a>'
    return (
        f'<section class="answer"><p class="lab-sentence">{html.escape(sentence(ways))}</p>{legend(ways)}{rows}'
        f'<p class="quiet">At batch size {USUAL_SIZE}. Another network and another batch size: {move}</p></section>'
    )


@functools.cache
def _style_of_the_answer() -> str:
    """Extract the tokens and that section's rules from the notebooks' style sheet."""
    tokens, _, rest = (_HERE.parent / "ui" / "page.css").read_text().partition("/* Controls")
    return tokens + rest.partition("/* Why slower?")[2].partition("*/")[2].partition("/*")[0]


def _card(notebook: Notebook, static: bool) -> str:
    address, picture = notebook.address(STATIC if static else "run"), _read(f"pictures/{notebook.name}.svg").strip()
    return (
        f'<li><div class="picture" aria-hidden="true">{picture}</div>'
        f'<h2><a href="{address}">{html.escape(notebook.title)}</a></h2>'
        f"<p>{html.escape(notebook.question)}</p></li>"
    )


def _gallery() -> str:
    links = "".join(
        f'<li><a href="{html.escape(notebook_of(notebook).address("run", query))}">{html.escape(title)}</a>'
        f' <span class="quiet">{html.escape(notebook_of(notebook).title)}</span></li>'
        for title, notebook, query in PRESETS
    )
    return f'<section class="presets"><h2>Examples to start with</h2><ul>{links}</ul></section>'


@functools.cache
def _read(file: str) -> str:
    return (_HERE / file).read_text()
