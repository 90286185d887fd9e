"""A worker that computes nothing and starts in a third of a second: for tests of processes, messages, turns, cancels.

Its losses fall; it reports every few milliseconds, 480 times per epoch at batch size 1. If `STUB_FAILS` is set in the
environment, each training fails with that text after its first report.
"""

import os
import time
from collections.abc import Iterator
from functools import partial

import numpy as np

from lib.model.backends.base import Event, FirstCall, Parameters, epochs, initial_parameters
from lib.model.data.mnist import MNIST_DIGEST, Data
from lib.model.spec import N_TRAIN, Training
from lib.sweeps.workers import worker
from lib.sweeps.workers.engine import Process

FAILS = "STUB_FAILS"
REPORT_STEPS, REPORT_S = 100, 0.005


def start(_module: str, *arguments) -> Process:
    """Replace the engine's start of `lib.sweeps.workers.worker`."""
    return Process("tests.stub_worker", *arguments)


def train(
    training: Training, data: Data, device: str = "cpu", start: Parameters | None = None, first_epoch: int = 0
) -> Iterator[Event]:
    """Imitate a backend, with MNIST's number of steps."""

    def report(epoch: int, starts: np.ndarray, done: int, _step_s: float | None) -> tuple[np.ndarray, float]:
        if os.environ.get(FAILS) and done:
            raise RuntimeError(os.environ[FAILS])
        time.sleep(REPORT_S)
        steps = np.arange(done, min(done + REPORT_STEPS, len(starts))) + epoch * len(starts)
        return (1 / (1 + steps)).astype(np.float32), REPORT_S

    parameters = partial(initial_parameters, training.network, training.seed)
    yield FirstCall(REPORT_S)
    yield from epochs(training, N_TRAIN, first_epoch, report, lambda: (0.5, 0.9), parameters)


def main(*arguments) -> None:
    few = np.zeros((1, 784), np.float32), np.zeros(1, np.int32)
    worker.data_module.load = lambda: Data(*few, *few, *few, "MNIST", MNIST_DIGEST)
    worker.load_train = lambda _backend: train
    worker.verify = lambda *_args, **_options: None
    worker.main(*arguments)
