"""Trainings by a `concurrent.futures.Executor`, such as a Dask cluster's.

Its processes are not started by this program, so each checks, in `perform`, that it computes what this one would, and
refuses by name otherwise.
"""

import os
import platform
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass
from functools import cache

from lib.model.backends.environment_variables import worker_environment
from lib.model.backends.environments import HERE
from lib.model.backends.fingerprint import source_digest
from lib.model.backends.reference import WrongNumbers, verify
from lib.model.backends.registry import Runtime, environment_of, versions
from lib.model.data import prepared
from lib.model.data.mnist import Data, DataError, load
from lib.sweeps.workers.cancel import Cancel
from lib.sweeps.workers.messages import Job, Progress, Trained, TrainingFailed
from lib.sweeps.workers.worker import train_job

POLL_S = 0.05


class OtherVersions(RuntimeError):
    """A process would not compute what this one does; the text names it, the difference and the remedy."""


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
                except OtherVersions as error:
                    raise TrainingFailed(str(error)) from error
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
        OtherVersions: The process has other versions, code or images, or computes wrongly.
        Exception: Whatever the backend raises.
    """
    try:
        data = prepared.load(job.data.digest) if job.data.digest else _data()
    except DataError as error:
        raise OtherVersions(_named(f"{error} there, or train on this machine (strategy sequential)")) from error
    if expected.data_digest and data.digest != expected.data_digest:
        raise OtherVersions(
            _named(
                f"it has other training images than this program (digest {data.digest[:8]}, expected"
                f" {expected.data_digest[:8]}); set MNIST_NPZ there to the same file"
            )
        )
    if why := why_not(expected, job.runtime, stacked=bool(job.how.devices)):
        raise OtherVersions(why)
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
    except WrongNumbers as error:
        return _named(str(error))
    return ""


@cache
def _data() -> Data:
    """MNIST, loaded once a process."""
    return load()


def _named(what: str) -> str:
    return f"worker {platform.node()}, process {os.getpid()}: {what}"
