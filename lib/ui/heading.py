"""What all notebooks begin with: navigation, title, machine, question."""

import html
from datetime import UTC, datetime

import marimo as mo

from lib.formatting import listed
from lib.model.hardware.machine import details, this_machine
from lib.ui import layout
from lib.ui.notebooks import FIRST, IN_BROWSER, is_static, navigation, notebook_of
from lib.ui.opened import TEACHER, role
from lib.ui.url_state import Address
from lib.ui.views.glossary import glossary
from lib.ui.views.markup import on_demand, quiet, table
from lib.ui.widgets import Present, WholePage


def plain_title(name: str, title: str, question: str, address: Address) -> mo.Html:
    """Title, machine and question of a notebook that has one question."""
    machine = table([], ([html.escape(name), html.escape(value)] for name, value in details().items()), "lab-machine")
    return mo.Html(
        heading(name, title, f'<p class="lab-question">{html.escape(question)}</p>')
        + asides(name, on_demand("this machine", machine), mo.ui.anywidget(Present()).text)
        + mo.ui.anywidget(WholePage()).text
        + layout.problems(address.problems)
    )


def heading(name: str, title: str, below: str = "", images: str = "") -> str:
    """HTML: navigation and title, the machine beside it.

    Args:
        name: Of the notebook.
        title: Of the page.
        below: HTML below the title.
        images: HTML below the machine: what is trained on.
    """
    static = static_note(name) if is_static() else layout.chart_ahead()
    return (
        f'{navigation(name, is_teacher=role() == TEACHER)}<div class="lab-title"><h1>{html.escape(title)}</h1>'
        f'<div class="lab-line"><p>{html.escape(this_machine().line)}</p>{images}</div></div>{below}{static}'
    )


def asides(name: str, further: str, tools: str) -> str:
    """HTML: a row of what a page has beside its sections: further HTML, the glossary, its articles, and its tools."""
    sources = quiet(f"After {listed([f'“{one}”' for one in notebook_of(name).articles])}.")
    return f'<div class="lab-asides">{further}{glossary()}<div class="lab-tools">{tools}</div>{sources}</div>'


def where_and_when() -> str:
    """Words for which machine computes what is written now, and on which day (UTC)."""
    return f"{this_machine().line}, {datetime.now(UTC).date().isoformat()}"


def static_note(name: str) -> str:
    """HTML: where the figures of a written page come from, and what it cannot do; the first notebook's questions are
    also answered in the reader's browser."""
    instead = f'; <a href="{IN_BROWSER}">train in your browser</a> instead' if name == FIRST.name else ""
    return (
        f'<p class="lab-static" role="note"><b>Computed on {html.escape(where_and_when())}</b>, unless a figure names'
        f" another machine or day. This page has no server: its controls do not answer{instead}. Made with"
        ' <a href="https://marimo.io">marimo</a>.</p>'
    )
