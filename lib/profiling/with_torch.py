"""The experiments on PyTorch's eager step."""

# pyright: reportMissingImports=false
# It is optional: `make torch` installs it.

from collections.abc import Callable
from itertools import cycle

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lib.backends.with_torch import build, one_step, tensors, torch_device, wait
from lib.profiling.harness import IN_A_ROW, Experiment, Repeated, Subject, loop, nothing
from lib.profiling.on_card import OnCard, torch_card
from lib.timing.measurement import Step


def experiments(_backend: str, subject: Subject) -> dict[str, Experiment]:
    """The experiments of `lib.profiling.run` on PyTorch, by name."""

    def done(_: object) -> None:
        wait(subject.device)

    x, size = tensors(subject.data, subject.device)[0], subject.batch_size
    slot, starts = x[:size].clone(), cycle(subject.starts)
    found: dict[str, Experiment] = {
        "python": Repeated(loop(subject, nothing)),
        # On a processor it returns when it is done; a card has a queue, which must not fill up.
        "returns": Repeated(_one_call(subject.tiny), done, config=IN_A_ROW, returns=subject.device == "gpu"),
        "call": Repeated(_one_call(subject), done, config=IN_A_ROW),
        # The next batch comes from main memory; the same batch again is in the cache.
        "transfer": Repeated(lambda: slot.copy_(x[(start := next(starts)) : start + size]), done),
        "transfer-base": Repeated(lambda: slot.copy_(x[:size]), done),
    }
    if subject.device == "gpu":  # whose operations are shorter than their dispatch
        of = {"many": subject, "many-tiny": subject.tiny}
        found |= {name: OnCard(recorded_calls(one), torch_card()) for name, one in of.items()}
    return found


def _one_call(subject: Subject) -> Step:
    step = one_step(
        build(subject.network, subject.parameters, torch_device(subject.device)), subject.training.learning_rate
    )
    x, y = (array[: subject.batch_size] for array in tensors(subject.data, subject.device)[:2])
    return lambda: step(x, y)


class _Recorder(TorchDispatchMode):
    """Records every operation that reaches the library's kernels, the backward pass included."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[], object]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        keywords = kwargs or {}
        self.calls.append(torch.no_grad()(lambda: func(*args, **keywords)))
        return func(*args, **keywords)


def recorded_calls(subject: Subject) -> list[Callable[[], object]]:
    """The operations of one training step, each as a function that does it again."""
    step = _one_call(subject)
    with torch.enable_grad(), _Recorder() as recorder:
        step()
    return recorder.calls
