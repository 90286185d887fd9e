"""The process at the other end: trains what it is sent, streams what comes out, and never outlives its parent.

Messages are tuples, a word first. To the worker: ("run", Job), ("resume", id), ("pause", id), ("cancel", id). From it:
("ready", About), ("failed", sentence), and for a job ("event", id, index, Event), ("checkpoint", id, index, epochs,
parameters) now and then, ("trained", id, index, parameters or None), ("measured", id, name, Measurement, work),
("tick", id) where it can be stopped, then one of ("done", id), ("paused", id), ("stopped", id), ("error", id,
sentence).
"""

import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue

from lib.backends.base import Epoch, Event, FirstCall, Parameters, Steps, no_parameters
from lib.backends.known_answer import WrongNumbers, verify
from lib.backends.registry import BACKENDS, load_train, versions
from lib.data import mnist as data_module
from lib.data.mnist import Data, DataError, Facts
from lib.profiling.request import Examination
from lib.spec import Training

PARENT_POLL_S = 0.5
KEEP_S = 5.0  # between two times that a training's parameters are sent while it goes on


@dataclass(frozen=True)
class How:
    """How a job's trainings are made, beyond what they are."""

    devices: int = 0  # that a stack is divided among: all trainings in one program; 0: each by itself
    interleaved: bool = True  # each by itself, but side by side where the backend allows it; else one after another
    first_epoch: int = 0
    start: Mapping[int, Parameters] = field(default_factory=dict)  # what they go on from, where it is not their seed
    want_parameters: bool = False  # at the end, and every `KEEP_S` seconds
    probe_s: float = 0.0  # end after so many seconds of steps: to see how fast they go


@dataclass(frozen=True)
class Job:
    """Trainings for one backend; of one batch size if they are a stack."""

    id: int
    backend: str
    device: str
    trainings: tuple[Training, ...]
    how: How = field(default_factory=How)
    examination: Examination | None = None  # something to measure instead of training


@dataclass(frozen=True)
class About:
    """What a worker says of itself when it is ready."""

    pid: int
    data: Facts
    versions: str  # of everything that the numbers depend on


class _Control:
    """Reads what the parent sends, in a thread of its own, so that a pause or a cancel is seen between two chunks."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._inbox: SimpleQueue[tuple] = SimpleQueue()
        self._marks: dict[int, str] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            try:
                message = self._connection.recv()
            except (EOFError, OSError):
                os._exit(0)  # the parent closed its end, or died
            if message[0] in ("pause", "cancel"):
                self._marks[message[1]] = message[0]
                message = ("wake",)
            self._inbox.put(message)

    def next(self, timeout_s: float) -> tuple | None:
        try:
            return self._inbox.get(timeout=timeout_s)
        except Empty:
            return None

    def mark(self, job_id: int) -> str | None:
        """`pause` or `cancel` where the parent asked for it, once."""
        return self._marks.pop(job_id, None)

    def waiting_cancels(self) -> list[int]:
        return [job_id for job_id, word in list(self._marks.items()) if word == "cancel"]


def main(connection: Connection, parent: str, backend: str, device: str, idle_s: str) -> None:
    """The process: watch the parent, which may be dead already, and serve."""
    follow(int(parent))
    serve(connection, backend, device, float(idle_s))


def follow(parent: int) -> None:
    """Leave the terminal's process group, and end with the parent."""
    if hasattr(os, "setsid"):
        os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the editor's interrupt button must not end a worker

    def watch() -> None:
        # The closed pipe usually tells first; this also covers a parent whose pipe another process inherited.
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_S)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def serve(connection: Connection, backend: str, device: str, idle_s: float) -> None:
    """Answer until idle for `idle_s` seconds."""
    control = _Control(connection)
    try:
        data = _get_ready(backend)
        verify(backend, device, data)
    except (DataError, ImportError, MemoryError, OSError, WrongNumbers) as error:
        connection.send(("failed", str(error)))
        return
    connection.send(("ready", About(os.getpid(), data.facts, versions(backend))))
    jobs: dict[int, Iterator[tuple]] = {}
    idle_since = time.monotonic()
    while time.monotonic() - idle_since < idle_s:
        message = control.next(timeout_s=min(1.0, idle_s))
        for job_id in control.waiting_cancels():  # a job that is paused, cancelled where it stands
            if job_id in jobs:
                control.mark(job_id)
                jobs.pop(job_id).close()  # type: ignore[attr-defined]
                connection.send(("stopped", job_id))
        if message is None or message[0] == "wake":
            continue
        job_id = message[1].id if message[0] == "run" else message[1]
        if message[0] == "run":
            jobs[job_id] = _examine(message[1], data) if message[1].examination else _train(message[1], data)
        if job_id in jobs and _advance(job_id, jobs[job_id], control, connection):
            del jobs[job_id]
        idle_since = time.monotonic()


