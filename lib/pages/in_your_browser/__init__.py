"""The static site's page that computes: this project's NumPy backend in the reader's browser, by Pyodide, on a slice of
the images. Everything it fetches lies beside it.
"""

import html
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from lib import ROOT
from lib.data.mnist import load_part
from lib.formatting import percent, seconds
from lib.pages.in_your_browser.driver import events, read_images
from lib.pages.in_your_browser.runtime import runtime_files
from lib.pages.notebooks import FRONT, IN_BROWSER
from lib.pages.plain_page import plain_page

FOLDER = "in_your_browser"
TITLE = "Train in your browser"
N_TRAIN, N_VALIDATION = 3_000, 1_000
# What the controls offer, and where they stand when the page opens, by their names in `driver.described`.
OFFERED = {
    "rate": (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
    "size": (8, 32, 128, 512),
    "width": (8, 16, 32, 64, 128),
    "epochs": (1, 2, 3, 5, 8, 12, 20),
}
USUAL = {"rate": 0.1, "size": 32, "width": 32, "epochs": 5}
_LABELS = {"rate": "Learning rate", "size": "Batch size", "width": "Hidden layer", "epochs": "Epochs"}
# What of this project runs there.
MODULES = (
    "lib/__init__.py",
    "lib/spec.py",
    "lib/cache_folder.py",
    "lib/hardware/__init__.py",
    "lib/hardware/optional.py",
    "lib/data/__init__.py",
    "lib/data/digits.py",
    "lib/data/mnist.py",
    "lib/backends/__init__.py",
    "lib/backends/base.py",
    "lib/backends/with_numpy.py",
)
_HERE = Path(__file__).resolve().parent
WIDGETS = _HERE.parent / "widgets"


def browser_files(computed: str) -> dict[str, Callable[[], bytes]]:
    """The content of each of the page's files, by its path in the site.

    Args:
        computed: Where and when the page's own figure, of its usual settings, is computed.

    Raises:
        NoRuntime: Python for the browser is not to be had.
    """
    runtime = runtime_files()
    images, source = images_kept()
    made = {
        IN_BROWSER: lambda: bytes(plain_page(TITLE, _content(images, source, computed), wide=True).body),
        f"{FOLDER}/lib.zip": code,
        f"{FOLDER}/images.npz": lambda: images,
        f"{FOLDER}/page.js": lambda: (WIDGETS / "chart_text.js").read_bytes() + (_HERE / "page.js").read_bytes(),
        f"{FOLDER}/worker.js": (_HERE / "worker.js").read_bytes,
    }
    return made | {f"{FOLDER}/pyodide/{name}": file.read_bytes for name, file in runtime.items()}


def images_kept() -> tuple[bytes, str]:
    """An `.npz` of the first images for training and validation, and what they are: MNIST, or what stands in for it."""
    raw, facts = load_part(N_TRAIN, N_VALIDATION)
    content = io.BytesIO()
    np.savez_compressed(content, **raw)  # type: ignore[arg-type]  # its names are no options
    return content.getvalue(), facts.source


def code() -> bytes:
    """A ZIP archive of the driver and of what it imports of this project."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(_HERE / "driver.py", "driver.py")
        for name in MODULES:
            archive.write(ROOT / name, name)
    return content.getvalue()


def _content(images: bytes, source: str, computed: str) -> str:
    *_, end = events(USUAL, read_images(images, source))
    offered = {"offered": OFFERED, "source": source, "images": f"{N_TRAIN:,}"}
    return (
        f"<style>{(_HERE / 'page.css').read_text()}</style>"
        f'<p><a href="{FRONT}">All notebooks</a></p><h1>{TITLE}</h1>'
        '<p class="lead">How large a step, how many images a step, how wide a layer? Move a slider: this project’s own'
        " training code runs as Python with NumPy in your browser, without a server.</p>"
        f'<div id="lab"><div class="controls">{"".join(map(_slider, OFFERED))}</div><div>'
        f'<div class="charts">{_chart("loss", "Training loss by step")}'
        f"{_chart('accuracy', 'Validation accuracy by epoch')}</div>"
        '<p class="state"><b id="state">Starting</b> <span id="doing"></span></p>'
        '<p id="sentence" aria-live="polite"></p></div></div>'
        '<p class="quiet">For comparison, the same code at the settings that this page opens with:'
        f" {percent(end['accuracy'])} after {seconds(end['train_s'])} of training, in one run."
        f" <b>Computed on {html.escape(computed)}.</b></p>"
        "<noscript><p class=problem>This page computes in your browser, which needs JavaScript.</p></noscript>"
        f'<script type="application/json" id="offered">{json.dumps(offered)}</script>'
        f'<script src="{FOLDER}/page.js"></script>'
    )


def _slider(name: str) -> str:
    values = OFFERED[name]
    place = values.index(USUAL[name])
    return (
        f'<label for="{name}">{_LABELS[name]} <output for="{name}">{values[place]}</output>'
        f'<input type="range" id="{name}" name="{name}" min="0" max="{len(values) - 1}" value="{place}"></label>'
    )


def _chart(name: str, caption: str) -> str:
    return (
        f'<figure><figcaption>{caption}</figcaption><svg id="{name}" viewBox="0 0 400 220" role="img"'
        f' aria-label="{caption}"></svg></figure>'
    )
