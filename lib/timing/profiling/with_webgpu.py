"""The experiments on WebGPU's step, launched in each of its ways, and its calls and operations as a trace.

WebGPU has no profiler. So the calls that the host makes are watched (`Recorder`), and each operation gets a compute
pass of its own, because timestamps are written where a pass begins and ends. Both clocks are of nanoseconds, but the
device's has an origin of its own. Whatever the host saw bounds how far one is ahead of the other: nothing begins before
it was submitted, and nothing ends after it was waited for. Some empty passes, submitted and waited for one by one
before and after, bound it closely. Where the bounds contradict each other, the device's rows are left out.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np

from lib.formatting import seconds
from lib.model.backends.webgpu import step
from lib.model.backends.with_webgpu import (
    LAUNCHES,
    MOST_PASSES,
    Execution,
    Images,
    OpenGpu,
    Timestamps,
    gpu,
    training_images,
)
from lib.model.hardware.webgpu import KINDS
from lib.timing.measurement import Step
from lib.timing.profiling.harness import IN_A_ROW, ONE_CALL_S, StepExperiment, Subject, TimedStep, in_one_call, repeated
from lib.timing.profiling.request import ON_DEVICE
from lib.timing.profiling.traces.form import DISPATCH, KERNEL, LAUNCH, TRANSFER, WAIT, Collector, Trace

STEPS = 16  # in one call of a way: what is done once for all of them is shared by as many as in a short chunk


def experiments(backend: str, subject: Subject) -> dict[str, StepExperiment]:
    """The experiments of `lib.timing.profiling.run` on one way of launching, by name.

    The device takes its batches by itself: the loop has nothing to do beside the call, and the first operation is the
    transfer, which all others do without. `many` are commands that were encoded before the clock began, or what one
    kernel makes.
    """
    launch, device = LAUNCHES[backend], gpu(subject.device)
    run, tiny = (_execution(one, slice(1, None)) for one in (subject, subject.tiny))
    fetch, fetch_one = (_execution(one, slice(1)) for one in (subject, subject.tiny))

    def done(_: object) -> None:
        device.wait()

    def many(of: Execution) -> StepExperiment:
        return in_one_call(of.one_kernel, done) if launch is Execution.one_kernel else submitted(of)

    by_its_clock: dict[str, StepExperiment] = {ON_DEVICE: submitted(run, by_its_clock=True)} if device.has_clock else {}
    return by_its_clock | {
        "python": repeated(lambda: None),
        "returns": repeated(lambda: launch(tiny, STEPS), done, STEPS, IN_A_ROW, returns=True, at_most=1),
        "call": repeated(lambda: launch(run, STEPS), done, STEPS, IN_A_ROW),
        # Of a batch to where the other operations find it, less the same for one image.
        "transfer": repeated(lambda: fetch.submit(0), done, config=IN_A_ROW),
        "transfer-base": repeated(lambda: fetch_one.submit(0), done, config=IN_A_ROW),
        "many": many(run),
        "many-tiny": many(tiny),
    }


def timed_step(subject: Subject) -> TimedStep:
    """A step that is one submission, for the traps."""

    def on_its_own_images(on: OpenGpu) -> tuple[Execution, Images]:
        images = Images.upload(on, *subject.batch)
        run = Execution(on, step(subject.network, subject.batch_size), images, 1, "A step")
        run.set(subject.parameters, subject.training.learning_rate)
        run.schedule(np.zeros(1))
        return run, images

    def calls(run: Execution) -> Step:
        def call() -> Execution:
            run.one_submission_a_step(1)
            return run

        return call

    def wait(run: object) -> None:
        assert isinstance(run, Execution)
        run.gpu.wait()

    def fresh() -> Step:
        return calls(on_its_own_images(OpenGpu(subject.device))[0])  # a device opened anew has no kernels yet

    run, images = on_its_own_images(gpu(subject.device))

    def with_transfer() -> None:
        images.write(run.gpu, *(one.copy() for one in subject.batch))
        run.one_submission_a_step(1)
        run.gpu.wait()

    # Some adapters take one submission, and let the next one wait for it.
    return TimedStep(calls(run), wait, with_transfer, fresh, queued=1)


def submitted(run: Execution, by_its_clock: bool = False) -> StepExperiment:
    """Many steps whose commands are encoded before the clock begins, and submitted together.

    Args:
        run: Whose steps.
        by_its_clock: Of the device; else by the host's, submission and waiting included.
    """

    def block(steps: int) -> float:
        if by_its_clock:
            return run.by_its_clock_s(steps) / steps
        commands = run.encoded(steps)
        run.gpu.wait()
        before = time.perf_counter()
        run.gpu.queue.submit([commands])
        run.gpu.wait()
        return (time.perf_counter() - before) / steps

    yield (first_s := block(8))
    steps = int(np.clip(ONE_CALL_S / max(first_s, 1e-9), 4, 4096))
    while True:
        yield block(steps)


def _execution(subject: Subject, operations: slice) -> Execution:
    """These of the step's operations on the device, with a batch at hand, ready to go round and round an epoch."""
    whole = step(subject.network, subject.batch_size)
    x = training_images(subject.data, subject.device)
    program = replace(whole, operations=whole.operations[operations])
    run = Execution(gpu(subject.device), program, x, len(subject.starts), "A step")
    run.set(subject.parameters, subject.training.learning_rate)
    run.schedule(np.array(subject.starts))
    run.write("values 0", subject.batch[0])
    return run


