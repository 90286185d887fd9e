"""Data that a reader brought, as the page prepared them: in a file beside the script."""

from pathlib import Path

import numpy as np

from lib.sweeps.experiments.script_parts.common import verified
from lib.sweeps.experiments.script_parts.settings import DATA_FILE


def load_data() -> list[np.ndarray]:
    """The rows of the file that came with this one, as they were scaled and divided."""
    with np.load(Path(__file__).parent / DATA_FILE) as archive:
        return verified({name: archive[name] for name in ("x_train", "y_train")})
