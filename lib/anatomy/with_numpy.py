"""The experiments on NumPy's step."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from lib.anatomy.recorder import recorded_calls
from lib.anatomy.subject import CONFIG, Row, Subject, loop, measured, nothing
from lib.backends.with_numpy import Workspace, loss_and_gradients, update
from lib.spec import N_PIXELS
from lib.timing import Ended, Measurement, Step, measure

_SHORT = replace(CONFIG, warm_up_s=0.003, min_time_s=0.01, max_time_s=0.05)  # of each of some thirty calls


def experiments(_backend: str, subject: Subject) -> Iterator[Row]:
    """See `lib.anatomy.experiments`. NumPy works inside its calls: each returns when it is done."""
    yield measured("python", loop(subject, nothing))
    yield measured("returns", _one_call(subject.tiny))
    yield measured("call", _one_call(subject))
    # The next batch comes from main memory; the same batch again is in the cache.
    buffer, cached = np.empty((subject.batch_size, N_PIXELS), np.float32), subject.batch[0]
    yield measured("transfer", loop(subject, lambda images, _: np.copyto(buffer, images)))
    yield measured("transfer-base", loop(subject, lambda *_: np.copyto(buffer, cached)))
    yield "many", _one_by_one(subject), 1.0
    yield "many-tiny", _one_by_one(subject.tiny), 1.0


def _one_call(subject: Subject) -> Step:
    parameters, work = subject.parameters, Workspace(subject.network, subject.batch_size)
    rate, (x, y) = np.float32(subject.training.learning_rate), subject.batch

    def step() -> None:
        loss_and_gradients(parameters, x, y, work)
        update(parameters, rate, work)

    return step


def _one_by_one(subject: Subject) -> Measurement:
    """The NumPy calls of one step, each repeated by itself, and their times added."""
    calls = recorded_calls(subject.network, subject.parameters, subject.batch)
    found = [measure(call, config=_SHORT) for call in calls]
    blocks = min(len(one.block_s) for one in found)
    return Measurement(tuple(np.sum([one.step_s[:blocks] for one in found], axis=0).tolist()), 1, Ended.CAP)
