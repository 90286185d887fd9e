"""What all notebooks begin with: navigation, title, machine, question."""

import html

import marimo as mo

from lib.formatting import listed
from lib.model.hardware.machine import details, this_machine
from lib.ui import layout
from lib.ui.notebooks import is_static, navigation, notebook_of
from lib.ui.role import TEACHER, role
from lib.ui.url_state import Address
from lib.ui.views.glossary import glossary
from lib.ui.views.markup import on_demand, table
from lib.ui.where_computed import static_note
from lib.ui.widgets import Present, WholePage


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
