"""PyTorch's model and its two steps, where it is installed. The rest is in `test_backends.py`."""

import numpy as np
import pytest

from lib.model.backends import with_numpy
from lib.model.backends.base import initial_parameters
from lib.model.spec import Network

torch = pytest.importorskip("torch")


def test_the_model_has_the_given_parameters(small_data):
    from lib.model.backends.with_torch import build

    parameters = initial_parameters(Network((6, 4)), 0)
    model = build(Network((6, 4)), parameters, torch.device("cpu"))
    logits = model(torch.from_numpy(small_data.x_train[:5])).detach().numpy()
    np.testing.assert_allclose(logits, with_numpy.predict_logits(parameters, small_data.x_train[:5]), atol=1e-5)
