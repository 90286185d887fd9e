"""A worker whose card disappears in the middle of a training, as the libraries tell it; no card is needed.

`tests/workers/test_worker.py` starts it in the place of `lib.workers.worker`.
"""

import os
from collections.abc import Iterator

import numpy as np

from lib.backends.base import Event, FirstCall, Steps
from lib.workers import worker

SAID = "LOST_CARD_SAYS"  # names the environment variable that holds the library's error


def losing_its_card(*_: object) -> Iterator[Event]:
    """A training that makes one chunk of steps."""
    yield FirstCall(0.1)
    yield Steps(0, 0, np.ones(4, np.float32), 0.01)
    raise RuntimeError(os.environ[SAID])


def main(*arguments) -> None:
    """As `worker.main`; only NumPy's training is replaced."""
    load_train = worker.load_train
    worker.load_train = lambda key: losing_its_card if key == "numpy" else load_train(key)
    worker.main(*arguments)