def _advance(job_id: int, rows: Iterator[tuple], control: _Control, connection: Connection) -> bool:
    """Run a job until it ends, is paused or cancelled; True when there is nothing left of it."""
    try:
        while True:
            mark = control.mark(job_id)
            if mark == "cancel":
                rows.close()  # type: ignore[attr-defined]
                connection.send(("stopped", job_id))
                return True
            if mark == "pause":
                connection.send(("paused", job_id))
                return False
            row = next(rows, None)
            if row is None:
                connection.send(("done", job_id))
                return True
            connection.send(row)
    except MemoryError:
        connection.send(
            ("error", job_id, "there is not enough memory for this training; choose a smaller network or batch")
        )
    except WrongNumbers as error:
        connection.send(("error", job_id, str(error)))
    except Exception as error:  # any library's: the page gets a sentence, the terminal the traceback
        traceback.print_exc(file=sys.stderr)
        connection.send(("error", job_id, _sentence(error)))
    return True


def _sentence(error: Exception) -> str:
    text = str(error).strip().split("\n")[0][:200]
    if "RESOURCE_EXHAUSTED" in text or "out of memory" in text.lower():
        return "there is not enough memory for this training; choose a smaller network or batch"
    return f"the training stopped with {type(error).__name__}: {text}"


def _train(job: Job, data: Data) -> Iterator[tuple]:
    """A job's messages; None of a training's events: it is over."""
    parameters: dict[int, Parameters] = {}
    kept_at = dict.fromkeys(range(len(job.trainings)), time.monotonic())
    stepped_s = 0.0
    try:
        for report in _events(job, data):
            steps = report[1] if report is not None and isinstance(report[1], Steps) else None
            # A stack reports the steps of its trainings one after another: that report is finished even where the time
            # is over.
            enough = job.how.probe_s and stepped_s > job.how.probe_s
            if enough and not (job.how.devices and steps):
                return
            stepped_s += steps.train_s if steps else 0.0
            if report is None:
                yield ("tick", job.id)
                continue
            index, event = report
            if event is None:
                yield ("trained", job.id, index, parameters.pop(index, None))
                continue
            yield ("event", job.id, index, _portable(event))
            if isinstance(event, Epoch) and job.how.want_parameters:
                last = event.epoch + 1 == job.trainings[index].epochs or event.diverged_step is not None
                if last:
                    parameters[index] = event.parameters()
                elif time.monotonic() - kept_at[index] > KEEP_S:
                    kept_at[index] = time.monotonic()
                    yield ("checkpoint", job.id, index, event.epoch + 1, event.parameters())
    finally:
        parameters.clear()


def _events(job: Job, data: Data) -> Iterator[tuple[int, Event | None] | None]:
    """What the trainings yield, by index; None in place of an event ends one, None by itself is a place to stop."""
    how = job.how
    verify(job.backend, job.device, data, stacked=bool(how.devices))
    if how.devices:
        from lib.backends.stacked.train import train_stack  # JAX only

        for report in train_stack(job.trainings, data, job.device, how.devices, how.start, how.first_epoch):
            yield report
            if report is not None and isinstance(report[1], Epoch):
                index, event = report
                if event.epoch + 1 == job.trainings[index].epochs or event.diverged_step is not None:
                    yield index, None
        return
    train = load_train(job.backend)
    trainings = [
        (index, train(training, data, job.device, how.start.get(index), how.first_epoch))
        for index, training in enumerate(job.trainings)
    ]
    try:
        yield from interleave(trainings, how.interleaved and BACKENDS[job.backend].side_by_side)
    finally:
        for _, training in trainings:
            training.close()  # type: ignore[attr-defined]


def _examine(job: Job, data: Data) -> Iterator[tuple]:
    from lib.profiling.run import examine  # only when asked for

    assert job.examination is not None, "asked for"
    for row in examine(job.backend, job.device, job.examination, data):
        yield ("tick", job.id) if row is None else ("measured", job.id, *row)


def _portable(event: Event) -> Event:
    """Without the function that reads the parameters, which cannot travel."""
    return replace(event, parameters=no_parameters) if isinstance(event, Epoch) else event


def interleave(trainings: list[tuple[int, Iterator[Event]]], side_by_side: bool) -> Iterator[tuple[int, Event | None]]:
    """Events of several trainings, each one's own in order; None ends one."""
    waiting = deque(trainings)
    while waiting:
        index, training = waiting.popleft()
        event = next(training, None)
        yield index, event
        if event is not None:
            # After its first call a training goes on: whoever watches waits for the first steps, not for all first
            # calls.
            to_the_end = side_by_side and not isinstance(event, FirstCall)
            (waiting.append if to_the_end else waiting.appendleft)((index, training))


@contextmanager
def _quiet() -> Iterator[None]:
    """Drop what native code prints while it is loaded: TensorFlow greets before it can be told not to."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _get_ready(backend: str) -> Data:
    """Import the library and load the data at the same time: one is Python, the other decompression and hashing."""
    loaded: list[Data | BaseException] = []

    def load() -> None:
        try:
            loaded.append(data_module.load())
        except BaseException as error:  # raised again below
            loaded.append(error)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        with _quiet():
            load_train(backend)
    finally:
        thread.join()
    if isinstance(loaded[0], BaseException):
        raise loaded[0]
    return loaded[0]