MADE_BY = "WebGPU's timestamps"
ENCODE, SUBMIT, WRITE, READ, WAITED = (
    "encode commands",
    "queue.submit",
    "queue.write_buffer",
    "queue.read_buffer",
    "wait for the device",
)
_KINDS = {ENCODE: DISPATCH, SUBMIT: LAUNCH, WRITE: TRANSFER, READ: TRANSFER, WAITED: WAIT}
_COPIES = "batch of images"  # the operation that computes nothing
EMPTY_PASSES = 16  # before the recording, and as many after it


# Something on the device that the host has submitted and waited for, in nanoseconds of each one's clock: by the host's,
# before it was handed over; when it began and ended, by the device's; and by the host's, after it was known to be done,
# or None where nobody waited.
SeenStep = tuple[int, int, int, int | None]


def alignment_ns(seen: Iterable[SeenStep]) -> tuple[int, int] | None:
    """What is added to the device's times to have the host's, and by how much that may be off either way.

    None where nothing bounds it, or where the bounds contradict each other.

    Cristian, Probabilistic clock synchronization, 1989: the reply came between two readings of one's own clock.
    """
    known = [one for one in seen if 0 < one[1] <= one[2]]  # some devices write 0 for an empty pass
    low = max((handed_over - began for handed_over, began, _, _ in known), default=None)
    high = min((waited - ended for _, _, ended, waited in known if waited is not None), default=None)
    if low is None or high is None or low > high:
        return None
    return (low + high) // 2, (high - low + 1) // 2


