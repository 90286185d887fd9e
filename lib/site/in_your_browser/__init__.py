"""The static site's interactive page: the first notebook's four experiments in the reader's browser, using Pyodide and
a subset of the images. The site includes everything that the page fetches.

Pyodide and NumPy come from a package on PyPI, which contains their files and is reachable wherever this project was
installed. Their digests, taken from Pyodide's npm package and lock file, are checked. Pyodide is under the Mozilla
Public License 2.0, NumPy under the BSD licence.
"""

import hashlib
import html
import io
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lib import ROOT
from lib.cache_folder import CacheUnwritable, cache_dir, replaced
from lib.formatting import percent, seconds
from lib.model.backends.registry import BACKENDS, IN_A_BROWSER
from lib.model.backends.webgpu import kernels
from lib.model.data.mnist import load_part
from lib.model.spec import RATE_STEPS
from lib.site.in_your_browser.driver import NUMPY, events, read_images
from lib.site.pages import plain_page
from lib.sweeps.experiments.lines import MAX_LINES
from lib.sweeps.experiments.published import ARTICLE_ARCHITECTURES
from lib.ui.notebooks import FIRST, FRONT, IN_BROWSER
from lib.ui.views.chart import ordered_palette
from lib.ui.widgets import worker_scripts

FOLDER = "in_your_browser"
TITLE = "Train in your browser"
N_TRAIN, N_VALIDATION = 3_000, 1_000
# This project's files that run in the browser.
MODULES = (
    "lib/__init__.py",
    "lib/model/spec.py",
    "lib/formatting.py",
    "lib/cache_folder.py",
    "lib/model/data/digits.py",
    "lib/model/data/mnist.py",
    "lib/model/backends/base.py",
    "lib/model/backends/with_numpy.py",
    "lib/model/backends/webgpu/__init__.py",
    "lib/sweeps/experiments/lines.py",
    "lib/ui/views/conclusions.py",
)
PYODIDE_VERSION, NUMPY_VERSION = "0.29.0", "2.2.5"
DIGESTS = {  # SHA-256
    "pyodide.mjs": "31afa960fdf68333de6f3f0513bad154495c8fc635a66b7e58ab9cf356a76501",
    "pyodide.asm.js": "f1e70077bd701757b2798fc57f540fe39cf23d36ee5cd7c1a9b3a6f35cf500a7",
    "pyodide.asm.wasm": "615172c6b2f5efe53e41d0201a98eb37c1f3aa7675d11cb06b6079b3a6b2bef5",
    "python_stdlib.zip": "e389fbdc394a00d31ff0624386c9e3e52e04727130ac73597a99c477afe4f1ca",
    "pyodide-lock.json": "701557726114e9a968d2088153414b2f126b8631aa734ed98eaf1797d4e4d087",
    f"numpy-{NUMPY_VERSION}-cp313-cp313-pyodide_2025_0_wasm32.whl": (
        "2ca46b70661caea8f9f8089d22495c7a24c120fc5881e68934ac3a04d3fc8a02"
    ),
}
_PACKAGE = "gbdraw==0.14.2"
_PIP_TIMEOUT_S = 300
_HERE = Path(__file__).resolve().parent
WIDGETS = ROOT / "lib" / "ui" / "widgets"
_SCRIPTS = (WIDGETS / "chart_text.js", WIDGETS / "asked_worker.js", _HERE / "charts.js", _HERE / "page.js")


@dataclass(frozen=True)
class BrowserControl:
    """A slider over `values`; checkboxes if `usual` is a tuple; a text field without `values`."""

    name: str
    label: str
    usual: object
    values: Sequence = ()


@dataclass(frozen=True)
class BrowserSection:
    experiment: str
    short: str  # prefix of its controls' names in the address, as in the notebook
    title: str
    prose: str
    charts: Sequence[tuple[str, str]]  # kind in `charts.js`, and caption
    controls: Sequence[BrowserControl]


