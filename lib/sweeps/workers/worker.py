"""The worker process: runs the jobs it receives, streams their events, and never outlives its parent.

Processes of an executor, such as a Dask cluster's, can train too. This program did not start them, so `perform` first
checks that they would compute the same, and otherwise refuses with the worker's name. A Dask scheduler's workers that
would refuse get no jobs, and are listed on standard error. `make cluster` installs Dask.
"""

import faulthandler
import os
import platform
import re
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from multiprocessing.connection import Connection
from typing import IO, Any

from lib.model.backends.base import CannotTrain, Epoch, Event, FirstCall, Steps, no_parameters
from lib.model.backends.fingerprint import source_digest
from lib.model.backends.reference import verify
from lib.model.backends.registry import (
    BACKENDS,
    HERE,
    Runtime,
    environment_of,
    load_train,
    lost_card,
    versions,
    worker_environment,
)
from lib.model.data import mnist as data_module
from lib.model.data import prepared
from lib.model.data.mnist import Data, DataError
from lib.model.hardware.machine import usable_cores, use_one_core
from lib.model.hardware.process import stderr_redirected
from lib.sweeps.workers.messages import (
    CardLost,
    Checkpoint,
    End,
    Job,
    Measured,
    Progress,
    Ready,
    Trained,
    TrainingFailed,
)
from lib.sweeps.workers.queue import Cancel
from lib.timing.diagnosis import CardFacts, card_of
from lib.timing.profiling.request import NotMeasured

PARENT_POLL_S = 0.5
CHECKPOINT_S = 5.0  # between two checkpoints of a training


def main(connection: Connection, parent: str, idle_s: str, *runtime: str) -> None:
    """Entry point of the worker process: load the library and the data, send `Ready`, then run jobs until idle.

    If starting fails, send `TrainingFailed` and return. If a job fails, send that as the job's last message. All
    arguments but the connection are strings from a command line.

    Args:
        connection: To the parent.
        parent: Process id of the parent, which may already be dead.
        idle_s: Seconds without a job after which the process ends.
        runtime: Backend to import first, device, and precision.
    """
    faulthandler.enable()  # a crash in a library leaves its traceback in the terminal
    os.setsid()  # so that the terminal's signals do not reach it
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the editor's interrupt button must not end a worker

    def follow() -> None:
        # An idle worker notices the closed pipe first; this also covers a long step, and a pipe that another inherited.
        while os.getppid() == int(parent):
            time.sleep(PARENT_POLL_S)
        os._exit(0)

    threading.Thread(target=follow, daemon=True).start()
    asked = Runtime(*runtime)
    try:
        data, card = _get_ready(asked)
        verify(asked, data)
    except (CannotTrain, DataError, ImportError, MemoryError, OSError) as error:
        connection.send(TrainingFailed(str(error)))
        return
    with suppress(EOFError, OSError):  # the parent closed its end, or died
        connection.send(Ready(data.facts, card, os.getpid()))
        _run_jobs(connection, data, float(idle_s))


def _run_jobs(connection: Connection, data: Data, idle_s: float) -> None:
    jobs: dict[int, Any] = {}  # the generators of their messages, by id
    running = 0  # id of the job in progress; 0 if all are paused
    while running or connection.poll(idle_s):
        if running and not connection.poll():
            content = _next(jobs[running])
            connection.send((running, content))
            if isinstance(content, CardLost):  # this process cannot use the card again, nor release it cleanly
                os._exit(1)
            if isinstance(content, End | TrainingFailed):
                del jobs[running]
                running = 0
            continue
        message = connection.recv()
        if isinstance(message, Job):
            running = message.id
            jobs[running] = _examine(message, data) if message.examination else train_job(message, data)
            continue
        job_id, order = message
        if order is None:
            running = job_id
        elif job_id in jobs:  # else it has just ended
            if order is End.STOPPED:
                jobs.pop(job_id).close()
            if job_id == running:
                running = 0
            connection.send((job_id, order))


