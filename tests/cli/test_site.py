"""Writing the static site in a terminal: failures are named, the rest is written, old pages stay whole, and each page
says where its figures were computed."""

import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from html import unescape

import psutil
import pytest

from lib.cli import site
from lib.cli.site import begin, main, write_failure, write_notebook, write_site
from lib.labs.your_gpu import InBrowser
from lib.ui.heading import static_note, where_and_when
from lib.ui.notebooks import FIRST, IN_BROWSER, NOTEBOOKS, SERVED, STATIC, Notebook
from tests.conftest import ROOT

NOTEBOOK = """import marimo
app = marimo.App(app_title="One")
@app.cell
def shown():
    import marimo as mo
    {what}
    return
"""


WRITE_ONE = """import sys
from pathlib import Path
from lib.cli.site import write_site
from lib.ui.notebooks import Notebook
sys.exit(0 if write_site(Path(sys.argv[1]), notebooks=[Notebook(sys.argv[2], "One", "?")], in_browser=False) else 3)
"""


def notebook(folder, name, what):
    (folder / f"{name}.py").write_text(NOTEBOOK.format(what=what))
    return Notebook(str(folder / f"{name}.py"), name.title(), "Does it work?")


@pytest.mark.slow
def test_a_failing_notebook_is_named_and_the_others_are_written(tmp_path, capsys):
    broken = notebook(tmp_path, "broken", "raise ZeroDivisionError('nothing to divide by')")
    whole = notebook(tmp_path, "whole", "mo.output.append(mo.md(f'Seven times six is {7 * 6}.'))")
    folder = tmp_path / "site"
    assert not write_site(folder, notebooks=[broken, whole], in_browser=False)
    said = capsys.readouterr().out
    failed = r"^ 1 of 2  broken\.html: [\d.]+ s, failed: nothing to divide by \(status 1\)$"
    assert re.search(failed, said, re.MULTILINE)
    assert re.search(r"^ 2 of 2  whole\.html: [\d.]+ s, [\d.]+ MB$", said, re.MULTILINE)
    assert "not complete; failed: Broken; pages of" in said
    page = (folder / "whole.html").read_text()
    assert "Seven times six is 42." in page
    assert "jsdelivr" not in page
    scripts = re.findall(r'<(?:script|link)[^>]* (?:src|href)="\./([^"]+)"', page)
    assert len(scripts) > 20
    assert [name for name in scripts if not (folder / name).is_file()] == []
    assert "could not be written on" in (folder / "broken.html").read_text()
    front = (folder / "index.html").read_text()
    pages = [IN_BROWSER, FIRST.file_name, *(one.file_name for one in NOTEBOOKS)]
    assert re.findall(r'href="([^"#:]+)"', front) == pages
    assert f"as computed on {where_and_when()}" in unescape(front)
    assert "Examples to start with" not in front
    assert not list(folder.glob("*.writing"))


@pytest.mark.slow
def test_ctrl_c_ends_it_and_the_running_notebook(tmp_path):
    began = tmp_path / "began"
    notes = f"open({str(began)!r}, 'w').write(str(os.getpid()))"
    sleepy = notebook(tmp_path, "sleepy", f"import os, time; {notes}; time.sleep(300)")
    command = [sys.executable, "-c", WRITE_ONE, str(tmp_path / "site"), sleepy.file]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    while not (began.exists() and began.read_text()):
        assert process.poll() is None, "it ended before the notebook began"
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "sleepy.html: stopped" in said
    assert "does not retrain what is stored" in said
    with suppress(psutil.NoSuchProcess):  # the process may not have been collected yet
        left, until = psutil.Process(int(began.read_text())), time.monotonic() + 20
        while left.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < until, "the notebook goes on"
            time.sleep(0.1)


def test_a_folder_with_other_files_is_left_alone(tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("mine")
    assert main([str(tmp_path)]) == 1
    assert "Expected a new or empty folder, or an earlier site, got" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]
    assert main([str(tmp_path / "thesis.txt")]) == 1
    assert "Expected a new or empty folder, or an earlier site, got" in capsys.readouterr().err
    assert begin(tmp_path / "site") == begin(tmp_path / "site") > 10e6, "an earlier site is written again"


@pytest.mark.slow
def test_a_write_error_is_reported_in_one_sentence(tmp_path):
    """Limiting the size of files causes a real write error without filling a disk."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        f"from lib.cli.site import main; sys.exit(main([{str(tmp_path / 'site')!r}]))"
    )
    words = [sys.executable, "-c", code]
    answer = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == 1
    assert re.fullmatch(
        r"Expected to write into .*site, but it cannot be written \(.+\); free the disk, .*\.\n", answer.stderr
    )


def test_an_earlier_page_survives_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(site, "exported", lambda _: "an earlier page")
    write_failure(tmp_path, FIRST.file_name, FIRST.title, "no <room>")
    page = tmp_path / FIRST.file_name
    assert "no &lt;room&gt;" in page.read_text()
    write_notebook(tmp_path, FIRST)
    write_failure(tmp_path, FIRST.file_name, FIRST.title, "no room")
    assert page.read_text() == "an earlier page"


def test_a_static_page_says_where_it_was_computed_and_measures_nothing(monkeypatch):
    assert re.search(r", 20\d\d-\d\d-\d\d$", where_and_when())
    assert f"Computed on {where_and_when()}" in unescape(static_note("claims"))
    assert [IN_BROWSER in static_note(name) for name in ("claims", FIRST.name)] == [False, True]
    monkeypatch.setenv(SERVED, STATIC)
    assert "make run NOTEBOOK=notebooks/your_gpu.py" in InBrowser().show().text
