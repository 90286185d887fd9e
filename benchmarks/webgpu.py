"""WebGPU: the same steps launched in four ways, on every adapter; with software adapters only the ratios count.

A block is an epoch of a short training; the ways run in turns. Bytes are those that the host sends per step while it
trains, when the images are on the device already. Last comes the page that trains in a browser (`webgpu_page.py`).
"""

import os
import statistics
from dataclasses import replace

import numpy as np

from benchmarks import webgpu_page
from benchmarks.report import LeftOut, Row, Target, note, row, show
from lib.model.backends.base import Epoch, Train
from lib.model.backends.registry import BACKENDS, load_train
from lib.model.data import mnist
from lib.model.data.mnist import Data
from lib.model.hardware.webgpu import SOFTWARE, SOFTWARE_ALLOWED, adapters
from lib.model.spec import Network, Training

WAYS = ("webgpu-operation", "webgpu-step", "webgpu-chunk", "webgpu-kernel")
TRAININGS = (Training(Network((128,)), 0.01, 1, 1), Training(Network((128,)), 0.1, 32, 1))
N_STEPS, ROUNDS = {SOFTWARE: 24}, 5  # steps are slow on a software adapter
USUAL_STEPS = 1_500
MOST_DISPATCHES, MOST_BYTES = 8, 16


def main() -> None:
    os.environ.setdefault(SOFTWARE_ALLOWED, "1")
    if not (found := adapters()):
        raise RuntimeError("WebGPU finds no adapter; install wgpu, and a driver for Vulkan (mesa-vulkan-drivers)")
    whole, left_out = mnist.load(), LeftOut()
    rows = [
        one
        for adapter in found
        for training in TRAININGS
        for one in _rows(adapter.kind, training, _few(whole, adapter.kind, training.batch_size), left_out)
    ]
    page, page_targets = webgpu_page.measured(left_out)
    columns = ("name", "adapter", "batch_size", "backend", "median_s", "q1_s", "q3_s", "than one wait an operation")
    dispatches, sent = _dispatches(), _bytes_a_step(found[0].kind, _few(whole, found[0].kind, 32))
    targets = [
        Target.counted("dispatches of a step with one hidden layer", dispatches, MOST_DISPATCHES),
        Target.counted("bytes sent a step, images on the device", sent, MOST_BYTES),
    ]
    all_columns = (*columns, "first_call_s", *webgpu_page.COLUMNS)
    show("webgpu", rows + page, all_columns, targets + page_targets, left_out)


def _few(data: Data, kind: str, batch_size: int) -> Data:
    """Images for one short epoch on this kind of adapter."""
    n = N_STEPS.get(kind, USUAL_STEPS) * batch_size
    few = {"x_train": data.x_train[:n], "y_train": data.y_train[:n]}
    return replace(data, **few, x_validation=data.x_validation[:100], y_validation=data.y_validation[:100])


def _rows(kind: str, training: Training, data: Data, left_out: LeftOut) -> list[Row]:
    """Seconds per step in each way, with the speedup over one wait per operation."""
    step_s: dict[str, list[float]] = {way: [] for way in WAYS}
    first_call_s: dict[str, float] = {}
    for number in range(ROUNDS + 1):
        for way in np.random.default_rng(number).permutation(WAYS).tolist():
            with left_out.unless_it_works(f"{BACKENDS[way].label}, {kind}, batch size {training.batch_size}"):
                first_s, epoch = _epoch(load_train(way), training, data, kind)
                first_call_s.setdefault(way, first_s)
                step_s[way] += [epoch.train_s / epoch.steps] if number else []  # the first warms up
    note(f"{kind}, batch size {training.batch_size}")
    waiting_s = statistics.median(step_s[WAYS[0]])
    return [
        row("step", times, way, training.batch_size, adapter=kind)
        | {"than one wait an operation": waiting_s / statistics.median(times), "first_call_s": first_call_s[way]}
        for way, times in step_s.items()
        if times
    ]


def _epoch(train: Train, training: Training, data: Data, kind: str) -> tuple[float, Epoch]:
    first, *_, last = train(training, data, kind)
    assert isinstance(last, Epoch)
    return first.first_call_s, last  # type: ignore[union-attr]


def _dispatches() -> int:
    from lib.model.backends.webgpu import step

    return len(step(Network((128,)), 32).operations)


def _bytes_a_step(kind: str, data: Data) -> float:
    """Bytes per step written to the device after the first call."""
    from lib.model.backends.with_webgpu import gpu

    queue, sent = gpu(kind).queue, []
    write = queue.write_buffer
    events = load_train("webgpu-chunk")(TRAININGS[1], data, kind)
    next(events)

    def counted(buffer, offset, contents, *more):
        sent.append(memoryview(contents).nbytes)
        return write(buffer, offset, contents, *more)

    queue.write_buffer = counted
    try:
        epochs = [event for event in events if isinstance(event, Epoch)]
    finally:
        del queue.write_buffer
    return sum(sent) / epochs[0].steps
