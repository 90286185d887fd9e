"""TensorFlow's feeds, in a subprocess because this process has Keras on JAX."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from lib.model.backends.base import initial_parameters
from lib.model.backends.registry import Runtime, unavailable, worker_environment
from lib.model.spec import Network
from lib.timing.profiling.request import FEEDS
from tests.conftest import ROOT, make_small_data

RUNTIME = Runtime("keras-tensorflow")
pytestmark = [
    pytest.mark.release,
    pytest.mark.skipif(unavailable(RUNTIME) is not None, reason="TensorFlow is not installed"),
]
FED = list(FEEDS["keras-tensorflow"])


@pytest.fixture(scope="module")
def found():
    command = [sys.executable, "-m", "tests.timing.profiling.tensorflow_feeds"]
    environment = os.environ | worker_environment(RUNTIME, None)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", FED)
def test_every_feed_yields_the_same_images_with_their_labels(found, name):
    fed, labels = found["fed"][name], make_small_data().y_train.tolist()
    assert fed["together"]
    assert (fed["labels"] == labels[: len(fed["labels"])]) is (name != "shuffle")


def test_a_resting_feed_does_no_work(found):
    assert found["worked on"] == dict.fromkeys(FED, 0)


@pytest.mark.parametrize("name", FED)
def test_a_step_has_the_loss_of_its_batch(found, name):
    data, (hidden, output) = make_small_data(), initial_parameters(Network((4,)), 0)
    x, y = data.x_train[160:192].astype(np.float64), data.y_train[160:192]  # the sixth batch
    logits = np.maximum(x @ hidden[0] + hidden[1], 0) @ output[0] + output[1]
    loss = np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(32), y])
    assert found["fed"][name]["losses"] == pytest.approx([loss, loss], rel=0.05)


def test_an_error_of_a_worker_thread_is_one_line(found):
    assert len(found["raised"]) == len(FED) - 2, "all but a shuffled and a cached one"
    assert set(found["raised"].values()) == {"ValueError: image 70 is damaged"}


def test_a_cache_too_slow_to_fill_is_refused(found):
    assert found["slow cache"].startswith("filling the cache with 100,000 images of 5 ms takes 500 s")


def test_a_filled_cache_preprocesses_nothing(found):
    assert min(found["cached"]["0/data"]) < 1.6e-3 <= min(found["cached"]["0/first"])


def test_a_step_uses_xla_if_the_model_asks_for_it(found):
    assert found["by XLA"] == [True, False]


def test_operations_are_counted_by_device(found):
    placed = found["placed"]
    assert {name.split("/")[1] for name in placed if name.count("/") == 2} == {"CPU"}
    products = sum(count for name, count in placed.items() if "MatMul" in name)
    assert products >= 3, "two layers forward, and at least the output layer backward"
    assert any(name.startswith("IteratorGetNext/") for name in placed)
    assert placed["gpus"] == 0
