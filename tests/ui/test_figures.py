"""No cell ends between marimo's saying that matplotlib is there and its being able to close figures."""

import subprocess
import sys
from functools import partial

import pytest

from lib.site import server
from lib.ui import figures
from lib.ui.network_inside import Inside
from tests.conftest import ROOT

KERNELS_BEGIN = """
import sys
import marimo._output
from marimo._output.formatters.formatters import register_formatters
from marimo._runtime.context.types import GlobalContext
from lib.ui import figures

said = []
GlobalContext.set_mpl_installed = lambda *_: said.append(hasattr(marimo._output, "mpl"))
if "load" in sys.argv:
    figures.load()
register_formatters()  # as each kernel does
import matplotlib.pyplot
print(said)
"""


def said(*words):
    return subprocess.run(
        [sys.executable, "-c", KERNELS_BEGIN, *words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.slow
def test_what_closes_figures_is_there_before_marimo_calls_it():
    assert said("load") == "[True]"
    assert said() == "[False]", "marimo has mended it: figures.load is no longer needed"


def test_a_site_loads_it_before_anybody_can_come(monkeypatch):
    done = []

    def nobody_comes(_):
        done.append("site")
        raise KeyboardInterrupt

    monkeypatch.setattr(figures, "load", partial(done.append, "figures"))
    monkeypatch.setattr(server, "notebook_site", nobody_comes)
    with pytest.raises(KeyboardInterrupt):
        server.serve_class("127.0.0.1", 1, headless=True)
    assert done == ["figures", "site"]


def test_the_editor_loads_it_in_the_kernel_before_a_network_is_drawn_beside_it(monkeypatch):
    done = []
    monkeypatch.setattr(figures, "load", partial(done.append, "figures"))
    inside = Inside()
    assert done == [], "there is nothing to draw"
    version = inside._news.version
    inside.digit._handle_custom_msg({"seen": True}, [])
    assert done == ["figures"]
    assert inside._news.version > version, "the thread that draws is woken"
