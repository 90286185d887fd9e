"""No cell or chart fails while another session imports matplotlib or pandas."""

import subprocess
import sys
from functools import partial

import pytest

from lib.site import server
from lib.ui import figures
from lib.ui.network_inside import Inside
from lib.ui.notebooks import FIRST
from tests.conftest import ROOT

A_CELL_ENDS_MEANWHILE = """
import sys, threading
import marimo
from marimo._output.formatters.formatters import register_formatters
from marimo._runtime.context.types import get_global_context
from lib.ui import figures

if "late" in sys.argv:
    figures.late()
register_formatters()  # as each kernel does
other = threading.Thread(target=lambda: __import__("matplotlib.figure"))
other.start()
while not get_global_context().mpl_installed:
    pass
exec("marimo._output.mpl.close_figures()")  # as at the end of each cell
"""


A_CHART_IS_DRAWN_MEANWHILE = """
import altair, sys, threading
from lib.ui.views.chart import alt
threading.Thread(target=lambda: __import__("pandas")).start()
while "pandas" not in sys.modules: pass
alt.Axis(values=[1])
"""


def ends(*words):
    command = [sys.executable, "-c", A_CELL_ENDS_MEANWHILE, *words]
    return subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.slow
def test_drawing_a_chart_waits_for_an_import_of_pandas():
    subprocess.run([sys.executable, "-c", A_CHART_IS_DRAWN_MEANWHILE], check=True, cwd=ROOT)


@pytest.mark.slow
def test_ending_a_cell_waits_for_an_import_of_matplotlib():
    assert ends("late").returncode == 0
    assert "AttributeError" in ends().stderr, "marimo has mended it: figures.late is no longer needed"


def test_a_site_prepares_matplotlib_before_serving(monkeypatch):
    done = []

    def nobody_comes(*_):
        done.append("site")
        raise KeyboardInterrupt

    monkeypatch.setattr(figures, "late", partial(done.append, "figures"))
    monkeypatch.setattr(server, "notebook_site", nobody_comes)
    with pytest.raises(KeyboardInterrupt):
        server.serve_class("127.0.0.1", 1, True, FIRST, server.ClassOptions())
    assert done == ["figures", "site"]


def test_the_editor_prepares_matplotlib_before_drawing_a_network(monkeypatch):
    done = []
    monkeypatch.setattr(figures, "late", partial(done.append, "figures"))
    inside = Inside()
    assert done == [], "there is nothing to draw"
    version = inside._news.version
    inside.redraw()
    assert done == ["figures"]
    assert inside._news.version > version, "the thread that draws is woken"
