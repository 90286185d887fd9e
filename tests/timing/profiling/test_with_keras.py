"""Each variant of Keras' step changes one thing."""

import os
import subprocess
import sys

import pytest

from lib.model.backends.registry import BACKENDS
from lib.timing.prediction.remedies import Remedy
from lib.timing.profiling.request import VARIANTS
from tests.conftest import ROOT, where_installed

# Prints how `fit` is compiled and fed for each variant of the step. A process has one Keras backend.
VARIED = """
import sys
import numpy as np
from lib.model.data.mnist import Data
from lib.timing.prediction.remedies import Remedy
from lib.timing.profiling.harness import Subject
from lib.timing.profiling.request import PLAIN_STEP, VARIANTS
from lib.timing.profiling import with_keras
from lib.model.spec import Network

x, y = np.zeros((640, 784), np.float32), np.zeros(640, np.int32)
data = Data(x, y, x[:64], y[:64], x[:64], y[:64], "", "")
subject, build = Subject(Network((4,)), 64, data, "cpu"), with_keras.build
for name in (PLAIN_STEP, *VARIANTS[sys.argv[1]]):
    fed = []
    def built(*arguments, **options):
        model = build(*arguments, **options)
        fit = model.fit
        def fitted(x, *rest, **named):
            fed.append((model, not isinstance(x, np.ndarray)))
            return fit(x, *rest, **named)
        model.fit = fitted
        return model
    with_keras.build = built
    step = with_keras.varied(sys.argv[1], subject, name)
    next(step)
    model, from_generator = fed[0]
    print(next(step) > 0, model.steps_per_execution, len(model.get_metrics_result()), from_generator)
"""


@pytest.mark.release
@pytest.mark.parametrize("backend", where_installed(["keras-jax", "keras-tensorflow"]))
def test_each_variant_of_the_step_changes_one_thing(backend):
    environment = os.environ | BACKENDS[backend].environment | {"CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, "-c", VARIED, backend]
    said = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert said.stdout, said.stderr
    plain, *changed = [line.split() for line in said.stdout.splitlines()]
    assert plain == ["True", "1", "2", "False"]
    apart = dict(zip(VARIANTS[backend], changed, strict=True))
    assert apart[Remedy.EXECUTION.variant] == ["True", "50", "2", "False"]
    assert apart[Remedy.METRIC.variant] == ["True", "1", "1", "False"], "the loss alone"
    assert apart[Remedy.ARRAYS.variant] == ["True", "1", "2", "True"]
