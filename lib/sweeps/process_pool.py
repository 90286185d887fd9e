"""Trainings in other processes: a local pool of one-threaded ones, or whatever `concurrent.futures.Executor` is given.

A task is a picklable `PoolTask`, performed by `perform`: the process loads the data itself, trains, and sends back
curves. A process that dies costs only its tasks, which run again; one of other versions refuses by name.
"""

import os
import platform
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from lib.backends.base import Epoch, FirstCall, Parameters, Steps, no_parameters
from lib.backends.environment_variables import complete_environment, worker_environment
from lib.backends.environments import HERE
from lib.backends.fingerprint import source_digest
from lib.backends.known_answer import WrongNumbers, verify
from lib.backends.registry import Runtime, environment_of, load_train, versions
from lib.data.mnist import Data, load
from lib.data.mnist_arrays import DataError
from lib.data.own import prepared
from lib.hardware.cores import usable_cores
from lib.spec import Training
from lib.storage.records import Curve
from lib.workers.cancel import Cancel
from lib.workers.messages import Item
from lib.workers.shutdown import close_at_exit
from lib.workers.worker import follow

IDLE_S = 120.0
POLL_S = 0.05
GRACE_S = 0.2  # for what is under way when somebody else's turn has come
MAX_DEATHS = 3  # of processes, while a task was under way: then the task itself is what kills them


class OtherVersions(RuntimeError):
    """A worker would not compute what the others do; the text names the worker, the difference and the remedy."""


class TaskFailed(RuntimeError):
    """A task could not be done; the text says why."""


@dataclass(frozen=True)
class Expected:
    """What every worker must agree on, so that its curves are those that this program would have computed."""

    versions: str
    sources: str
    data_digest: str

    @classmethod
    def here(cls, runtime: Runtime, data_digest: str) -> "Expected":
        """What this process has, with a digest of the images; an empty one is not compared."""
        return cls(versions(runtime), source_digest(), data_digest)


@dataclass(frozen=True)
class PoolTask:
    """Trainings for one process: one after another, or together as a stack.

    Args:
        runtime: What trains.
        trainings: At least one; of one batch size if they are a stack.
        expected: What the process must agree on.
        first_epoch: The epoch, from 0, that all of them begin with.
        start: The parameters of each training that it continues from, in their order; empty: all begin from their
            seeds.
        stacked: Whether they are a stack.
        want_parameters: Whether the parameters after the last epoch come back.
        points: At most so many losses come back, means of groups of steps; 0: all of them.
        probe_s: End after so many seconds of steps, and report the step time only; 0: train.
    """

    runtime: Runtime
    trainings: tuple[Training, ...]
    expected: Expected
    first_epoch: int = 0
    start: tuple[Parameters | None, ...] = ()
    stacked: bool = False
    want_parameters: bool = False
    points: int = 0  # thin losses to so many, where they are to be thinned
    probe_s: float = 0.0  # only see how fast the steps go

    @property
    def items(self) -> tuple[Item, ...]:
        """The trainings with their runtime, in their order."""
        return tuple(Item(training, self.runtime) for training in self.trainings)


@dataclass(frozen=True)
class Outcome:
    """A task's curves, in the order of its trainings, and the parameters of each; None where they were not wanted."""

    curves: tuple[Curve, ...]
    parameters: tuple[Parameters | None, ...]
    worker: str  # host and process
    step_s: float = 0.0  # of a probe


@dataclass
class Collected:
    """The events of one training, collected until it is finished."""

    first_call_s: float = 0.0
    losses: list = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)

    def add(self, event: FirstCall | Steps | Epoch) -> None:
        """Add an event; an epoch is stored without the function that reads its parameters."""
        if isinstance(event, FirstCall):
            self.first_call_s = event.first_call_s
        elif isinstance(event, Steps):
            self.losses.append(event.losses)
        else:
            self.epochs.append(replace(event, parameters=no_parameters))

    def curve(self, together: int = 1) -> Curve:
        """The curve of all events so far; `together`: networks that were trained in the same seconds."""
        losses = np.concatenate(self.losses) if self.losses else np.empty(0, np.float32)
        return Curve(self.first_call_s, tuple(self.epochs), losses, together=together)


