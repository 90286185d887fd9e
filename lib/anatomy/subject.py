"""What is taken apart, and what all experiments on it share."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from lib.backends import load_train
from lib.backends.base import Parameters, Steps, initial_parameters
from lib.data import Data, batch_starts
from lib.spec import Network, Training
from lib.timing import Config, Ended, Measurement, Step, Sync, measure, no_wait

TINY = Network((1,))
CONFIG = Config(warm_up_s=0.03, min_time_s=0.1, max_time_s=0.4, spread_target=0.05)
# Steps that are not waited for one by one: a block as long as a chunk of training, or filling and draining the queue would count.
IN_A_ROW = replace(CONFIG, min_block_s=0.04, max_time_s=0.8)
REAL_S = 0.5  # of real training
IN_ONE_CALL = 64  # steps of the compiled loop

Row = tuple[str, Measurement, float]  # name, measurement, how many training steps one measured step stands for
Batch = tuple[np.ndarray, np.ndarray]  # images (batch, 784), labels (batch,)


@dataclass(frozen=True)
class Subject:
    """A step: its network, its batch, and where it runs."""

    network: Network
    batch_size: int
    data: Data
    device: str

    @property
    def tiny(self) -> "Subject":
        """The same step with nothing to compute: one hidden neuron, one image."""
        return replace(self, network=TINY, batch_size=1)

    @property
    def parameters(self) -> Parameters:
        return initial_parameters(self.network, 0)

    @property
    def training(self) -> Training:
        """At so small a rate that any number of steps changes next to nothing, and none ends as NaN."""
        return Training(self.network, 1e-6, self.batch_size, 100)

    @property
    def starts(self) -> list[int]:
        return batch_starts(len(self.data.x_train), self.batch_size, 0, 0).tolist()

    @property
    def batch(self) -> Batch:
        return self.data.x_train[: self.batch_size], self.data.y_train[: self.batch_size]


def measured(name: str, step: Step, sync: Sync = no_wait, steps: float = 1.0, config: Config = CONFIG) -> Row:
    return name, measure(step, sync=sync, config=config), steps


def loop(subject: Subject, call: Callable[[np.ndarray, np.ndarray], object]) -> Step:
    """One round of the loop over the batches, as the backends write it, around some call."""
    x, y, size, starts = subject.data.x_train, subject.data.y_train, subject.batch_size, subject.starts
    number = 0

    def one() -> object:
        nonlocal number
        start = starts[number]
        number = number + 1 if number + 1 < len(starts) else 0
        return call(x[start : start + size], y[start : start + size])

    return one


def nothing(_x: np.ndarray, _y: np.ndarray) -> None:
    """Stands for the library's call."""


def real_steps(backend: str, subject: Subject, limit_s: float = REAL_S) -> tuple[Measurement, Measurement]:
    """Wall and processor seconds a step of the backend's own training; a block lies between two of its hand-overs."""
    wall_s: list[float] = []
    busy_s: list[float] = []
    spent_s, first = 0.0, True
    training = load_train(backend)(subject.training, subject.data, subject.device)
    used_s = time.process_time()
    for event in training:
        now_s = time.process_time()
        if isinstance(event, Steps):
            if not first:  # the first hand-over warms up
                wall_s.append(event.train_s / len(event.losses))
                busy_s.append((now_s - used_s) / len(event.losses))
                spent_s += event.train_s
            first = False
        if spent_s > limit_s and (len(wall_s) >= CONFIG.min_blocks or spent_s > 4 * limit_s):
            break
        used_s = now_s
    training.close()  # type: ignore[attr-defined]
    return Measurement(tuple(wall_s), 1, Ended.CAP), Measurement(tuple(busy_s), 1, Ended.CAP)