def _next(contents: Iterator) -> Any:
    """Return a job's next message, or how it ended."""
    try:
        return next(contents, End.DONE)
    except (CannotTrain, DataError, NotMeasured) as error:
        return TrainingFailed(str(error))
    except Exception as error:  # from any library: a sentence for the page, the traceback for the terminal
        if not isinstance(error, MemoryError):
            traceback.print_exc(file=sys.stderr)
        return (CardLost if lost_card(str(error)) else TrainingFailed)(_sentence(error))


def _sentence(error: Exception) -> str:
    text = str(error).strip().split("\n")[0][:200]
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text or "out of memory" in text.lower():
        return "there is not enough memory for this training; choose a smaller network or batch"
    if said := lost_card(str(error)):
        return (
            f"the GPU no longer responds (“{said}”): the next run starts a new worker; if that fails too, check"
            " nvidia-smi or dmesg, and restart the machine"
        )
    return f"the training stopped with {type(error).__name__}: {text}"


def train_job(job: Job, data: Data) -> Iterator[Progress | Checkpoint | Trained | None]:
    """Yield a job's messages until all its trainings have ended, or its `probe_s` is over; `data` is MNIST."""
    items = job.items
    sent_at = dict.fromkeys(range(len(items)), time.monotonic())
    stepped_s = 0.0
    for report in _events(job, data):
        index, event = report or (0, None)
        # A stack reports the steps of its trainings one by one: complete such a report even after the time is over.
        if job.probe_s and stepped_s > job.probe_s and not (job.devices and isinstance(event, Steps)):
            return
        if event is None:
            yield None
            continue
        stepped_s += event.train_s if isinstance(event, Steps) else 0.0
        # The function that reads the parameters cannot be pickled.
        yield Progress(items[index], replace(event, parameters=no_parameters) if isinstance(event, Epoch) else event)
        epochs = job.trainings[index].epochs
        if isinstance(event, Epoch) and (event.epoch + 1 == epochs or event.diverged_step is not None):
            yield Trained(items[index], event.parameters() if job.want_parameters else None)
        elif isinstance(event, Epoch) and job.want_parameters and time.monotonic() - sent_at[index] > CHECKPOINT_S:
            sent_at[index] = time.monotonic()
            yield Checkpoint(items[index], event.parameters())


def _events(job: Job, data: Data) -> Iterator[tuple[int, Event | None] | None]:
    """Yield (index, event) pairs. The job can be stopped where a pair, or its event, is None."""
    backend, device = job.runtime.backend, job.runtime.device
    verify(job.runtime, data, stacked=bool(job.devices))
    data = prepared.load(job.data.digest) if job.data.digest else data
    if job.devices:
        from lib.model.backends.stacked import train_stack  # JAX only

        yield from train_stack(job.trainings, data, device, job.devices, job.start, job.first_epoch)
        return
    train = load_train(backend)
    trainings = [
        (index, train(training, data, device, job.start.get(index), job.first_epoch))
        for index, training in enumerate(job.trainings)
    ]
    try:
        if job.parallel > 1:
            yield from in_parallel(trainings, job.parallel)
        else:
            yield from interleave(trainings, BACKENDS[backend].side_by_side)
    finally:
        for _, training in trainings:
            training.close()  # type: ignore[attr-defined]


def _examine(job: Job, data: Data) -> Iterator[Measured | None]:
    from lib.timing.profiling.run import examine

    assert job.examination is not None, "asked for"
    for row in examine(job.runtime.backend, job.runtime.device, job.examination, data):
        yield None if row is None else Measured(*row)


def interleave(trainings: list[tuple[int, Iterator[Event]]], side_by_side: bool) -> Iterator[tuple[int, Event | None]]:
    """Merge the events of several trainings; each training's own events stay in order.

    Args:
        trainings: Pairs of index and events.
        side_by_side: Whether trainings alternate, one event each, after their first steps; else they run one after
            another.

    Yields:
        Index and next event of a training; None instead of the event when it has ended.
    """
    waiting = deque(trainings)
    while waiting:
        index, training = waiting.popleft()
        event = next(training, None)
        yield index, event
        if event is not None:
            # A training continues after its first call, so that its steps appear before the others' first calls.
            to_the_end = side_by_side and not isinstance(event, FirstCall)
            (waiting.append if to_the_end else waiting.appendleft)((index, training))