@cache
def _data() -> Data:
    """The images, loaded once a process."""
    return load()


def _data_of(task: PoolTask) -> Data:
    """What the task's trainings are on.

    Raises:
        OtherVersions: This worker does not have the data that somebody brought to another machine.
    """
    which = task.trainings[0].data
    try:
        return prepared.load(which.digest) if which.digest else _data()
    except DataError as error:
        raise OtherVersions(
            f"worker {name_of_process()}: {error} there, or train on this machine (strategy sequential)"
        ) from error


def name_of_process() -> str:
    """Host and process id, as an error names a worker."""
    return f"{platform.node()}, process {os.getpid()}"


def perform(task: PoolTask) -> Outcome:
    """In a worker: check that it computes the same, load the data, and train.

    Returns:
        The curves; for a probe the step time only.

    Raises:
        OtherVersions: The worker has other versions, code or images, or computes wrongly.
        Exception: Whatever the backend raises.
    """
    refuse_if_other(task.expected, task.runtime)
    data = _data_of(task)
    if task.expected.data_digest and data.digest != task.expected.data_digest:
        raise OtherVersions(
            f"worker {name_of_process()} has other training images than this program (digest {data.digest[:8]},"
            f" expected {task.expected.data_digest[:8]}); set MNIST_NPZ there to the same file"
        )
    refuse_if_wrong(task.runtime, stacked=task.stacked)
    if task.probe_s:
        return Outcome((), (), name_of_process(), _probe(task, data))
    collected = [Collected() for _ in task.trainings]
    parameters: list[Parameters | None] = [None] * len(task.trainings)
    for index, event in _events(task, data):
        collected[index].add(event)
        if isinstance(event, Epoch) and task.want_parameters:
            last = event.epoch + 1 == task.trainings[index].epochs or event.diverged_step is not None
            parameters[index] = event.parameters() if last else None
    together = len(task.trainings) if task.stacked else 1
    curves = [one.curve(together) for one in collected]
    thinned = [curve.thinned(task.points) for curve in curves] if task.points else curves
    return Outcome(tuple(thinned), tuple(parameters), name_of_process())


def refuse_if_other(expected: Expected, runtime: Runtime) -> None:
    """Check that this process has the versions and the code that are expected.

    Raises:
        OtherVersions: It has others; the text names the worker and the remedy.
    """
    if environment_of(runtime) is not HERE:
        raise OtherVersions(
            f"worker {name_of_process()} runs in {HERE.python}, expected {environment_of(runtime).python}, which has"
            f" {runtime.label}; train one after another (strategy sequential)"
        )
    here = Expected.here(runtime, expected.data_digest)
    if here.versions != expected.versions:
        raise OtherVersions(
            f"worker {name_of_process()} has {here.versions}, expected {expected.versions}; install the same"
            " requirements there"
        )
    if here.sources != expected.sources:
        raise OtherVersions(
            f"worker {name_of_process()} has another state of this project's code; copy this one there and restart it"
        )


def refuse_if_wrong(runtime: Runtime, data: Data | None = None, stacked: bool = False) -> None:
    """Check that this process computes the known answer.

    Args:
        runtime: What shall train.
        data: The images, where this process has loaded them already.
        stacked: Whether the program for stacks is checked.

    Raises:
        OtherVersions: It computes something else.
    """
    # Whoever started this process: XLA reads its flags when it is first used, not when it is imported.
    os.environ |= {
        name: value for name, value in worker_environment(runtime, None, threads=1).items() if name == "XLA_FLAGS"
    }
    try:
        verify(runtime, data or _data(), stacked)
    except WrongNumbers as error:
        raise OtherVersions(f"worker {name_of_process()}: {error}") from error


