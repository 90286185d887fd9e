"""The widgets with JavaScript of their own, which is in the files of this folder."""

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

MAX_PARAMETERS = 1_000_000  # 4 MB of weights sent to the page; a larger network would delay it
TOO_LARGE = (
    f"This network is too large for the page. To draw a digit, choose one with at most {MAX_PARAMETERS:,} parameters."
)
_HERE = Path(__file__).resolve().parent


@cache
def _together(*files: str) -> str:
    return "".join((_HERE / file).read_text() for file in files)


class DrawDigit(anywidget.AnyWidget):
    """A canvas and ten probabilities. The forward pass runs in the page, without the kernel.

    `network` comes from `encode`, empty for none; `samples` from `sample_digits`; `says` is shown without a network.
    """

    _esm = _together("draw.js")
    network = traitlets.Dict().tag(sync=True)
    samples = traitlets.List().tag(sync=True)
    says = traitlets.Unicode("No network has been trained yet.").tag(sync=True)


# What `Scripted` can be: buttons and a menu whose last file says what they do.
SCRIPTS = {
    "copy link": ("buttons.js", "copy_link.js"),
    "present": ("buttons.js", "present.js"),
    "hear curves": ("buttons.js", "csv.js", "hear_curves.js"),
    "export": ("buttons.js", "export.js"),
}


class Scripted(anywidget.AnyWidget):
    """A widget that needs nothing from Python but its JavaScript and, at most, messages."""

    def __init__(self, name: str) -> None:
        self._esm = _together(*SCRIPTS[name])
        super().__init__()


class WholePage(anywidget.AnyWidget):
    """One per page: draws its charts, animates moved rows, labels marimo's controls for screen readers, and handles the
    “End it” button of a state line.

    Args:
        near: A method, called with the names of the sections that have come near. It is held weakly: ipywidgets keeps
            every widget until the server exits, even after its session.
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


class GuessForm(anywidget.AnyWidget):
    """A form that asks for a guess before a result is shown; `asked` comes from `lib.ui.predict_first`.

    Args:
        hear: A method, called with whatever the browser sends; held weakly, as in `WholePage`.
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
    """A table with selectable cells.

    `table` comes from `lib.labs.which_library.race.table`; `selected` is the selected cell's key, empty for none.
    """

    _esm = _together("race_table.js")
    table = traitlets.Dict().tag(sync=True)
    selected = traitlets.Unicode("").tag(sync=True)


class MeasureInBrowser(anywidget.AnyWidget):
    """Measures the reader's GPU and processor in the browser, in two workers.

    `scripts` are the workers' scripts, by executor; `kernels` comes from `lib.model.backends.webgpu.kernels`; `told` is
    HTML shown next to the drawings, by place. Images and tasks arrive as messages.
    """

    _esm = _together("chart_text.js", "asked_worker.js", "webgpu_drawing.js", "webgpu.js")
    scripts = traitlets.Dict().tag(sync=True)
    kernels = traitlets.Dict().tag(sync=True)
    told = traitlets.Dict().tag(sync=True)

    def __init__(self, kernels: dict, told: dict) -> None:
        super().__init__(scripts=worker_scripts(), kernels=kernels, told=told)


@cache
def worker_scripts() -> dict[str, str]:
    """The workers' shared script and each one's executor; the processor's includes its assembled WebAssembly."""
    from wasmtime import wat2wasm

    files = {"worker": "webgpu_worker.js", "gpu": "webgpu_on_gpu.js", "cpu": "webgpu_on_cpu.js"}
    scripts = {name: (_HERE / file).read_text() for name, file in files.items()}
    simd = base64.b64encode(wat2wasm((_HERE / "webgpu_simd.wat").read_text())).decode()
    return scripts | {"cpu": f'const SIMD = "{simd}";\n{scripts["cpu"]}'}


def sample_digits(images: np.ndarray, labels: np.ndarray) -> list[str]:
    """Two test images of each digit in base64, for readers who would rather not draw: 0 to 9, then 0 to 9 again.

    Args:
        images: uint8, `(n, 28, 28)`.
        labels: `(n,)`, 0 to 9, each at least twice.
    """
    return [_base64(images[int(np.flatnonzero(labels == digit)[k])]) for k in range(2) for digit in range(10)]


def encode(parameters: Parameters) -> dict:
    """A network in the page's format.

    Returns:
        `shapes` of the weights, and `values`: all weights and biases, layer by layer, little-endian float32 in base64.
    """
    flat = np.concatenate([part.ravel() for layer in parameters for part in layer]).astype("<f4")
    return {"shapes": [list(weights.shape) for weights, _ in parameters], "values": _base64(flat)}


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
