"""What a page of the static site says of its figures: on which machine and day they were computed."""

import html
from datetime import UTC, datetime

from lib.model.hardware.machine import this_machine
from lib.ui.notebooks import FIRST, IN_BROWSER


def where_and_when() -> str:
    """Words for which machine computes what is written now, and on which day (UTC)."""
    return f"{this_machine().line}, {datetime.now(UTC).date().isoformat()}"


def static_note(name: str) -> str:
    """HTML: the line of a written page that says where its figures come from, and what it cannot do.

    Args:
        name: Of the notebook; the first one's questions are also answered in the reader's browser.
    """
    instead = f'; <a href="{IN_BROWSER}">train in your browser</a> instead' if name == FIRST.name else ""
    return (
        f'<p class="lab-static" role="note"><b>Computed on {html.escape(where_and_when())}</b>, unless a figure names'
        f" another machine or day. This page has no server: its controls do not answer{instead}. Made with"
        ' <a href="https://marimo.io">marimo</a>.</p>'
    )
