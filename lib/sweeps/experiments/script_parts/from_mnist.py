"""MNIST, from the file that `MNIST_NPZ` names, or downloaded beside the script."""

import os
from pathlib import Path
from urllib.request import urlopen

import numpy as np

from lib.model.data.mnist import KERAS_URL
from lib.sweeps.experiments.script_parts.common import verified


def load_data() -> list[np.ndarray]:
    """MNIST from the file that MNIST_NPZ names, or downloaded into this folder."""
    path = Path(os.environ.get("MNIST_NPZ") or "mnist.npz")
    if not path.exists():
        path.write_bytes(urlopen(KERAS_URL).read())
    with np.load(path) as archive:
        return verified({name: archive[name] for name in ("x_train", "y_train")})