def _events(task: PoolTask, data: Data) -> Iterator[tuple[int, FirstCall | Steps | Epoch]]:
    start = dict(enumerate(task.start))
    if task.stacked:
        from lib.backends.stacked.train import train_stack

        known = {index: parameters for index, parameters in start.items() if parameters}
        report = train_stack(task.trainings, data, task.runtime.device, 1, known, task.first_epoch)
        yield from (one for one in report if one is not None)
        return
    train = load_train(task.runtime.backend)
    for index, training in enumerate(task.trainings):
        for event in train(training, data, task.runtime.device, start.get(index), task.first_epoch):
            yield index, event


def _probe(task: PoolTask, data: Data) -> float:
    """Seconds of a step, of all networks of a stack together; 0 where the training ended before the first one."""
    reports: list[Steps] = []
    spent_s = 0.0
    events = _events(task, data)
    for _, event in events:
        if not isinstance(event, Steps):
            continue
        if spent_s > task.probe_s and event.first != reports[-1].first:
            break
        reports.append(event)
        spent_s += event.train_s
    events.close()  # type: ignore[attr-defined]
    seconds, steps = typical(reports) if reports else (0.0, 1)
    return seconds / steps


def typical(reports: Sequence[Steps]) -> tuple[float, int]:
    """Seconds and steps of a probe's report of median speed; of an even number the slower of the two in the middle.

    Not the quickest, which is a step that a whole epoch has few of; and none of the first, whose memory is not in the
    caches yet.

    Args:
        reports: At least one. Those that begin at the same step of the same epoch are networks of one stack, whose
            seconds add up.

    >>> losses = np.ones(100, np.float32)
    >>> typical([Steps(0, 0, losses, 0.5), Steps(0, 100, losses, 1.0), Steps(0, 100, losses, 1.0)])
    (2.0, 100)
    >>> typical([Steps(0, 100 * n, losses, seconds) for n, seconds in enumerate((9.0, 1.0, 2.0, 3.0))])
    (2.0, 100)
    """
    whole: dict[tuple[int, int], tuple[float, int]] = {}
    for report in reports:
        whole[report.first] = (whole.get(report.first, (0.0, 0))[0] + report.train_s, len(report.losses))
    later = {first: report for first, report in whole.items() if first > (0, 0)} or whole
    by_speed = sorted(later.values(), key=lambda report: report[0] / report[1])
    return by_speed[len(by_speed) // 2]


def pools_are_possible(runtime: Runtime) -> bool:
    """Whether a pool's processes can train with it: they run in this environment, and by loky."""
    return HERE.installed("loky") and environment_of(runtime) is HERE


class LocalPool:
    """Processes of this machine, one a core and one thread each.

    They end when idle for `IDLE_S`, with this program, or by `close`.
    """

    def __init__(self, runtime: Runtime) -> None:
        from loky import ProcessPoolExecutor  # only here: a machine that has no pool needs no loky
        from loky.backend import get_context

        self.n = usable_cores()
        environment = complete_environment(runtime, threads=1)
        self.executor = ProcessPoolExecutor(
            self.n,
            context=get_context("loky"),
            env=environment,
            timeout=IDLE_S,
            initializer=follow,
            initargs=(os.getpid(),),
        )
        self._registered, self._used_at = False, 0.0

    @property
    def is_warm(self) -> bool:
        """Whether its processes have been started, and not ended for lack of work since."""
        return bool(self._used_at) and time.monotonic() - self._used_at < IDLE_S

    def submit(self, function: Callable, *arguments) -> Future:
        """As `Executor.submit`; the first call starts the processes."""
        self._used_at = time.monotonic()
        future = self.executor.submit(function, *arguments)
        if not self._registered:
            close_at_exit(self)
            self._registered = True
        return future

    def close(self, wait: bool = False) -> None:
        """End the processes and what they are doing; `wait`: until they have ended."""
        self.executor.shutdown(wait=wait, kill_workers=True)


_pools: dict[str, LocalPool] = {}
_guard = threading.Lock()


def local_pool(runtime: Runtime, fresh: bool = False) -> LocalPool:
    """This program's pool for the runtime's library and device, made where there is none.

    Args:
        runtime: What shall train.
        fresh: End the pool that there is and make another, because it broke or does what nobody wants.
    """
    key = runtime.process
    with _guard:
        if fresh and key in _pools:
            _pools.pop(key).close()
        if key not in _pools:
            _pools[key] = LocalPool(runtime)
        return _pools[key]


def close_pools() -> None:
    """End this program's pools and wait for it, to free their memory."""
    with _guard:
        while _pools:
            _pools.popitem()[1].close(wait=True)


def is_warm(runtime: Runtime) -> bool:
    """Whether the processes of the runtime's pool are running."""
    with _guard:
        pool = _pools.get(runtime.process)
        return pool is not None and pool.is_warm


@dataclass(frozen=True)
class Died:
    """Processes died; these tasks run again."""

    tasks: tuple[PoolTask, ...]


def run_tasks(
    tasks: Sequence[PoolTask],
    executor: Executor | LocalPool,
    n_workers: int,
    cancel: Cancel,
    renew: Callable[[], Executor | LocalPool] | None = None,
    pause: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[PoolTask, Outcome] | Died | None]:
    """Have an executor perform tasks, and yield each outcome when it comes.

    At most twice as many tasks as workers are submitted at a time, so that little is lost and nothing piles up.

    Args:
        tasks: The first are submitted first.
        executor: That performs them.
        n_workers: How many tasks it performs at the same time.
        cancel: Ends it early: tasks that are under way are given up.
        renew: Replaces an executor that broke; the tasks that it had run again. None: they fail.
        pause: Asked again and again; once it is true no more tasks are submitted, and those under way are waited for,
            where there is a `renew` for no longer than `GRACE_S`: somebody else waits for the machine.

    Yields:
        A task with its outcome; `Died` for tasks that run again; None after each look at the tasks under way.

    Raises:
        TaskFailed: A task raised an error, or its process died `MAX_DEATHS` times (once without a `renew`); only when
            all other tasks are done, and not if cancelled.
        OtherVersions: A worker refused; at once.
    """
    waiting, running = list(reversed(range(len(tasks)))), {}
    deaths, failed, asked_at = [0] * len(tasks), [], 0.0
    try:
        while (waiting or running) and not cancel.is_set():
            pausing = pause()
            asked_at = (asked_at or time.monotonic()) if pausing else 0.0
            if pausing and renew is not None and running and time.monotonic() - asked_at > GRACE_S:
                renew()
                return
            if pausing and not running:
                return
            while waiting and len(running) < 2 * n_workers and not pausing:
                index = waiting.pop()
                running[executor.submit(perform, tasks[index])] = index
            done, _ = wait(running, timeout=POLL_S, return_when=FIRST_COMPLETED)
            yield None
            again = []
            for future in done:
                index = running.pop(future)
                try:
                    yield tasks[index], future.result()
                except OtherVersions:
                    raise
                except (BrokenExecutor, CancelledError) as error:
                    again.append(index)
                    deaths[index] += 1
                    if deaths[index] >= MAX_DEATHS or renew is None:
                        failed.append(f"its process ended {deaths[index]} times ({error})")
                        again.remove(index)
                except Exception as error:  # any library's
                    failed.append(f"{type(error).__name__}: {error}")
            if again and renew is not None:
                again += list(running.values())  # a broken executor gives nothing back
                running.clear()
                executor = renew()
                waiting += sorted(again, reverse=True)
                yield Died(tuple(tasks[index] for index in sorted(again)))
        if failed and not cancel.is_set():
            raise TaskFailed(f"{len(failed)} of {len(tasks)} tasks failed, the others are done and kept: {failed[0]}")
    finally:
        for future in running:
            future.cancel()
