"""Experiments on PyTorch's training step, on ways to launch it, on a step of ResNet-18, and on the feed `DataLoader`.

A loader makes batches in the loop itself or in worker processes. The workers are spawned, because a library with
threads does not survive a fork. They run until the feed is closed; if this process is killed, they notice within five
seconds, the interval at which PyTorch's workers check.
"""

# pyright: reportMissingImports=false
# PyTorch is optional: `make torch` installs it.

import copy
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset

from lib.model.backends.with_torch import Step as OnBatch
from lib.model.backends.with_torch import build, one_compiled_step, one_step, tensors, torch_device, wait
from lib.timing.measurement import Step
from lib.timing.prediction.remedies import Remedy
from lib.timing.profiling.harness import (
    HOLD_SIDE,
    IN_A_ROW,
    Feed,
    Preprocessing,
    Row,
    StepExperiment,
    Subject,
    interleaved,
    loop,
    nothing,
    on_card,
    repeated,
    row_of,
    rows_of,
)
from lib.timing.profiling.operations import rounds
from lib.timing.profiling.request import FIRST_CALL, RESNET, NotMeasured, Pipeline

WARM_UP = 3  # steps before a graph is recorded, as PyTorch requires
CHECKED_STEPS, CHECKED_RATE, TOLERANCE = 4, 0.1, 1e-3
RESNET_LIMIT_S = 60.0  # for measuring a step of ResNet-18
RESNET_CALLS = 7  # least number of steps to measure it


def experiments(_backend: str, subject: Subject) -> dict[str, StepExperiment]:
    """Return the experiments of `lib.timing.profiling.run` on PyTorch, by name."""

    def done(_: object) -> None:
        wait(subject.device)

    x, size = tensors(subject.data, subject.device)[0], subject.batch_size
    slot, starts = x[:size].clone(), cycle(subject.starts)
    found: dict[str, StepExperiment] = {
        "python": repeated(loop(subject, nothing)),
        # On a processor the call returns when it is done; a card has a queue, which must not fill up.
        "returns": repeated(_one_call(subject.tiny), done, config=IN_A_ROW, returns=subject.device == "gpu"),
        "call": repeated(_one_call(subject), done, config=IN_A_ROW),
        # The next batch comes from main memory; a repeated batch is in the cache.
        "transfer": repeated(lambda: slot.copy_(x[(start := next(starts)) : start + size]), done),
        "transfer-base": repeated(lambda: slot.copy_(x[:size]), done),
    }
    if subject.device == "gpu":  # its operations are shorter than their dispatch
        of = {"many": subject, "many-tiny": subject.tiny}
        a, out = (torch.ones(HOLD_SIDE, HOLD_SIDE, device=x.device) for _ in range(2))
        hold, event = partial(torch.mm, a, a, out=out), partial(torch.cuda.Event, enable_timing=True)
        found |= {name: on_card(recorded_calls(one), hold, event) for name, one in of.items()}
    return found


def _one_call(subject: Subject) -> Step:
    step = _made(one_step, subject)
    x, y = (array[: subject.batch_size] for array in tensors(subject.data, subject.device)[:2])
    return lambda: step(x, y)


def _made(make: Callable[[nn.Module, float], OnBatch], subject: Subject, learning_rate: float | None = None) -> OnBatch:
    model = build(subject.network, subject.parameters, torch_device(subject.device))
    return make(model, learning_rate or subject.training.learning_rate)


def varied(_backend: str, subject: Subject, variant: str) -> StepExperiment:
    """Measure a training step with one change: gradients zeroed in place, a CUDA graph, or batches from the host."""
    size, device = subject.batch_size, torch_device(subject.device)
    x, y = tensors(subject.data, "cpu" if variant == Remedy.MOVED.variant else subject.device)[:2]
    make = partial(one_step, set_to_none=variant != Remedy.DROPPED.variant)
    if variant == Remedy.GRAPH.variant:
        make = partial(_as_a_graph, images=x[:size], labels=y[:size])
    step = _made(make, subject)
    return _on_batches(lambda images, labels: step(images.to(device), labels.to(device)), x, y, subject)


