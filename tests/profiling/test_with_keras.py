"""Keras' step is taken apart as `fit` compiles it: with XLA where the model says so."""

import os
import subprocess
import sys

import pytest

from lib.backends.registry import Runtime, unavailable
from tests.conftest import ROOT

# In a process of its own: Keras has one backend a process.
PROGRAM = """
import numpy as np
from lib.backends.base import initial_parameters
from lib.backends.with_keras import build
from lib.profiling.with_keras import compiled_step
from lib.spec import Network

batch = np.zeros((8, 784), np.float32), np.zeros(8, np.int32)
for asked in (True, False):
    model = build(Network((4,)), 0.1, initial_parameters(Network((4,)), 0))
    model.compile(optimizer=model.optimizer, loss=model.loss, jit_compile=asked)
    concrete = compiled_step(model).get_concrete_function(batch)
    print(model.jit_compile, concrete.function_def.attr["_XlaMustCompile"].b)
"""


@pytest.mark.release
@pytest.mark.skipif(unavailable(Runtime("keras-tensorflow")) is not None, reason="TensorFlow is not installed")
def test_the_step_is_compiled_as_the_model_says():
    environment = os.environ | {"KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, "-c", PROGRAM]
    said = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert said.stdout.split() == ["True", "True", "False", "False"], said.stderr