_EPOCHS = BrowserControl("epochs", "Epochs", 3, tuple(range(1, 21)))
_SIZES = (1, 8, 32, 128, 256, 512, 1024)
_SIZE = BrowserControl("size", "Batch size", 32, _SIZES)
_RATE = BrowserControl("rate", "Learning rate", 0.1, RATE_STEPS)
_HIDDEN = BrowserControl("hidden", "Hidden layers", "32")
_LOSS, _ACCURACY = ("loss", "Training loss by step"), ("accuracy", "Validation accuracy by epoch")
SECTIONS = (
    BrowserSection(
        "learning-rate",
        "rate",
        "1 · How large a step?",
        "The learning rate is how far each step moves the weights against their gradient. Too small, and a few epochs"
        " get nowhere; too large, and the loss jumps about or stops being a number.",
        (_LOSS, _ACCURACY),
        (
            BrowserControl("low", "Lowest rate", 0.01, RATE_STEPS),
            BrowserControl("high", "Highest rate", 1.0, RATE_STEPS),
            BrowserControl("count", "How many rates", 3, tuple(range(2, MAX_LINES + 1))),
            _EPOCHS,
            _SIZE,
            _HIDDEN,
        ),
    ),
    BrowserSection(
        "batch-size",
        "size",
        "2 · How many images a step?",
        "A step pays its overhead once for all its images, so larger batches make epochs faster but leave fewer steps"
        " to learn in. What counts is the time to an accuracy.",
        (_ACCURACY, ("spent", "Validation accuracy by seconds")),
        (
            BrowserControl("sizes", "Batch sizes", (8, 32, 256), _SIZES),
            _EPOCHS,
            _RATE,
            BrowserControl("target", "Target accuracy", 0.8, (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.92, 0.94)),
            _HIDDEN,
        ),
    ),
    BrowserSection(
        "depth",
        "depth",
        "3 · How many layers?",
        "More and wider layers have more parameters to fit the data with, and more arithmetic in each step.",
        (_LOSS, _ACCURACY),
        (
            BrowserControl("networks", "Hidden layers", ("128", "128→64"), ARTICLE_ARCHITECTURES),
            BrowserControl("own", "Your own, such as 512; 64, 32; none", "none"),
            _EPOCHS,
            _RATE,
            _SIZE,
        ),
    ),
    BrowserSection(
        "backend",
        "backend",
        "4 · Which library?",
        "The same training in turn by NumPy in Python, by WebAssembly, by JavaScript and, if your browser offers it, by"
        " your GPU.",
        (("epoch_s", "Seconds per epoch"), _ACCURACY),
        (_SIZE, BrowserControl("epochs", "Epochs, the first not timed", 3, tuple(range(2, 11))), _RATE, _HIDDEN),
    ),
)
USUAL = {one.experiment: {control.name: control.usual for control in one.controls} for one in SECTIONS}
# Backends other than NumPy for the last experiment: device and way in `webgpu_worker.js`, label and colour.
OTHERS = (
    *(
        {"device": "cpu", "way": way, "label": IN_A_BROWSER[key].label, "color": IN_A_BROWSER[key].color}
        for key, way in (("wasm-simd", "simd"), ("javascript", "javascript"))
    ),
    {"device": "gpu", "way": "one_submission", "label": "WebGPU", "color": BACKENDS["webgpu-chunk"].color},
)


def browser_files(computed: str) -> dict[str, Callable[[], bytes]]:
    """Return functions that make the content of the page's files, by path in the site.

    Args:
        computed: Where and when the page's reference result is computed.

    Raises:
        NoRuntime: Pyodide could not be fetched.
    """
    runtime = runtime_files()
    images, source = images_kept()
    made = {
        IN_BROWSER: lambda: bytes(plain_page(TITLE, _content(images, source, computed), wide=True).body),
        f"{FOLDER}/lib.zip": code,
        f"{FOLDER}/images.npz": lambda: images,
        f"{FOLDER}/devices.json": lambda: json.dumps({"scripts": worker_scripts(), "kernels": kernels()}).encode(),
        f"{FOLDER}/page.js": lambda: b"".join(file.read_bytes() for file in _SCRIPTS),
        f"{FOLDER}/worker.js": (_HERE / "worker.js").read_bytes,
    }
    return made | {f"{FOLDER}/pyodide/{name}": file.read_bytes for name, file in runtime.items()}


def images_kept() -> tuple[bytes, str]:
    """Return an `.npz` of the first training and validation images, and their source: MNIST, or its stand-in."""
    raw, facts = load_part(N_TRAIN, N_VALIDATION)
    content = io.BytesIO()
    np.savez_compressed(content, **raw)  # type: ignore[arg-type]
    return content.getvalue(), facts.source


