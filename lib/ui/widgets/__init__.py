"""What needs code of its own in the browser: each widget's JavaScript lies beside its Python.

A canvas to draw on, a button that copies the address, a menu of files, curves as sound, a table to choose from, names
for screen readers.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakMethod

import anywidget
import numpy as np
import traitlets

from lib.model.backends.base import Parameters
from lib.sweeps.workers.queue import MachineLock

MAX_PARAMETERS = 1_000_000  # 4 MB of weights travel to the page; a larger network would make it wait
TOO_LARGE = (
    f"To draw a digit, choose a network of at most {MAX_PARAMETERS:,} parameters: this one is too large for the page."
)
_HERE = Path(__file__).resolve().parent


def _together(*files: str) -> str:
    return "".join((_HERE / file).read_text() for file in files)


class DrawDigit(anywidget.AnyWidget):
    """A canvas and ten probabilities. The forward pass runs in the page, so nothing waits for the kernel.

    `network` is what `encode` returns, empty for none; `samples` what `sample_digits` returns; `says` is shown where
    there is no network.
    """

    _esm = _together("draw.js")
    network = traitlets.Dict().tag(sync=True)
    samples = traitlets.List().tag(sync=True)
    says = traitlets.Unicode("No network is trained yet.").tag(sync=True)


class CopyLink(anywidget.AnyWidget):
    _esm = _together("buttons.js", "copy_link.js")


class WholePage(anywidget.AnyWidget):
    """Once a page: draws its charts, moves rows to their new places, names and describes marimo's controls for screen
    readers, and hears the button of a state line that ends what the page waits for.

    Args:
        near: A method, called with the names of the sections that have come near; None for no method. Its object is not
            kept: ipywidgets holds every widget for as long as the server runs, also after its session.
    """

    _esm = _together("csv.js", "charts.js", "rows.js", "names.js", "whole_page.js")

    def __init__(self, near: Callable[[Sequence[str]], object] | None = None) -> None:
        super().__init__()
        self._tell_near = WeakMethod(near) if near is not None else lambda: None
        self.on_msg(self._hear)

    def _hear(self, _widget: object, said: Mapping[str, Any], _buffers: object) -> None:
        if "end" in said:
            MachineLock().end_holder()
        if "near" in said and (near := self._tell_near()) is not None:
            near(said["near"])


class Present(anywidget.AnyWidget):
    """A button that shows one section of the page a screen, for a wall; `?present=1` in the address does it, too."""

    _esm = _together("buttons.js", "present.js")


class HearCurves(anywidget.AnyWidget):
    """A button that plays the curves of the experiment that it stands in, as its first chart with lines draws them."""

    _esm = _together("buttons.js", "csv.js", "hear_curves.js")


class ExportFiles(anywidget.AnyWidget):
    """A menu of files to save; what each holds is asked for by message (`lib.ui.export_menu`)."""

    _esm = _together("buttons.js", "export.js")


class GuessForm(anywidget.AnyWidget):
    """A form that asks for a guess before a result is shown.

    `asked` is what `lib.ui.predict_first` asks, empty for nothing.

    Args:
        hear: A method, called with what the browser says, whatever that is; its object is not kept, as of `DrawDigit`.
    """

    _esm = _together("buttons.js", "guess.js")
    asked = traitlets.Dict().tag(sync=True)

    def __init__(self, hear: Callable[[object], object]) -> None:
        super().__init__()
        self._hear_it = WeakMethod(hear)
        self.on_msg(self._hear)

    def _hear(self, _widget: object, content: object, _buffers: object) -> None:
        if (hear := self._hear_it()) is not None:
            hear(content)


class RaceTable(anywidget.AnyWidget):
    """A table of cells that can be chosen.

    `table` is what `lib.labs.which_library.race.table` returns, `selected` the key of the chosen cell, empty for none.
    """

    _esm = _together("race_table.js")
    table = traitlets.Dict().tag(sync=True)
    selected = traitlets.Unicode("").tag(sync=True)


class MeasureInBrowser(anywidget.AnyWidget):
    """Measures the reader's GPU and processor in the reader's browser; the work is done by two workers of its own.

    `scripts` are those of the workers, by executor; `kernels` what `lib.model.backends.webgpu.kernels`
    returns;
    `told` what is shown beside the drawings, HTML by place. What to measure, and the images, come as messages.
    """

    _esm = _together("chart_text.js", "asked_worker.js", "webgpu_drawing.js", "webgpu.js")
    scripts = traitlets.Dict().tag(sync=True)
    kernels = traitlets.Dict().tag(sync=True)
    told = traitlets.Dict().tag(sync=True)

    def __init__(self, kernels: dict, told: dict) -> None:
        super().__init__(scripts=worker_scripts(), kernels=kernels, told=told)


@cache
def worker_scripts() -> dict[str, str]:
    """What both workers share, and the executor of each; the processor's with its WebAssembly, assembled from text."""
    from wasmtime import wat2wasm

    files = {"worker": "webgpu_worker.js", "gpu": "webgpu_on_gpu.js", "cpu": "webgpu_on_cpu.js"}
    scripts = {name: (_HERE / file).read_text() for name, file in files.items()}
    simd = base64.b64encode(wat2wasm((_HERE / "webgpu_simd.wat").read_text())).decode()
    return scripts | {"cpu": f'const SIMD = "{simd}";\n{scripts["cpu"]}'}


def sample_digits(images: np.ndarray, labels: np.ndarray) -> list[str]:
    """Two test images of each digit, in base 64, for those who would rather not draw: 0 to 9, then 0 to 9 again.

    Args:
        images: uint8, `(n, 28, 28)`.
        labels: `(n,)`, 0 to 9, each at least twice.
    """
    return [_base64(images[int(np.flatnonzero(labels == digit)[k])]) for k in range(2) for digit in range(10)]


def encode(parameters: Parameters) -> dict:
    """A network as the page reads it.

    Returns:
        `shapes` of the weights, and `values`: all weights and biases, layer by layer, as little-endian float32 in base
        64.
    """
    flat = np.concatenate([part.ravel() for layer in parameters for part in layer]).astype("<f4")
    return {"shapes": [list(weights.shape) for weights, _ in parameters], "values": _base64(flat)}


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
