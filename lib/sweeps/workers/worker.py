"""The worker process: trains what it is sent, streams the events, and never outlives its parent."""

import os
import re
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import IO

from lib.model.backends.base import CannotTrain, Epoch, Event, FirstCall, Steps, no_parameters
from lib.model.backends.reference import verify
from lib.model.backends.registry import BACKENDS, Runtime, load_train, lost_card
from lib.model.data import mnist as data_module
from lib.model.data import prepared
from lib.model.data.mnist import Data, DataError
from lib.model.hardware.machine import use_one_core
from lib.model.hardware.process import kept_away
from lib.model.spec import Training
from lib.sweeps.workers.messages import (
    About,
    Checkpoint,
    End,
    Failed,
    Item,
    Job,
    JobMessage,
    Measured,
    Order,
    Progress,
    Trained,
    Wish,
)
from lib.timing.diagnosis import CardFacts, card_of
from lib.timing.profiling.request import NotMeasured

PARENT_POLL_S = 0.5
CHECKPOINT_S = 5.0  # between two times that a training's parameters are sent while it goes on


class _Commands:
    """Reads what the parent sends, in a thread of its own, so that a pause or a cancel is seen between two chunks."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._inbox: SimpleQueue[Job | Order | None] = SimpleQueue()
        self._wishes: dict[int, Wish] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            try:
                message = self._connection.recv()
            except (EOFError, OSError):
                os._exit(0)  # the parent closed its end, or died
            if isinstance(message, Order) and message.wish is not Wish.RESUME:
                self._wishes[message.job_id] = message.wish
                message = None  # wakes whoever waits for the next job
            self._inbox.put(message)

    def next(self, timeout_s: float) -> Job | Order | None:
        """The next job or order; None after the time-out, and where a wish came instead."""
        try:
            return self._inbox.get(timeout=timeout_s)
        except Empty:
            return None

    def wish(self, job_id: int) -> Wish | None:
        """`PAUSE` or `CANCEL`, where the parent asked for it; each wish is returned once."""
        return self._wishes.pop(job_id, None)

    def waiting_cancels(self) -> list[int]:
        return [job_id for job_id, wish in list(self._wishes.items()) if wish is Wish.CANCEL]


def main(connection: Connection, parent: str, idle_s: str, *runtime: str) -> None:
    """The worker's process: follow the parent, which may be dead already, and serve.

    All arguments but the connection are text, as they come from a command line.

    Args:
        connection: To the parent.
        parent: Process id of the parent.
        idle_s: Seconds without a job after which the process ends.
        runtime: Backend that is imported first, device, and precision.
    """
    if hasattr(os, "setsid"):
        os.setsid()  # leave the terminal's process group
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the editor's interrupt button must not end a worker

    def follow() -> None:
        # The closed pipe usually shows it first; this also covers a parent whose pipe another process inherited.
        while os.getppid() == int(parent):
            time.sleep(PARENT_POLL_S)
        os._exit(0)

    threading.Thread(target=follow, daemon=True).start()
    serve(connection, Runtime(*runtime), float(idle_s))


def serve(connection: Connection, runtime: Runtime, idle_s: float) -> None:
    """Load the library and the data, send `About`, then perform jobs until idle for `idle_s` seconds.

    A failure to start is sent as `Failed`, and ends it; one in a job is the job's `JobMessage`.

    Args:
        connection: To the parent.
        runtime: Whose backend is imported first.
        idle_s: Seconds without a job after which it returns.
    """
    control = _Commands(connection)
    try:
        data, card = _get_ready(runtime)
        verify(runtime, data)
    except (CannotTrain, DataError, ImportError, MemoryError, OSError) as error:
        connection.send(Failed(str(error)))
        return
    connection.send(About(os.getpid(), data.facts, card))
    jobs: dict[int, Iterator] = {}
    idle_since = time.monotonic()
    while time.monotonic() - idle_since < idle_s:
        message = control.next(timeout_s=min(1.0, idle_s))
        for job_id in control.waiting_cancels():  # a job that is paused, cancelled where it stands
            if job_id in jobs:
                control.wish(job_id)
                jobs.pop(job_id).close()  # type: ignore[attr-defined]
                connection.send(JobMessage(job_id, End.STOPPED))
        if message is None:
            continue
        if isinstance(message, Job):
            job_id = message.id
            jobs[job_id] = _examine(message, data) if message.examination else train_job(message, data)
        else:
            job_id = message.job_id
        if job_id in jobs and _advance(job_id, jobs[job_id], control, connection):
            del jobs[job_id]
        idle_since = time.monotonic()


def _advance(job_id: int, contents: Iterator, control: _Commands, connection: Connection) -> bool:
    """Run a job until it ends, is paused or cancelled; True if nothing is left of it."""
    try:
        while True:
            wish = control.wish(job_id)
            if wish is Wish.CANCEL:
                contents.close()  # type: ignore[attr-defined]
                content = End.STOPPED
            else:
                content = End.PAUSED if wish is Wish.PAUSE else next(contents, End.DONE)
            connection.send(JobMessage(job_id, content))
            if isinstance(content, End):
                return content is not End.PAUSED
    except (CannotTrain, DataError, NotMeasured) as error:
        connection.send(JobMessage(job_id, Failed(str(error))))
    except Exception as error:  # any library's: the page gets a sentence, the terminal the traceback
        if not isinstance(error, MemoryError):
            traceback.print_exc(file=sys.stderr)
        lost = bool(lost_card(str(error)))
        connection.send(JobMessage(job_id, Failed(_sentence(error), lost)))
        if lost:  # this process can do nothing more with the card, not even take leave of it
            os._exit(1)
    return True


def _sentence(error: Exception) -> str:
    text = str(error).strip().split("\n")[0][:200]
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text or "out of memory" in text.lower():
        return "there is not enough memory for this training; choose a smaller network or batch"
    if said := lost_card(str(error)):
        return (
            f"the graphics card no longer answers (“{said}”): a new worker starts with the next run; if that fails too,"
            " look at nvidia-smi or dmesg, and restart the machine"
        )
    return f"the training stopped with {type(error).__name__}: {text}"


def train_job(job: Job, data: Data) -> Iterator[Progress | Checkpoint | Trained | None]:
    """A job's answers, until all its trainings have ended, or a probe's time is over; `data` are MNIST."""
    items = [Item(training, job.runtime) for training in job.trainings]
    sent_at = dict.fromkeys(range(len(items)), time.monotonic())
    stepped_s = 0.0
    for report in _events(job, data):
        index, event = report or (0, None)
        # A stack reports the steps of its trainings one after another: that report is finished even where the time is
        # over.
        enough = job.how.probe_s and stepped_s > job.how.probe_s
        if enough and not (job.how.devices and isinstance(event, Steps)):
            return
        if event is None:
            yield None
            continue
        stepped_s += event.train_s if isinstance(event, Steps) else 0.0
        yield Progress(items[index], _portable(event))
        if isinstance(event, Epoch) and _is_last(event, job.trainings[index]):
            yield Trained(items[index], event.parameters() if job.how.want_parameters else None)
        elif isinstance(event, Epoch) and job.how.want_parameters and time.monotonic() - sent_at[index] > CHECKPOINT_S:
            sent_at[index] = time.monotonic()
            yield Checkpoint(items[index], event.parameters())


def _is_last(event: Epoch, training: Training) -> bool:
    return event.epoch + 1 == training.epochs or event.diverged_step is not None


def _events(job: Job, data: Data) -> Iterator[tuple[int, Event | None] | None]:
    """What the trainings yield, by index; None, also in place of an event where one ends, is a place to stop."""
    how = job.how
    backend, device = job.runtime.backend, job.runtime.device
    verify(job.runtime, data, stacked=bool(how.devices))
    data = prepared.load(job.data.digest) if job.data.digest else data
    if how.devices:
        from lib.model.backends.stacked import train_stack  # JAX only

        yield from train_stack(job.trainings, data, device, how.devices, how.start, how.first_epoch)
        return
    train = load_train(backend)
    trainings = [
        (index, train(training, data, device, how.start.get(index), how.first_epoch))
        for index, training in enumerate(job.trainings)
    ]
    try:
        if how.parallel > 1:
            yield from in_parallel(trainings, how.parallel)
        else:
            yield from interleave(trainings, BACKENDS[backend].side_by_side)
    finally:
        for _, training in trainings:
            training.close()  # type: ignore[attr-defined]


def _examine(job: Job, data: Data) -> Iterator[Measured | None]:
    from lib.timing.profiling.run import examine  # only when asked for

    assert job.examination is not None, "asked for"
    for row in examine(job.runtime.backend, job.runtime.device, job.examination, data):
        yield None if row is None else Measured(*row)


def _portable(event: Event) -> Event:
    """The event without the function that reads the parameters, which cannot be pickled."""
    return replace(event, parameters=no_parameters) if isinstance(event, Epoch) else event


def interleave(trainings: list[tuple[int, Iterator[Event]]], side_by_side: bool) -> Iterator[tuple[int, Event | None]]:
    """Events of several trainings, each one's own in order.

    Args:
        trainings: Of each a number and its events.
        side_by_side: Whether they take turns, an event each, once a training has made its first steps; else one after
            another.

    Yields:
        A training's number and its next event; None in place of the event when it has ended.
    """
    waiting = deque(trainings)
    while waiting:
        index, training = waiting.popleft()
        event = next(training, None)
        yield index, event
        if event is not None:
            # After its first call a training goes on, so that viewers wait for the first steps, and not for the first
            # calls of all.
            to_the_end = side_by_side and not isinstance(event, FirstCall)
            (waiting.append if to_the_end else waiting.appendleft)((index, training))


def in_parallel(trainings: list[tuple[int, Iterator[Event]]], cores: int) -> Iterator[tuple[int, Event | None]]:
    """Events of several trainings that are made at the same time, a core each; where there are more, they take turns.

    Args:
        trainings: Of each a number and its events.
        cores: How many trainings at a time.

    Yields:
        As `interleave`. A training goes on once the next event is asked for: what one holds is of that moment.
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
    """The last thing that a library wrote about CUDA, as a sentence; empty where it wrote nothing of the kind."""
    written.seek(0)
    lines = [line.strip() for line in written.read().decode(errors="replace").splitlines()]
    told = [line for line in lines if re.search(r"cuda|gpu|dlopen|driver", line, re.IGNORECASE)]
    return f" Its library wrote: {told[-1][-300:]}" if told else ""


def _get_ready(runtime: Runtime) -> tuple[Data, CardFacts | None]:
    """Import the library, load the data meanwhile (decompression and hashing), and ask the library for its card."""
    loaded: list[Data | BaseException] = []

    def load() -> None:
        try:
            loaded.append(data_module.load())
        except BaseException as error:  # raised again below
            loaded.append(error)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        with kept_away() as written:
            load_train(runtime.backend)
            try:
                card = card_of(runtime)
            except CannotTrain as error:
                raise CannotTrain(f"{error}{_about_the_card(written)}") from error
    finally:
        thread.join()
    if isinstance(loaded[0], BaseException):
        raise loaded[0]
    return loaded[0], card
