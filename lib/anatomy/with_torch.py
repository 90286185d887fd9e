"""The experiments on PyTorch's eager step."""

# pyright: reportMissingImports=false
# It is optional: `make torch` installs it.

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lib.anatomy.subject import CONFIG, IN_A_ROW, Row, Subject, loop, measured, nothing
from lib.backends.with_torch import build, one_step, tensors, torch_device, wait
from lib.timing import Ended, Measurement, Step, measure, measure_dispatch

_SHORT = replace(CONFIG, warm_up_s=0.003, min_time_s=0.01, max_time_s=0.05)  # of each of some thirty operations


def experiments(_backend: str, subject: Subject) -> Iterator[Row]:
    """See `lib.anatomy.experiments`."""

    def done(_: object) -> None:
        wait(subject.device)

    yield measured("python", loop(subject, nothing))
    yield "returns", measure_dispatch(_one_call(subject.tiny), sync=done, config=CONFIG), 1.0
    yield measured("call", _one_call(subject), done, config=IN_A_ROW)
    x, size = tensors(subject.data, subject.device)[0], subject.batch_size
    slot, starts = x[:size].clone(), iter(_for_ever(subject.starts))
    # The next batch comes from main memory; the same batch again is in the cache.
    yield measured("transfer", lambda: slot.copy_(x[(start := next(starts)) : start + size]), done)
    yield measured("transfer-base", lambda: slot.copy_(x[:size]), done)
    yield "many", _one_by_one(subject, done), 1.0
    yield "many-tiny", _one_by_one(subject.tiny, done), 1.0


def _for_ever(starts: list[int]) -> Iterator[int]:
    while True:
        yield from starts


def _one_call(subject: Subject) -> Step:
    step = one_step(
        build(subject.network, subject.parameters, torch_device(subject.device)), subject.training.learning_rate
    )
    x, y = (array[: subject.batch_size] for array in tensors(subject.data, subject.device)[:2])
    return lambda: step(x, y)


class _Recorder(TorchDispatchMode):
    """Notes every operation that reaches the library's kernels, the backward pass included."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[], object]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        keywords = kwargs or {}
        self.calls.append(lambda: func(*args, **keywords))
        return func(*args, **keywords)


def recorded_calls(subject: Subject) -> list[Callable[[], object]]:
    """One function for each operation of one step, which does it again."""
    step = _one_call(subject)
    with torch.enable_grad(), _Recorder() as recorder:
        step()
    return recorder.calls


@torch.no_grad()
def _one_by_one(subject: Subject, done: Callable[[object], None]) -> Measurement:
    """The operations of one step, each repeated by itself, and their times added."""
    found = [measure(call, sync=done, config=_SHORT) for call in recorded_calls(subject)]
    blocks = min(len(one.block_s) for one in found)
    return Measurement(tuple(np.sum([one.step_s[:blocks] for one in found], axis=0).tolist()), 1, Ended.CAP)
