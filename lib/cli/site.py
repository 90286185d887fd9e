"""Write all notebooks as files with their outputs, for a page host: `python -m lib.cli.site [FOLDER]`.

Each notebook is run once on this machine; what is stored is not trained again. Ctrl-C ends it; the pages written by
then are whole. The exit status is 0 where every page is written, 3 where some are not, 1 where the folder or an option
cannot be used.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from errno import ENOSPC
from functools import partial
from pathlib import Path

import psutil

from lib import ROOT
from lib.cli.time_limit import time_limit
from lib.formatting import sentence
from lib.site.in_your_browser import TITLE
from lib.site.static_site import (
    CannotWrite,
    begin,
    write_browser_page,
    write_failure,
    write_former,
    write_front_page,
    write_notebook,
)
from lib.sweeps.workers.queue import Cancel
from lib.ui.notebooks import IN_BROWSER, NOTEBOOKS, SERVED, STATIC, Notebook

MINUTES, MOST_MINUTES = 240.0, 1440.0
UNUSABLE, INCOMPLETE = 1, 3  # exit statuses; 2 is argparse's own
# What a line of marimo's begins with that says why a cell failed.
_ERROR = re.compile(r"\w+(Error|Exception): ")


class NotExported(ValueError):
    """A notebook has no page; the text says why."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the site, and return the exit status: 0 for all pages, or `INCOMPLETE`, or `UNUSABLE`.

    Args:
        arguments: Words of the command line; None for those of this program.

    Raises:
        SystemExit: The words cannot be read (status 2), or ask for help (status 0).
    """
    parser = argparse.ArgumentParser(prog="python -m lib.cli.site", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("site"), help="where to (default: site)")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"at most so long (default {MINUTES:g})")
    options = parser.parse_args(arguments)
    try:
        if not 0 < options.minutes <= MOST_MINUTES:
            raise CannotWrite(
                f"minutes: expected more than 0, up to {MOST_MINUTES:g}, got {options.minutes:g}; choose for example"
                f" {MINUTES:g}"
            )
        return 0 if write_site(options.folder, options.minutes) else INCOMPLETE
    except CannotWrite as error:
        print(sentence(error), file=sys.stderr)
        return UNUSABLE


@dataclass(frozen=True)
class _WrittenPage:
    """A page to write: its file, its title, and what writes it and returns its bytes, or raises ValueError."""

    file_name: str
    title: str
    write: Callable[[], int]


def write_site(
    folder: Path, minutes: float = MINUTES, notebooks: Sequence[Notebook] = NOTEBOOKS, in_browser: bool = True
) -> bool:
    """Write the pages one after another, each reported in a line, and return whether all are there.

    Args:
        folder: A new or empty one, or one that this has written before.
        minutes: Time limit; it ends at Ctrl-C, too.
        notebooks: Whose pages are written.
        in_browser: Whether to write the page that trains in the reader's browser.

    Raises:
        CannotWrite: The folder cannot be used or written.
    """
    scripts_bytes, cancel = begin(folder), Cancel()
    print(f"marimo's scripts and fonts: {_size(scripts_bytes)} in {folder}", flush=True)
    pages = [_WrittenPage(IN_BROWSER, TITLE, lambda: write_browser_page(folder))] if in_browser else []
    pages += [_WrittenPage(one.file_name, one.title, partial(_run_and_write, folder, one, cancel)) for one in notebooks]
    with time_limit(minutes, cancel) as stopped:
        pages_bytes, failed = _write_all(folder, pages, cancel)
        write_front_page(folder)
        for one in notebooks:
            write_former(folder, one)
    return _said(folder, failed, pages_bytes, cancel.is_set(), stopped.is_set())


def _write_all(folder: Path, pages: Sequence[_WrittenPage], cancel: Cancel) -> tuple[int, list[_WrittenPage]]:
    """Write the pages until `cancel` is set; the bytes written, and the pages that are missing."""
    pages_bytes, failed = 0, []
    for number, page in enumerate(pages, 1):
        print(f"{number:2} of {len(pages)}  {page.file_name}: ", end="", flush=True)
        began = time.monotonic()
        try:
            written_bytes = page.write()
        except CannotWrite:
            print("not written", flush=True)
            raise
        except ValueError as error:
            if cancel.is_set():
                print("stopped", flush=True)
                return pages_bytes, [*failed, *pages[number - 1 :]]
            failed.append(page)
            print(f"{time.monotonic() - began:.1f} s, failed: {error}", flush=True)
            write_failure(folder, page.file_name, page.title, str(error))
            continue
        pages_bytes += written_bytes
        print(f"{time.monotonic() - began:.1f} s, {_size(written_bytes)}", flush=True)
    return pages_bytes, failed


def _run_and_write(folder: Path, notebook: Notebook, cancel: Cancel) -> int:
    return write_notebook(folder, notebook, _exported(notebook, cancel))


def _said(folder: Path, failed: Sequence[_WrittenPage], pages_bytes: int, ended: bool, stopped: bool) -> bool:
    """Print how it went, and return whether every page is written."""
    why = "stopped" if stopped else "the time is up" if ended else "complete" if not failed else "not complete"
    missing = f"; failed: {', '.join(one.title for one in failed)}" if failed and not ended else ""
    rest = "; the same command begins anew, and what is stored is not trained again" if ended else ""
    print(f"{why}: pages of {_size(pages_bytes)} in {folder}{missing}{rest}", flush=True)
    if not failed:
        print(f"To look at it: python3 -m http.server --bind 127.0.0.1 --directory {folder}", flush=True)
    return not failed


def _exported(notebook: Notebook, cancel: Cancel) -> str:
    """The HTML that marimo makes of a run of this notebook, in a process of its own.

    Raises:
        NotExported: A cell failed, or `cancel` was set meanwhile.
        CannotWrite: The disk for temporary files is full.
    """
    with tempfile.TemporaryDirectory() as folder:
        page, said = Path(folder, notebook.file_name), Path(folder, "said")
        words = ["-m", "marimo", "export", "html", str(ROOT / notebook.file), "-o", str(page), "--no-include-code"]
        with said.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, *words],
                cwd=ROOT,
                env=os.environ | {SERVED: STATIC},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for this program, which then ends it and what it has started
            )
        with cancel.calling(partial(_kill, process.pid)):
            status = process.wait()
        if cancel.is_set():
            raise NotExported("it was stopped")
        if status or not page.exists():
            raise _not_exported(said.read_text(errors="replace"), status)
        return page.read_text()


def _kill(pid: int) -> None:
    """End a process and all that it has started: marimo runs a notebook in a session of its own."""
    with suppress(psutil.NoSuchProcess):
        whole = psutil.Process(pid)
        for one in (*whole.children(recursive=True), whole):
            with suppress(psutil.NoSuchProcess):
                one.kill()


def _not_exported(said: str, status: int) -> ValueError:
    """Why a notebook that said this has no page."""
    if os.strerror(ENOSPC) in said:
        return CannotWrite(
            f"expected room for temporary files in {tempfile.gettempdir()}, but the disk is full; free it, or set"
            " TMPDIR to another folder"
        )
    lines = said.strip().splitlines() or ["it said nothing"]
    errors = [line for line in lines if _ERROR.match(line)]
    return NotExported(f"{_ERROR.sub('', (errors or lines)[-1])[:300]} (status {status})")


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:.1f} MB"


if __name__ == "__main__":
    sys.exit(main())
