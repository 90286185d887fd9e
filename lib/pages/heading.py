"""What all notebooks begin with: navigation, title, machine, question."""

import html

import marimo as mo

from lib.formatting import listed
from lib.hardware.machine import details, this_machine
from lib.pages import layout
from lib.pages.notebooks import is_static, navigation, notebook_of
from lib.pages.role import TEACHER, role
from lib.pages.url_state import Address
from lib.pages.where_computed import static_note
from lib.pages.widgets import Present, WholePage
from lib.views.glossary import glossary
from lib.views.markup import on_demand, table


def plain_title(name: str, title: str, question: str, address: Address) -> mo.Html:
    """Title, machine and question of a notebook that has one question."""
    machine = table([], ([html.escape(name), html.escape(value)] for name, value in details().items()), "lab-machine")
    return mo.Html(
        heading(name, title, question)
        + f'<div class="lab-asides">{on_demand("this machine", machine)}{glossary()}'
        + f'<div class="lab-tools">{mo.ui.anywidget(Present()).text}</div></div>'
        + mo.ui.anywidget(WholePage()).text
        + layout.problems(address.problems)
    )


def heading(name: str, title: str, question: str = "") -> str:
    """HTML of it."""
    sources = f"After {listed([f'“{one}”' for one in notebook_of(name).articles])}."
    asked = f'<p class="lab-question">{html.escape(question)}</p>' if question else ""
    static = static_note(name) if is_static() else layout.chart_ahead()
    return (
        f'{navigation(name, is_teacher=role() == TEACHER)}<div class="lab-title"><h1>{html.escape(title)}</h1>'
        f'<p class="lab-line">{html.escape(this_machine().line)}</p></div>'
        f"{asked}{layout.quiet(sources)}{static}"
    )
