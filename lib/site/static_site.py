"""The static site, for a page host: every notebook as a file with its outputs, and a page that trains in the reader's
browser. Nothing in it needs a server.
"""

import html
import re
import shutil
from pathlib import Path

import marimo

from lib.cache_folder import replaced
from lib.site.front_page import front_page
from lib.site.in_your_browser import browser_files
from lib.site.plain_page import plain_page
from lib.ui.notebooks import FRONT, Notebook
from lib.ui.where_computed import where_and_when

# Without this file GitHub's page host leaves out files whose names begin with “_”, as some of marimo's scripts do:
# https://docs.github.com/en/pages/getting-started-with-github-pages/about-github-pages-and-jekyll
WRITTEN = ".nojekyll"
# The lowest limit among the page hosts looked at: https://developers.cloudflare.com/pages/platform/limits/
MAX_FILE_BYTES = 25 * 2**20

_SCRIPTS = Path(marimo.__file__).parent / "_static"
_CDN = re.compile(r"https://cdn\.jsdelivr\.net/npm/@marimo-team/frontend@[^/\"']+/dist")


class CannotWrite(ValueError):
    """The folder cannot be used or written; the text says what was expected, what was received and what to do."""


def begin(folder: Path) -> int:
    """Make the folder, with marimo's scripts and fonts, and return their bytes.

    Args:
        folder: A new or empty one, or one that this has written before.

    Raises:
        CannotWrite: It holds something else, or cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise CannotWrite(f"expected a folder, got the file {folder}; choose another name, such as SITE=site")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / WRITTEN).exists():
        raise CannotWrite(
            f"expected a new or empty folder, or an earlier site, got {folder} with other files; choose another, such"
            " as SITE=site"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / WRITTEN).touch()
        return sum(_copied(source, folder / source.relative_to(_SCRIPTS)) for source in _scripts())
    except OSError as error:
        raise _unwritable(folder, error) from error


def write_notebook(folder: Path, notebook: Notebook, exported: str) -> int:
    """Write a notebook's page, which gets marimo's scripts from beside it, and return its bytes.

    Args:
        folder: Of the site.
        notebook: Whose page it is.
        exported: What `marimo export html` wrote.

    Raises:
        ValueError: It is larger than page hosts take.
        CannotWrite: The folder cannot be written.
    """
    content = _CDN.sub(".", exported).replace("<html", '<html class="written"', 1).encode()
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(
            f"expected at most {MAX_FILE_BYTES / 2**20:.0f} MiB, which page hosts take, got {len(content) / 2**20:.0f}"
        )
    return _write(folder, notebook.file_name, content)


def write_browser_page(folder: Path) -> int:
    """Write the page that trains in the reader's browser, with all that it fetches, and return the bytes.

    Raises:
        NoRuntime: Python for the browser is not to be had.
        CannotWrite: The folder cannot be written.
    """
    return sum(_write(folder, path, content()) for path, content in browser_files(where_and_when()).items())


def write_failure(folder: Path, file_name: str, title: str, why: str) -> None:
    """Say in a page's place why it is missing, unless an earlier one is there; raises CannotWrite."""
    if not (folder / file_name).exists():
        content = (
            f'<h1>{html.escape(title)}</h1><p class="problem">This page could not be written on'
            f' {html.escape(where_and_when())}: {html.escape(why)}</p><p><a href="{FRONT}">All notebooks</a></p>'
        )
        _write(folder, file_name, bytes(plain_page(title, content).body))


def write_former(folder: Path, notebook: Notebook) -> None:
    """Write a page that leads to the notebook's own for each of its former names; raises CannotWrite."""
    address, title = notebook.file_name, html.escape(notebook.title)
    content = (
        f'<meta http-equiv="refresh" content="0; url={address}">'
        f'<h1>{title}</h1><p>This page is now part of <a href="{address}">{title}</a>.</p>'
    )
    for name in notebook.former:
        _write(folder, f"{name}.html", bytes(plain_page(notebook.title, content).body))


def write_front_page(folder: Path) -> int:
    """Write the front page, and return its bytes; raises CannotWrite."""
    return _write(folder, FRONT, bytes(front_page((), where_and_when()).body))


def _scripts() -> list[Path]:
    return [file for file in _SCRIPTS.rglob("*") if file.is_file() and file.suffix not in (".html", ".md")]


def _copied(source: Path, target: Path) -> int:
    """Copy a file into a folder that is made where it is missing, and return the file's bytes."""
    target.parent.mkdir(exist_ok=True)
    return shutil.copyfile(source, target).stat().st_size


def _write(folder: Path, name: str, content: bytes) -> int:
    try:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with replaced(folder / name) as temporary:
            return temporary.write_bytes(content)
    except OSError as error:
        raise _unwritable(folder, error) from error


def _unwritable(folder: Path, error: OSError) -> CannotWrite:
    return CannotWrite(
        f"expected to write into {folder}, but it cannot be written ({error.strerror}); free the disk, or choose"
        " another folder. The pages that it has are whole"
    )
