"""What backends yield: their losses, and the parameters of all layers. Other processes import this module too."""

import numpy as np

from lib.model.backends.base import Steps


def losses_of(events) -> np.ndarray:
    return np.concatenate([event.losses for event in events if isinstance(event, Steps)])


def assert_near(parameters, expected, **tolerances) -> None:
    """Compare all weights and biases; tolerances are those of `np.testing.assert_allclose`."""
    for layer, expected_layer in zip(parameters, expected, strict=True):
        for array, expected_array in zip(layer, expected_layer, strict=True):
            np.testing.assert_allclose(array, expected_array, **tolerances)