class _CallRecorder(TorchDispatchMode):
    """Records every operation that reaches the library's kernels, including the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[], object]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        keywords = kwargs or {}
        self.calls.append(torch.no_grad()(lambda: func(*args, **keywords)))
        return func(*args, **keywords)


def recorded_calls(subject: Subject) -> list[Callable[[], object]]:
    """Return the operations of one training step, each as a function that repeats it."""
    step = _one_call(subject)
    with torch.enable_grad(), _CallRecorder() as recorder:
        step()
    return recorder.calls


def launches(subject: Subject) -> Iterator[Row | None]:
    """Measure a step on batches already on the device, launched in each way that PyTorch has.

    First, each way is checked against eager execution: `CHECKED_STEPS` from the same start must give the same loss.

    Yields:
        None wherever the caller may stop; then a row for `eager`, `compiled`, `reduce-overhead` and, on a card, `CUDA
        graph`, and for each `…/first call`: compiling and recording, which are not part of a step.

    Raises:
        NotMeasured: A way's loss differs from the eager loss.
    """
    x, y = tensors(subject.data, subject.device)[:2]
    size = subject.batch_size
    ways: dict[str, Callable[[nn.Module, float], OnBatch]] = {
        "eager": one_step,
        "compiled": one_compiled_step,
        "reduce-overhead": _with_less_overhead,
    }
    if subject.device == "gpu":
        ways["CUDA graph"] = partial(_as_a_graph, images=x[:size], labels=y[:size])
    experiments: dict[str, StepExperiment] = {}
    first_call_s, losses = {}, {}
    for name, make in ways.items():
        began = time.perf_counter()
        step = _made(make, subject, CHECKED_RATE)
        loss = [float(step(x[:size], y[:size])) for _ in range(CHECKED_STEPS)][-1]
        first_call_s[name], losses[name] = time.perf_counter() - began, loss
        if abs(loss - losses["eager"]) > TOLERANCE * abs(losses["eager"]):
            raise NotMeasured(f"expected the eager loss of {losses['eager']:.5f}, got {loss:.5f} with {name}")
        yield None
        experiments[name] = _on_batches(_made(make, subject), x, y, subject)
    yield from interleaved(experiments)
    for name, seconds in first_call_s.items():
        yield row_of(f"{name}/{FIRST_CALL}", [seconds])


def _on_batches(step: OnBatch, x: torch.Tensor, y: torch.Tensor, subject: Subject) -> StepExperiment:
    batches, size = cycle(subject.starts), subject.batch_size
    return repeated(
        lambda: step(x[(start := next(batches)) : start + size], y[start : start + size]),
        lambda _: wait(subject.device),
        config=IN_A_ROW,
    )


def _with_less_overhead(model: nn.Module, learning_rate: float) -> OnBatch:
    # On a card, this mode makes CUDA graphs; on a processor, it is the plain compiled step.
    step = one_compiled_step(model, learning_rate, mode="reduce-overhead")

    def call(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        return step(images, labels)

    return call


def _as_a_graph(model: nn.Module, learning_rate: float, images: torch.Tensor, labels: torch.Tensor) -> OnBatch:
    """Record the eager step as a CUDA graph; each call copies its batch to the graph's input and replays it.

    This follows "Whole-network capture" in PyTorch's notes on CUDA semantics; the warm-up steps are undone.
    """
    step, before = one_step(model, learning_rate), copy.deepcopy(model.state_dict())
    images, labels = images.clone(), labels.clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            step(images, labels)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step(images, labels)
    model.load_state_dict(before)

    def call(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        images.copy_(x)
        labels.copy_(y)
        graph.replay()
        return loss

    return call


def resnet_step(subject: Subject) -> Iterator[Row | None]:
    """Measure a step of ResNet-18 on one batch already on the device, and its first call.

    Raises:
        NotMeasured: It takes too long here.
    """
    device, size = torch_device(subject.device), subject.batch_size
    model = resnet18().to(device)
    step = one_step(model, subject.training.learning_rate)
    images, labels = torch.randn(size, 3, SIDE, SIDE, device=device), torch.arange(size, device=device) % CLASSES
    took_s = []
    for _ in range(2):
        began = time.perf_counter()
        step(images, labels)
        wait(subject.device)
        took_s.append(time.perf_counter() - began)
        yield None
        if RESNET_CALLS * took_s[-1] > RESNET_LIMIT_S and len(took_s) > 1:
            raise NotMeasured(
                f"a step takes {took_s[-1]:.0f} s: measuring it would take longer than {RESNET_LIMIT_S:.0f} s"
            )
    experiment = repeated(lambda: step(images, labels), lambda _: wait(subject.device))
    yield from interleaved({RESNET: experiment}, rounds(1, took_s[-1]))
    yield row_of(f"{RESNET}/{FIRST_CALL}", [took_s[0]])


SIDE, CLASSES = 224, 1000
CHANNELS = (64, 128, 256, 512)  # of four stages with two blocks each


def _convolution(inputs: int, outputs: int, kernel: int, stride: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs)]


class ResidualBlock(nn.Module):
    """Two convolutions, added to the input, or to a 1 × 1 convolution of the input if the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        first, second = _convolution(inputs, outputs, 3, stride), _convolution(outputs, outputs, 3, 1)
        self.body = nn.Sequential(*first, nn.ReLU(inplace=True), *second)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*_convolution(inputs, outputs, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, inputs, side, side) → (batch, outputs, side / stride, side / stride)."""
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet18() -> nn.Sequential:
    """Return the usual PyTorch model of ResNet-18: images (batch, 3, 224, 224) → logits (batch, 1000).

    He, Zhang, Ren and Sun, Deep Residual Learning for Image Recognition, 2015, table 1; basic blocks of figure 2, batch
    normalisation after each convolution.
    """
    layers = [*_convolution(3, CHANNELS[0], 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = CHANNELS[0]
    for outputs in CHANNELS:
        layers += [ResidualBlock(inputs, outputs, 1 if outputs == inputs else 2), ResidualBlock(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES))


AHEAD = 2  # batches that each worker prefetches: PyTorch's default


@dataclass
class _TorchImages(Dataset):
    """Images (rows, 784) and labels (rows,), again and again; each image is preprocessed when it is read."""

    images: np.ndarray
    labels: np.ndarray
    preprocess: Preprocessing

    def __len__(self) -> int:
        return sys.maxsize  # endless

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        row = index % len(self.images)
        return self.preprocess(self.images[row]), int(self.labels[row])


@contextmanager
def feed(pipeline: Pipeline, preprocess: Preprocessing, subject: Subject) -> Iterator[Feed]:
    """Yield the feed of a pipeline: its batches, and the step on them."""
    workers, device = int(pipeline.feed.removeprefix("loader-")), torch_device(subject.device)
    loaders = [
        DataLoader(
            _TorchImages(*rows_of(subject.data, pipeline.rows), preprocess),
            pipeline.batch_size,
            drop_last=True,
            num_workers=workers,
            persistent_workers=workers > 0,
            multiprocessing_context="spawn" if workers else None,
            prefetch_factor=AHEAD if workers else None,
            pin_memory=subject.device == "gpu",
        )
    ]
    one = _made(one_step, subject)

    def step(batch: Any) -> float:
        images, labels = (part.to(device, non_blocking=True) for part in batch)
        return one(images, labels).item()  # waits for the device

    try:
        yield Feed(lambda: iter(loaders[0]), step, on_their_way=AHEAD * workers)  # they cannot be cancelled
    finally:
        loaders.clear()  # dropping the last reference ends the workers and waits for them