def in_parallel(trainings: list[tuple[int, Iterator[Event]]], cores: int) -> Iterator[tuple[int, Event | None]]:
    """Merge the events of trainings that run at the same time, one core each; surplus trainings alternate.

    Args:
        trainings: Pairs of index and events.
        cores: Number of trainings at the same time.

    Yields:
        As `interleave`. A training pauses until the next event is requested, so its state matches its last event.
    """
    waiting, running = deque(trainings), dict[Future, tuple[int, Iterator[Event]]]()
    with ThreadPoolExecutor(cores, initializer=use_one_core) as threads:
        while waiting or running:
            while waiting and len(running) < cores:
                index, training = waiting.popleft()
                running[threads.submit(next, training, None)] = index, training
            for ready in wait(running, return_when=FIRST_COMPLETED).done:
                index, training = running.pop(ready)
                event = ready.result()
                yield index, event
                if event is not None:
                    waiting.append((index, training))


def _about_the_card(written: IO[bytes]) -> str:
    """Return the library's last output about CUDA as a sentence; empty if there is none."""
    written.seek(0)
    lines = [line.strip() for line in written.read().decode(errors="replace").splitlines()]
    told = [line for line in lines if re.search(r"cuda|gpu|dlopen|driver", line, re.IGNORECASE)]
    return f" Its library wrote: {told[-1][-300:]}" if told else ""


def _get_ready(runtime: Runtime) -> tuple[Data, CardFacts | None]:
    """Import the library while the data load (decompression and hashing), then ask the library for its card."""
    with ThreadPoolExecutor(1) as threads:
        loaded = threads.submit(data_module.load)
        with stderr_redirected() as written:
            load_train(runtime.backend)
            try:
                card = card_of(runtime)
            except CannotTrain as error:
                raise CannotTrain(f"{error}{_about_the_card(written)}") from error
        return loaded.result(), card


POLL_S = 0.05  # between checks for a cancel
ADDRESS = "DASK_SCHEDULER_ADDRESS"  # environment variable
ANSWER_S = 4.0  # a running scheduler answers sooner
LOCAL = "or choose another strategy: all others train on this machine"


# What must match for a process to compute the same curves as this program: versions, digest of this project's source,
# and digest of the images (empty: not compared).
Expected = tuple[str, str, str]


def expected_here(runtime: Runtime, data_digest: str) -> Expected:
    return versions(runtime), source_digest(), data_digest


def submitted(
    executor: Executor, jobs: Sequence[Job], expected: Expected, cancel: Cancel
) -> Iterator[Progress | Trained]:
    """Run jobs in an executor, and yield each job's messages when it is done.

    Args:
        executor: Its processes train.
        jobs: In order of submission.
        expected: What its processes must match.
        cancel: Ends early; running jobs are abandoned.

    Raises:
        TrainingFailed: A process refused; or, after all other jobs are done, some failed or their processes ended.
    """
    running, failed = {executor.submit(perform, job, expected) for job in jobs}, list[Exception]()
    try:
        while running and not cancel.is_set():
            done, running = wait(running, timeout=POLL_S, return_when=FIRST_COMPLETED)
            for future in done:
                try:
                    told = future.result()
                except TrainingFailed:
                    raise
                except Exception as error:  # from any library, or the process ended
                    failed.append(error)
                else:
                    yield from told
        if failed and not cancel.is_set():
            why = f"{type(failed[0]).__name__}: {failed[0]}"
            raise TrainingFailed(f"{len(failed)} of {len(jobs)} tasks failed (the others finished and are kept): {why}")
    finally:
        for future in running:
            future.cancel()


def perform(job: Job, expected: Expected) -> list[Progress | Trained]:
    """In an executor's process: check that it computes the same as this program, load the data, and train.

    Raises:
        TrainingFailed: The process has other versions, code or images, or computes wrong results.
        Exception: Whatever the backend raises.
    """
    try:
        data = prepared.load(job.data.digest) if job.data.digest else _data()
    except DataError as error:
        raise TrainingFailed(_named(f"{error} there, or train on this machine (strategy sequential)")) from error
    if expected[2] and data.digest != expected[2]:
        raise TrainingFailed(
            _named(
                f"its training images differ from this program's (digest {data.digest[:8]}, expected"
                f" {expected[2][:8]}); set MNIST_NPZ there to the same file"
            )
        )
    if why := why_not(expected, job.runtime, stacked=bool(job.devices)):
        raise TrainingFailed(why)
    return [one for one in train_job(job, _data()) if isinstance(one, Progress | Trained)]


