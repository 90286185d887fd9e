"""Write all notebooks with their outputs as a static site: `python -m lib.cli.site [FOLDER]`.

Each notebook runs once on this machine; stored results are not trained again. Another page trains in the reader's
browser. Ctrl-C ends the program; the pages written by then are complete, and none needs a server. The exit status is 0
if all pages were written, 3 if some were not, 1 if the folder is unusable.
"""

import argparse
import html
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path

from lib import ROOT
from lib.cache_folder import replaced
from lib.cli import INCOMPLETE, UNUSABLE, Unusable
from lib.formatting import sentence
from lib.site.in_your_browser import TITLE, browser_files
from lib.site.pages import front_page, plain_page
from lib.ui.heading import where_and_when
from lib.ui.notebooks import FRONT, IN_BROWSER, NOTEBOOKS, SERVED, STATIC, Notebook

# Without this file, GitHub Pages omits files whose names begin with “_”, as some of marimo's scripts do:
# https://docs.github.com/en/pages/getting-started-with-github-pages/about-github-pages-and-jekyll
WRITTEN = ".nojekyll"
# Start of the line in marimo's output that says why a cell failed.
_ERROR = re.compile(r"\w+(Error|Exception): ")
_CDN = re.compile(r"https://cdn\.jsdelivr\.net/npm/@marimo-team/frontend@[^/\"']+/dist")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lib.cli.site", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("site"), help="where to write (default: site)")
    try:
        return 0 if write_site(parser.parse_args(arguments).folder) else INCOMPLETE
    except Unusable as error:
        print(sentence(error), file=sys.stderr)
        return UNUSABLE


def write_site(folder: Path, notebooks: Sequence[Notebook] = NOTEBOOKS, in_browser: bool = True) -> bool:
    """Write the pages one after another, report each in a line, and return whether all were written.

    Args:
        folder: New, empty, or an earlier site.
        notebooks: The notebooks to write.
        in_browser: Whether to write the page that trains in the reader's browser.

    Raises:
        Unusable: The folder cannot be used or written.
    """
    print(f"marimo's scripts and fonts: {_mb(begin(folder))} in {folder}", flush=True)
    # File, title, and a function that writes the page and returns its bytes, or raises ValueError.
    pages: list[tuple[str, str, Callable[[], int]]] = []
    if in_browser:
        pages.append((IN_BROWSER, TITLE, partial(write_in_browser, folder)))
    pages += [(one.file_name, one.title, partial(write_notebook, folder, one)) for one in notebooks]
    pages_bytes, failed = 0, []
    try:
        for number, (file_name, title, write_page) in enumerate(pages, 1):
            print(f"{number:2} of {len(pages)}  {file_name}: ", end="", flush=True)
            began = time.monotonic()
            try:
                written_bytes = write_page()
                pages_bytes += written_bytes
                done = _mb(written_bytes)
            except Unusable:
                print("not written", flush=True)
                raise
            except ValueError as error:
                failed.append(title)
                write_failure(folder, file_name, title, str(error))
                done = f"failed: {error}"
            print(f"{time.monotonic() - began:.1f} s, {done}", flush=True)
        how = f"not complete; failed: {', '.join(failed)}" if failed else "complete"
    except KeyboardInterrupt:
        how = "stopped; the same command starts over, but does not retrain what is stored"
    write(folder, FRONT, bytes(front_page(where_and_when()).body))
    print(f"{how}; pages of {_mb(pages_bytes)} in {folder}", flush=True)
    if how == "complete":
        print(f"To view it: python3 -m http.server --bind 127.0.0.1 --directory {folder}", flush=True)
    return how == "complete"


def begin(folder: Path) -> int:
    """Create the folder with marimo's scripts and fonts, and return their size in bytes.

    Raises:
        Unusable: The folder has files other than an earlier site, or cannot be written.
    """
    is_new = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    if not is_new and not (folder / WRITTEN).exists():
        raise Unusable(
            f"expected a new or empty folder, or an earlier site, got {folder}; choose another, such as SITE=site"
        )
    scripts = Path(str(files("marimo"))) / "_static"
    copied_bytes = write(folder, WRITTEN, b"")
    for source in scripts.rglob("*"):
        if source.is_file() and source.suffix not in (".html", ".md"):
            copied_bytes += write(folder, str(source.relative_to(scripts)), source.read_bytes())
    return copied_bytes


def write(folder: Path, name: str, content: bytes) -> int:
    """Write a file of the site atomically, and return its size in bytes. Raises Unusable."""
    try:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with replaced(folder / name) as temporary:
            return temporary.write_bytes(content)
    except OSError as error:
        raise Unusable(
            f"expected to write into {folder}, but it cannot be written ({error.strerror}); free the disk, or choose"
            " another folder. Pages already written are complete"
        ) from error


def write_failure(folder: Path, file_name: str, title: str, why: str) -> None:
    """Write a page that says why the real one is missing, unless an earlier version exists."""
    if not (folder / file_name).exists():
        content = (
            f'<h1>{html.escape(title)}</h1><p class="problem">This page could not be written on'
            f' {html.escape(where_and_when())}: {html.escape(why)}</p><p><a href="{FRONT}">All notebooks</a></p>'
        )
        write(folder, file_name, bytes(plain_page(title, content).body))


def write_in_browser(folder: Path) -> int:
    """Write the page that trains in the reader's browser, and return the bytes of its files. Raises ValueError."""
    return sum(write(folder, path, made()) for path, made in browser_files(where_and_when()).items())


def write_notebook(folder: Path, notebook: Notebook) -> int:
    """Run a notebook, write its page, and return its size in bytes.

    The page uses marimo's scripts from the site instead of a CDN.

    Raises:
        ValueError: A cell failed.
        Unusable: The disk is full.
    """
    content = _CDN.sub(".", exported(notebook)).replace("<html", '<html class="written"', 1)
    return write(folder, notebook.file_name, content.encode())


def exported(notebook: Notebook) -> str:
    """Run the notebook in a separate process, and return marimo's HTML. Raises as `write_notebook` does."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, notebook.file_name)
        words = ["-m", "marimo", "export", "html", str(ROOT / notebook.file), "-o", str(page), "--no-include-code"]
        done = subprocess.run(
            [sys.executable, *words],
            cwd=ROOT,
            env=os.environ | {SERVED: STATIC},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if done.returncode or not page.exists():
            lines = done.stdout.decode(errors="replace").strip().splitlines() or ["it printed nothing"]
            errors = [line for line in lines if _ERROR.match(line)]
            raise ValueError(f"{_ERROR.sub('', (errors or lines)[-1])[:300]} (status {done.returncode})")
        return page.read_text()


def _mb(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:.1f} MB"


if __name__ == "__main__":
    sys.exit(main())
