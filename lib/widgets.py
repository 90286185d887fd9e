"""The two things of the page that need code in the browser: a canvas to draw on, and a button that copies the address."""

import base64
from collections.abc import Sequence
from pathlib import Path

import anywidget
import numpy as np
import traitlets

from lib.backends.base import Parameters

_HERE = Path(__file__).resolve().parent
MAX_PARAMETERS = 1_000_000  # 4 MB of weights travel to the page; a larger network would make it wait


class DrawDigit(anywidget.AnyWidget):
    """A canvas and ten probabilities. The forward pass runs in the page, so nothing waits for the kernel."""

    _esm = (_HERE / "draw.js").read_text()
    network = traitlets.Dict().tag(sync=True)
    samples = traitlets.List().tag(sync=True)


class CopyLink(anywidget.AnyWidget):
    """A button that copies the page's address."""

    _esm = (_HERE / "copy_link.js").read_text()


def draw_digit(parameters: Parameters, samples: Sequence[np.ndarray]) -> DrawDigit:
    """A canvas for a network (at most a million parameters), with test images uint8 (28, 28) to try."""
    return DrawDigit(network=encode(parameters), samples=[_base64(np.ascontiguousarray(image)) for image in samples])


def encode(parameters: Parameters) -> dict:
    """A network as the page reads it: shapes, and all float32 values (weights, biases, layer by layer) in base 64."""
    flat = np.concatenate([part.ravel() for layer in parameters for part in layer]).astype("<f4")
    return {"shapes": [list(weights.shape) for weights, _ in parameters], "values": _base64(flat)}


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode()