def why_not(expected: Expected, runtime: Runtime, stacked: bool = False) -> str:
    """Return why this process would compute something else, with its name and the remedy; empty if it would not.

    Args:
        expected: What it must match; the images are not compared.
        runtime: Backend and device to train on.
        stacked: Whether to verify the program for stacks too.
    """
    if environment_of(runtime) is not HERE:
        other = environment_of(runtime).python
        return _named(
            f"it runs in {HERE.python}, expected {other}, which has {runtime.label}; train one after another (strategy"
            " sequential)"
        )
    has, sources, _ = expected_here(runtime, "")
    if has != expected[0]:
        return _named(f"it has {has}, expected {expected[0]}; install the same requirements there")
    if sources != expected[1]:
        return _named("it has a different version of this project's code; copy this one there and restart it")
    # Takes effect no matter who started this process: XLA reads its flags on first use, not on import.
    flags = worker_environment(runtime, None, threads=1)
    os.environ |= {name: value for name, value in flags.items() if name == "XLA_FLAGS"}
    try:
        verify(runtime, _data(), stacked)
    except CannotTrain as error:
        return _named(str(error))
    return ""


@cache
def _data() -> Data:
    return data_module.load()


def _named(what: str) -> str:
    return f"worker {platform.node()}, process {os.getpid()}: {what}"


@contextmanager
def cluster(executor: Executor | None, runtime: Runtime, data_digest: str) -> Iterator[tuple[Executor, int]]:
    """Use the given executor, or else the scheduler at `ADDRESS`; closes the connection to the latter at the end.

    Args:
        executor: None: use the scheduler.
        runtime: Backend and device to train on; workers that cannot use it, or compute wrong results, are left out.
        data_digest: Of the training images; each worker compares it with its own when it gets a task.

    Yields:
        An executor, and its number of workers, at least one.

    Raises:
        ValueError: There is neither an executor nor an address.
        TrainingFailed: Dask is missing, the scheduler does not answer within `ANSWER_S`, or no worker is usable.
    """
    if executor is not None:
        yield executor, getattr(executor, "_max_workers", None) or usable_cores()
        return
    if not (to := os.environ.get(ADDRESS)):
        raise ValueError(
            f"strategy cluster: expected an executor or {ADDRESS}, got neither; set it to a Dask scheduler's address,"
            f" {LOCAL}"
        )
    try:
        from asyncio import CancelledError  # raised instead of TimeoutError if both come at once

        from distributed import Client
    except ImportError as error:
        raise TrainingFailed(f"Dask is not installed, so {to} cannot be used; run `make cluster`, {LOCAL}") from error
    try:
        client = Client(to, timeout=ANSWER_S, set_as_default=False)
    except (OSError, CancelledError, ValueError, TypeError) as error:
        raise TrainingFailed(
            f"the scheduler at {to} did not answer within {ANSWER_S:.0f} s; start it, correct {ADDRESS}, {LOCAL}"
        ) from error
    with client:
        said: dict = client.run(why_not, expected_here(runtime, data_digest), runtime, on_error="return")  # type: ignore[assignment]
        good = [worker for worker, refusal in said.items() if not refusal]
        refused = {worker: _words(refusal) for worker, refusal in said.items() if refusal}
        if not good:
            why = next(iter(refused.values()), "it has no workers yet: start some")
            raise TrainingFailed(f"no worker of the scheduler at {to} can be used: {why}; {LOCAL}")
        for worker, why in refused.items():
            print(f"left out: {worker}: {why}", file=sys.stderr)
        yield client.get_executor(workers=good, allow_other_workers=False, pure=False), len(good)


def _words(answer: object) -> str:
    """A worker's refusal, or the error from asking it: without this project it cannot run `why_not`."""
    if isinstance(answer, ImportError):
        return f"it cannot import this project ({answer}); start it in the project's folder, with its requirements"
    return str(answer)
