"""Trainings by a `concurrent.futures.Executor`, such as a Dask cluster's.

Its processes are not started by this program, so each checks, in `perform`, that it computes what this one would, and
refuses by name otherwise. Of a Dask scheduler's workers, those that would refuse are given nothing, and named on
standard error. `make cluster` installs Dask.
"""

import os
import platform
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

from lib.model.backends.base import CannotTrain
from lib.model.backends.fingerprint import source_digest
from lib.model.backends.reference import verify
from lib.model.backends.registry import HERE, Runtime, environment_of, versions, worker_environment
from lib.model.data import prepared
from lib.model.data.mnist import Data, DataError, load
from lib.model.hardware.machine import usable_cores
from lib.sweeps.workers.messages import Job, Progress, Trained, TrainingFailed
from lib.sweeps.workers.queue import Cancel
from lib.sweeps.workers.worker import train_job

POLL_S = 0.05
ADDRESS = "DASK_SCHEDULER_ADDRESS"  # environment variable
ANSWER_S = 4.0  # a scheduler that is there answers sooner
LOCAL = "or choose another strategy: all of them train on this machine"


@dataclass(frozen=True)
class Expected:
    """What every process must agree on, so that its curves are those that this program would have computed."""

    versions: str
    sources: str
    data_digest: str  # of the images; empty: not compared

    @classmethod
    def here(cls, runtime: Runtime, data_digest: str) -> "Expected":
        """What this process has."""
        return cls(versions(runtime), source_digest(), data_digest)


def messages(
    executor: Executor, n_workers: int, jobs: Sequence[Job], expected: Expected, cancel: Cancel
) -> Iterator[Progress | Trained]:
    """Have an executor do jobs, and yield what each has to say when it is done.

    At most twice as many as there are workers are submitted at a time, so that a cancel loses little.

    Args:
        executor: Its processes train.
        n_workers: How many jobs it does at the same time.
        jobs: The first are submitted first.
        expected: What its processes must agree on.
        cancel: Ends it early: jobs that are under way are given up.

    Raises:
        TrainingFailed: A process refused; or jobs failed, or their processes ended, once all others are done.
    """
    waiting, running, failed = deque(jobs), set[Future](), list[Exception]()
    try:
        while (waiting or running) and not cancel.is_set():
            while waiting and len(running) < 2 * n_workers:
                running.add(executor.submit(perform, waiting.popleft(), expected))
            done, running = wait(running, timeout=POLL_S, return_when=FIRST_COMPLETED)
            for future in done:
                try:
                    told = future.result()
                except TrainingFailed:
                    raise
                except Exception as error:  # any library's, or its process ended
                    failed.append(error)
                else:
                    yield from told
        if failed and not cancel.is_set():
            why = f"{type(failed[0]).__name__}: {failed[0]}"
            raise TrainingFailed(f"{len(failed)} of {len(jobs)} tasks failed, the others are done and kept: {why}")
    finally:
        for future in running:
            future.cancel()


def perform(job: Job, expected: Expected) -> list[Progress | Trained]:
    """In a process of the executor: check that it computes the same, load the data, and train.

    Raises:
        TrainingFailed: The process has other versions, code or images, or computes wrongly.
        Exception: Whatever the backend raises.
    """
    try:
        data = prepared.load(job.data.digest) if job.data.digest else _data()
    except DataError as error:
        raise TrainingFailed(_named(f"{error} there, or train on this machine (strategy sequential)")) from error
    if expected.data_digest and data.digest != expected.data_digest:
        raise TrainingFailed(
            _named(
                f"it has other training images than this program (digest {data.digest[:8]}, expected"
                f" {expected.data_digest[:8]}); set MNIST_NPZ there to the same file"
            )
        )
    if why := why_not(expected, job.runtime, stacked=bool(job.how.devices)):
        raise TrainingFailed(why)
    return [one for one in train_job(job, _data()) if isinstance(one, Progress | Trained)]


def why_not(expected: Expected, runtime: Runtime, data: Data | None = None, stacked: bool = False) -> str:
    """Why this process would not compute what is expected: its name and the remedy; empty if it would.

    Args:
        expected: What it must agree on; the images are not compared.
        runtime: What it shall train with.
        data: MNIST, for the known answer that it must compute, where this process has loaded it.
        stacked: Whether the program for stacks must compute it too.
    """
    if environment_of(runtime) is not HERE:
        other = environment_of(runtime).python
        return _named(
            f"it runs in {HERE.python}, expected {other}, which has {runtime.label}; train one after another (strategy"
            " sequential)"
        )
    here = Expected.here(runtime, expected.data_digest)
    if here.versions != expected.versions:
        return _named(f"it has {here.versions}, expected {expected.versions}; install the same requirements there")
    if here.sources != expected.sources:
        return _named("it has another state of this project's code; copy this one there and restart it")
    # Whoever started this process: XLA reads its flags when it is first used, not when it is imported.
    flags = worker_environment(runtime, None, threads=1)
    os.environ |= {name: value for name, value in flags.items() if name == "XLA_FLAGS"}
    try:
        verify(runtime, data or _data(), stacked)
    except CannotTrain as error:
        return _named(str(error))
    return ""


@cache
def _data() -> Data:
    return load()


def _named(what: str) -> str:
    return f"worker {platform.node()}, process {os.getpid()}: {what}"


@contextmanager
def cluster(executor: Executor | None, runtime: Runtime, data_digest: str) -> Iterator[tuple[Executor, int]]:
    """The executor, or where there is none the scheduler at `ADDRESS`, whose connection is closed at the end.

    Args:
        executor: That was given.
        runtime: What the workers shall train with; those that cannot, or compute wrongly with it, are left out.
        data_digest: Of the training images; each worker compares its own when it is given a task.

    Yields:
        What takes the jobs, and how many workers it has, at least one.

    Raises:
        ValueError: There is neither an executor nor an address.
        TrainingFailed: Dask is not installed, the scheduler does not answer for `ANSWER_S`, or no worker can be used.
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
        from distributed import Client
    except ImportError as error:
        raise TrainingFailed(f"Dask is not installed, so {to} cannot be used; run `make cluster`, {LOCAL}") from error
    try:
        client = Client(to, timeout=ANSWER_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError, TypeError) as error:
        raise TrainingFailed(
            f"the scheduler at {to} did not answer within {ANSWER_S:.0f} s; start it, correct {ADDRESS}, {LOCAL}"
        ) from error
    with client:
        said: dict = client.run(why_not, Expected.here(runtime, data_digest), runtime, on_error="return")  # type: ignore[assignment]
        good = [worker for worker, refusal in said.items() if not refusal]
        refused = {worker: _words(refusal) for worker, refusal in said.items() if refusal}
        if not good:
            why = next(iter(refused.values()), "it has no workers yet: start some")
            raise TrainingFailed(f"no worker of the scheduler at {to} can be used: {why}; {LOCAL}")
        for worker, why in refused.items():
            print(f"left out: {worker}: {why}", file=sys.stderr)
        yield client.get_executor(workers=good, allow_other_workers=False, pure=False), len(good)


def _words(answer: object) -> str:
    """A refusal, or what went wrong on the way to one: a worker without this project cannot even be asked."""
    if isinstance(answer, ImportError):
        return f"it cannot import this project ({answer}); start it in the project's folder, with its requirements"
    return str(answer)