class Recorder:
    """Watches an adapter until `trace` ends it.

    Args:
        on: The adapter that trains.
        kind: Which one of `lib.model.hardware.webgpu.KINDS` it is.
    """

    def __init__(self, on: OpenGpu, kind: str) -> None:
        self._on, self._kind = on, kind
        self._calls: list[tuple[str, int, int, int]] = []  # name, start, end, number of the submission, or 0
        self._names: list[str] = []  # of the operations, a pass each
        self._submissions: list[int] = []  # in which each was; 0 as long as it is in none
        self._sets: list[Timestamps] = []
        self._encoded: dict[Any, range] = {}  # which operations are in commands that are not submitted yet
        self._n_encoded = self._n_submitted = 0
        self._bounds = _empty_passes(on)
        for owner, method, name in self._watched():
            setattr(owner, method, self._timed(name, getattr(owner, method)))
        if on.has_clock:
            on.passes = self._passes

    def trace(self, title: str = "WebGPU") -> Trace:
        """End the recording: all that was seen, under this title."""
        for owner, method, _ in self._watched():
            delattr(owner, method)  # its class's own is in force again
        if self._on.has_clock:
            del self._on.passes
        times = self._times()
        aligned = alignment_ns([*self._bounds, *_empty_passes(self._on), *self._seen(times)])
        found = Collector()
        host = found.lane("host", "Python", "python")
        for name, start_ns, end_ns, submission in self._calls:
            found.add(host, name, _KINDS[name], start_ns, end_ns - start_ns, submission)
        if aligned is not None:
            device = found.lane("device", KINDS[self._kind], "device")
            for name, submission, (began, ended) in zip(self._names, self._submissions, times, strict=False):
                kind = TRANSFER if name == _COPIES else KERNEL
                found.add(device, name, kind, began + aligned[0], ended - began, submission)
        return replace(found.trace(title, MADE_BY), notes=(self._on.name, self._said(aligned)))

    def _said(self, aligned: tuple[int, int] | None) -> str:
        if not self._on.has_clock:
            return "this adapter has no timestamps, so what the device does is not shown"
        if aligned is None:
            return "the device's timestamps contradict the host's clock, and are left out"
        return f"the device's clock is aligned with the host's to ± {seconds(1e-9 * max(1, aligned[1]))}"

    def _watched(self) -> list[tuple[Any, str, str]]:
        """Whose methods are watched, and what a call of each is called."""
        on = self._on
        queue = [(on.queue, "submit", SUBMIT), (on.queue, "write_buffer", WRITE), (on.queue, "read_buffer", READ)]
        return [(on, "encoded", ENCODE), (on, "wait", WAITED), *queue]

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            submission = self._submitted(arguments[0]) if name == SUBMIT else 0
            before_ns = time.perf_counter_ns()
            result = call(*arguments)
            self._calls.append((name, before_ns, time.perf_counter_ns(), submission))
            if name == ENCODE:
                self._encoded[result] = range(self._n_encoded, len(self._names))
                self._n_encoded = len(self._names)
            return result

        return timed

    def _submitted(self, all_commands: Sequence[Any]) -> int:
        """Number of the submission that these commands are handed over by."""
        self._n_submitted += 1
        for index in (index for commands in all_commands for index in self._encoded.pop(commands, ())):
            self._submissions[index] = self._n_submitted
        return self._n_submitted

    def _passes(self, names: Sequence[str]) -> Iterator[tuple[Sequence[int], dict | None]]:
        """In place of `Gpu.passes`: one for each operation."""
        for number, name in enumerate(names):
            index = len(self._names) % MOST_PASSES
            if index == 0:
                self._sets.append(Timestamps(self._on, MOST_PASSES))
            self._names.append(name)
            self._submissions.append(0)
            yield [number], self._sets[-1].of(index)

    def _times(self) -> list[list[int]]:
        """When each operation began and ended, by the device's clock, up to the first that was never submitted."""
        n = self._submissions.index(0) if 0 in self._submissions else len(self._submissions)
        sizes = [min(MOST_PASSES, n - first) for first in range(0, n, MOST_PASSES)]
        return [pair for times, size in zip(self._sets, sizes, strict=False) for pair in times.read(size).tolist()]

    def _seen(self, times: list[list[int]]) -> Iterator[SeenStep]:
        """What each submission says of the two clocks."""
        waited_ns, known = None, {}
        for name, start_ns, end_ns, submission in reversed(self._calls):
            waited_ns = end_ns if name in (WAITED, READ) else waited_ns
            known[submission] = (start_ns, waited_ns)
        for number, of_it in groupby(zip(self._submissions, times, strict=False), key=lambda one: one[0]):
            pairs = [pair for _, pair in of_it]
            start_ns, waited_ns = known[number]
            yield start_ns, min(began for began, _ in pairs), max(ended for _, ended in pairs), waited_ns


def _empty_passes(on: OpenGpu) -> list[SeenStep]:
    """Some passes in which nothing is done, each waited for; none where there are no timestamps."""
    if not on.has_clock:
        return []
    times, clock, looked = Timestamps(on, EMPTY_PASSES), time.perf_counter_ns, []
    for number in range(EMPTY_PASSES):
        encoder = on.device.create_command_encoder()
        encoder.begin_compute_pass(timestamp_writes=times.of(number)).end()
        commands, before_ns = encoder.finish(), clock()
        on.queue.submit([commands])
        on.wait()
        looked.append((before_ns, clock()))
    read = times.read(EMPTY_PASSES).tolist()
    return [(before, began, ended, after) for (before, after), (began, ended) in zip(looked, read, strict=True)]
