"""HTML and Markdown that the views share: tables, text with code and links, and text of unknown origin."""

import html
from collections.abc import Iterable, Sequence

from lib.sweeps.experiments.published import ADDRESSES


def table(head: Sequence[str], rows: Iterable[Sequence[str]], css: str = "", row_css: Sequence[str] = ()) -> str:
    """HTML: a table in a box that scrolls on its own.

    Args:
        head: HTML of each column's title; empty for no head.
        rows: HTML of each cell, row by row; the first cell names the row. A row of one cell is a heading across the
            table.
        css: More classes of the table.
        row_css: A class for each row, empty for none; empty if no row has one.
    """
    lines = [f"<tr>{''.join(f'<th>{cell}</th>' for cell in head)}</tr>"] if head else []
    for number, (first, *others) in enumerate(rows):
        row_class = f' class="{row_css[number]}"' if row_css and row_css[number] else ""
        across = f' colspan="{len(head)}"' if not others else ""
        named = f'<th scope="{"row" if others else "colgroup"}"{across}>{first}</th>'
        lines.append(f"<tr{row_class}>{named}{''.join(f'<td>{cell}</td>' for cell in others)}</tr>")
    classes = " ".join(filter(None, ["lab-table", css]))
    return f'<div class="lab-scroll"><table class="{classes}">{"".join(lines)}</table></div>'


def on_demand(summary: str, content: str, css: str = "") -> str:
    """HTML that stays closed until opened; `summary` and `content` are not escaped."""
    classes = f"lab-details {css}".rstrip()
    return f'<details class="{classes}"><summary>{summary}</summary>{content}</details>'


def inline(text: str) -> str:
    """Text as HTML: escaped, with `code` marked up, and the articles' titles as links that open a new tab."""
    parts = html.escape(text).split("`")
    marked = "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))
    for title, address in ADDRESSES.items():
        marked = marked.replace(title, f'<a href="{address}" target="_blank" rel="noopener noreferrer">{title}</a>')
    return marked


def quiet(sentence: str) -> str:
    """HTML: a side remark, such as a figure recorded elsewhere, marked up by `inline`; empty for an empty sentence."""
    return f'<p class="lab-note">{inline(sentence)}</p>' if sentence else ""


def legend(keys: Iterable[tuple[str, str]]) -> str:
    """HTML: a legend for colours that no chart explains.

    Args:
        keys: Line and words of each; the line as in CSS, such as `3px solid red`.
    """
    entries = (
        f'<span class="compare-key"><i style="border-top: {line}"></i>{html.escape(words)}</span>'
        for line, words in keys
    )
    return f'<p class="compare-legend">{"".join(entries)}</p>'
