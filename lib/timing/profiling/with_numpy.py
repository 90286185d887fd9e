"""Experiments on NumPy's training step."""

import numpy as np

from lib.model.backends.with_numpy import Workspace, loss_and_gradients, update
from lib.model.spec import N_PIXELS
from lib.timing.measurement import Step
from lib.timing.profiling.harness import IN_A_ROW, StepExperiment, Subject, loop, nothing, repeated


def experiments(_backend: str, subject: Subject) -> dict[str, StepExperiment]:
    """Return the experiments of `lib.timing.profiling.run` on NumPy, by name. All calls return when they are done."""
    buffer, cached = np.empty((subject.batch_size, N_PIXELS), np.float32), subject.batch[0]
    return {
        "python": repeated(loop(subject, nothing)),
        "returns": repeated(_one_call(subject.tiny), config=IN_A_ROW),
        "call": repeated(_one_call(subject), config=IN_A_ROW),
        # The next batch comes from main memory; a repeated batch is in the cache.
        "transfer": repeated(loop(subject, lambda images, _: np.copyto(buffer, images))),
        "transfer-base": repeated(lambda: np.copyto(buffer, cached)),
    }


def _one_call(subject: Subject) -> Step:
    parameters, work = subject.parameters, Workspace(subject.network, subject.batch_size)
    rate, (x, y) = np.float32(subject.training.learning_rate), subject.batch

    def step() -> None:
        loss_and_gradients(parameters, x, y, work)
        update(parameters, rate, work)

    return step