def code() -> bytes:
    """Return a ZIP archive of the driver and the project files that it imports."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(_HERE / "driver.py", "driver.py")
        for name in (
            *MODULES,
            *(str(file.relative_to(ROOT)) for file in sorted((ROOT / "lib/model/backends/webgpu").glob("*.wgsl"))),
        ):
            archive.write(ROOT / name, name)
    return content.getvalue()


def _content(images: bytes, source: str, computed: str) -> str:
    epochs = [event for event in events("backend", USUAL["backend"], read_images(images, source)) if "epoch" in event]
    train_s = sum(event["train_s"] for event in epochs)
    offered = {
        "controls": {one.experiment: {control.name: control.values for control in one.controls} for one in SECTIONS},
        "palettes": [ordered_palette(count) for count in range(MAX_LINES + 2)],
        "numpy": {"label": NUMPY, "color": BACKENDS["numpy"].color},
        "others": OTHERS,
        "where": f"{N_TRAIN:,} images of {source}",
    }
    return (
        f"<style>{(_HERE / 'page.css').read_text()}</style>"
        f'<p><a href="{FRONT}">All notebooks</a></p><h1>{TITLE}</h1>'
        '<p class="lead">The first notebook’s four experiments, without a server: move a slider, and this project’s own'
        " Python code trains with NumPy in your browser. Random search, looking inside, export and your own"
        f' data need <a href="{FIRST.file_name}">the notebook</a> on a machine with Python.</p>'
        '<p class="state"><b id="python">Starting</b>'
        ' <span id="versions">Loading Python into your browser: 15 MB, once</span></p>'
        '<p class="problem" id="address" role="alert"></p>'
        "<noscript><p class=problem>This page computes in your browser, which needs JavaScript.</p></noscript>"
        f"{''.join(map(_section, SECTIONS))}"
        '<p class="quiet">For comparison, NumPy with the last section’s initial settings:'
        f" {percent(epochs[-1]['accuracy'])} after {seconds(train_s)} of training, in one run."
        f" <b>Computed on {html.escape(computed)}.</b></p>"
        f'<script type="application/json" id="offered">{json.dumps(offered)}</script>'
        f'<script src="{FOLDER}/page.js"></script>'
    )


def _section(one: BrowserSection) -> str:
    controls = "".join(_control(one.short, control) for control in one.controls)
    return (
        f'<section class="lab" id="{one.experiment}" data-short="{one.short}"><h2>{one.title}</h2><p>{one.prose}</p>'
        f'<div class="lab-grid"><form class="controls">{controls}'
        '<div class="buttons"><button type="button" class="stop">Stop</button>'
        '<button type="button" class="again">Run again</button></div></form><div>'
        f'<div class="charts">{"".join(_chart(*chart) for chart in one.charts)}</div><ul class="legend"></ul>'
        '<p class="state"><b>Waiting</b> <span></span></p><p class="sentence" aria-live="polite"></p>'
        "</div></div></section>"
    )


def _control(short: str, one: BrowserControl) -> str:
    name, values = f"{short}.{one.name}", list(one.values)
    if isinstance(one.usual, tuple):
        boxes = "".join(
            f'<label class="tick"><input type="checkbox" name="{name}" value="{place}"'
            f"{' checked' if value in one.usual else ''}> {value}</label>"
            for place, value in enumerate(values)
        )
        return f"<fieldset><legend>{one.label}</legend>{boxes}</fieldset>"
    if not values:
        return (
            f'<label for="{name}">{one.label}<input type="text" id="{name}" name="{name}" value="{one.usual}"'
            ' autocomplete="off"></label>'
        )
    return (
        f'<label for="{name}">{one.label} <output for="{name}">{one.usual}</output>'
        f'<input type="range" id="{name}" name="{name}" min="0" max="{len(values) - 1}"'
        f' value="{values.index(one.usual)}"></label>'
    )


def _chart(kind: str, caption: str) -> str:
    return (
        f'<figure><figcaption>{caption}</figcaption><svg data-kind="{kind}" viewBox="0 0 400 220" role="img"'
        f' aria-label="{caption}"></svg></figure>'
    )


class NoRuntime(ValueError):
    """Pyodide could not be fetched; the text says why and what to do."""


def runtime_files() -> dict[str, Path]:
    """Return the runtime's files by name, downloading them unless all are cached.

    Raises:
        NoRuntime: PyPI is unreachable, a file has the wrong digest, or the cache folder cannot be written.
    """
    try:
        folder = cache_dir() / f"pyodide-{PYODIDE_VERSION}"
    except CacheUnwritable as error:
        raise NoRuntime(str(error)) from error
    try:
        folder.mkdir(exist_ok=True)
        if _unsound(folder):
            for name, content in from_package().items():
                with replaced(folder / name) as temporary:
                    temporary.write_bytes(content)
        problem = " and ".join(f"{name} is not Pyodide's" for name in _unsound(folder))
    except (OSError, zipfile.BadZipFile, subprocess.SubprocessError) as error:
        problem = " ".join(str(error).split())[:120]
    if problem:
        raise NoRuntime(
            f"expected Python for the browser (Pyodide {PYODIDE_VERSION}), but it could not be fetched from PyPI"
            f" ({problem}); connect to the network once, or put the files into {folder}"
        )
    return {name: folder / name for name in DIGESTS}


def _unsound(folder: Path) -> list[str]:
    """Return the names of missing files, and of those with the wrong digest."""
    found = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}
    return [name for name, digest in DIGESTS.items() if found.get(name) != digest]


def from_package() -> dict[str, bytes]:
    """Return the content of each file of the runtime that the package has."""
    words = ["download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "pip", *words, "--python-version", "3.13", "--dest", folder, _PACKAGE],
            check=True,
            capture_output=True,
            timeout=_PIP_TIMEOUT_S,
        )
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            paths = {path.rpartition("/")[2]: path for path in wheel.namelist()}
            return {name: wheel.read(paths[name]) for name in DIGESTS if name in paths}
