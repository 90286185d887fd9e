"""The offline stand-in for MNIST: scikit-learn's handwritten digits, enlarged."""

import numpy as np

from lib.model.data.digits import enlarged_digits
from lib.sweeps.experiments.script_parts.common import verified


def load_data() -> list[np.ndarray]:
    """Not MNIST: scikit-learn's digits, as the exported training had them offline."""
    return verified(enlarged_digits())
