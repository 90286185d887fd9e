"""The frame of the class site's own pages, which are HTML without marimo: the front page, the door, “full”."""

import functools
import html
from pathlib import Path
from urllib.parse import quote

from starlette.responses import HTMLResponse

_STYLE = Path(__file__).with_name("plain_page.css")
ICON_SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">'
    '<path d="M2 3c2 12 10 12 12 0" fill="none" stroke="#3a72d8" stroke-width="3"/></svg>'
)


def plain_page(title: str, content: str, status: int = 200, wide: bool = False) -> HTMLResponse:
    """A whole page, which no cache keeps.

    Args:
        title: Of the tab, as text.
        content: HTML of its main part.
        status: Of the answer.
        wide: Whether it is wider than a paragraph.
    """
    return HTMLResponse(
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{html.escape(title)}</title>'
        f'<link rel="icon" href="data:image/svg+xml,{quote(ICON_SVG)}"><style>{_style()}</style></head>'
        f'<body><main id="App"{" class=wide" if wide else ""}>{content}</main></body></html>',
        status,
        {"Cache-Control": "no-store"},
    )


@functools.cache
def _style() -> str:
    return _STYLE.read_text()
