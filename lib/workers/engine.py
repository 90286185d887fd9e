"""Runs trainings in warm worker processes: one a library and device, one thing at a time, for all viewers in turn.

`Engine.run` is a generator of what happens (`Waiting`, `Starting`, `Progress`, `Trained`); it ends when the trainings
have, raises `WorkerDied` or `TrainingFailed` with a sentence for the person, and stops early when its `cancel` event is
set.

Timed work takes turns (`lib.workers.queue`): a run that has to give way is paused in its worker and resumes later where
it stopped.
"""

import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

from lib.backends.environment_variables import complete_environment
from lib.backends.fingerprint import source_digest
from lib.backends.registry import BACKENDS, Runtime, environment_of
from lib.data.mnist import Facts, recognised
from lib.data.mnist_arrays import DataError
from lib.data.own import prepared
from lib.profiling.request import Examination
from lib.spec import MNIST, DataSet, Training
from lib.timing.disturbance import Watch
from lib.workers.cancel import Cancel
from lib.workers.flights import Flights
from lib.workers.machine_lock import POLL_S, MachineLock
from lib.workers.messages import (
    About,
    CardLost,
    Disturbed,
    End,
    Failed,
    How,
    Job,
    Measured,
    Message,
    Order,
    Ready,
    Restarted,
    Starting,
    TrainingFailed,
    Waiting,
    Wish,
    WorkerDied,
)
from lib.workers.process import Process
from lib.workers.queue import QUANTUM_S, AnyRequest, Queue, Request, Ticket
from lib.workers.shutdown import close_at_exit

IDLE_S = 600.0
CANCEL_ANSWER_S = 2.0
START_LIMIT_S = 360.0  # a first download of the data is part of it
HUNG_S = 10.0  # a busy worker that sends nothing and hardly computes for so long has hung
ENDED = "Another page, which waited for it, ended this run: start it again with this section's button."
LOOK_S = 1.0  # from its last message to the first look at its processor time
HUNG_CPU_S = 0.1  # … less than so much processor time: its idle threads look whether the parent is still there


def _facts_of_own(which: DataSet) -> Facts:
    try:
        return prepared.known(which.digest).facts
    except DataError as error:
        raise TrainingFailed(str(error)) from error


class _DiedIdle(Exception):
    """The worker had ended before it answered at all."""


class _Hung(Exception):
    """The worker shows no sign of life."""


class _Worker:
    """One process and the pipe to it."""

    def __init__(self, runtime: Runtime, idle_s: float, niceness: int = 0) -> None:
        self.runtime = runtime
        self.sources = source_digest()
        self.about: About | None = None
        self.guard = threading.Lock()  # several threads may wait for the worker to be ready; one of them reads
        arguments = (str(os.getpid()), str(idle_s), runtime.backend, runtime.device, runtime.precision)
        self._process = Process(
            "lib.workers.worker", arguments, complete_environment(runtime), environment_of(runtime).python, niceness
        )
        self.connection = self._process.connection
        self._sign_of_life = (0.0, time.monotonic())  # processor time, and when it was that
        close_at_exit(self)

    @property
    def usable(self) -> bool:
        """Whether it runs, and runs this state of the code; a worker ends when it is idle for long or cannot start."""
        return self._process.alive and self.sources == source_digest()

    def close(self, wait: bool = False) -> None:
        """End it at once, with whatever it is doing; `wait`: until it has ended."""
        self.connection.close()  # idle, it ends by itself on this; the kill is for one that is busy
        self._process.kill(wait)

    def alive(self) -> None:
        """Note that it was just heard of, or given something to do."""
        self._sign_of_life = (self._sign_of_life[0], time.monotonic())

    def hangs(self) -> bool:
        """Whether, busy, it has sent nothing and hardly computed for `HUNG_S`."""
        now = time.monotonic()
        if now - self._sign_of_life[1] < LOOK_S:
            return False
        cpu_s = self._process.cpu_s()
        if cpu_s is None or cpu_s - self._sign_of_life[0] > HUNG_CPU_S:
            self._sign_of_life = (cpu_s or 0.0, now)
        return now - self._sign_of_life[1] > HUNG_S

    @property
    def label(self) -> str:
        """Name of the backend that it was started for."""
        return BACKENDS[self.runtime.backend].label

    def why_hung(self) -> str:
        """The sentence for the person when it is replaced the first time."""
        return (
            f"The worker process of “{self.label}” gave no sign of life for {HUNG_S:.0f} s and was replaced; the run"
            " begins again."
        )

    def why_hung_again(self) -> str:
        """The sentence for the person when its replacement hangs too."""
        return (
            f"The worker process of “{self.label}” gave no sign of life for {HUNG_S:.0f} s, and neither did the one"
            " that replaced it. Nothing else is lost. Look for what stops it (a debugger, a device that does not"
            " answer), then press “Run again”."
        )

    def why_ended(self) -> str:
        """The sentence for the person when the process is gone."""
        return (
            f"The worker process of “{self.label}” ended while it trained: it was killed from outside, often by the"
            " system for want of memory. Nothing else is lost. Move a control or press “Run again”: a new worker"
            " starts by itself."
        )


@dataclass(frozen=True)
class Turn:
    """A place in an engine's queue. See `Engine.turn`."""

    _engine: "Engine"
    ticket: Ticket

    def take(self, cancel: Cancel) -> Iterator[Message]:
        """Wait until it is this place's turn, or `cancel` is set.

        Yields:
            `Waiting` whenever the place changes; `Disturbed` where another program did not give way.
        """
        yield from self._engine._wait(self.ticket, cancel)

    def must_give_way(self) -> bool:
        """Whether the turn should be given back now, because somebody else waits who comes first."""
        return self._engine._must_give_way(self.ticket)

    def give_back(self) -> None:
        """End the turn, and stay in the queue for the next one."""
        self._engine._give_back(self.ticket)


class Engine:
    """The workers of this process, shared by all its viewers. Cheap until the first run.

    Args:
        idle_s: A worker that has had nothing to do for so many seconds ends.

    Attributes:
        niceness: Of the workers that start from now on, above this process's own.
    """

    def __init__(self, idle_s: float = IDLE_S) -> None:
        self._idle_s, self.niceness = idle_s, 0
        self._workers: dict[str, _Worker] = {}
        self._guard = threading.Lock()
        self._queue = Queue()
        self._ids = itertools.count(1)
        self._machine = MachineLock()
        self._cancels: dict[Ticket, Cancel] = {}  # of all who have asked for a turn
        self.flights: Flights = Flights()
        self._finalizer = weakref.finalize(self, _close_all, self._workers)

    def warm(self, runtime: Runtime) -> None:
        """Start the runtime's worker if there is none, without waiting for it."""
        self._worker(runtime)

    @property
    def waiting(self) -> int:
        """How many runs wait for their turn."""
        return self._queue.waiting

    def pids(self) -> dict[str, int]:
        """Process ids of the workers that are ready, by `Runtime.process`."""
        with self._guard:
            return {
                name: worker.about.pid
                for name, worker in self._workers.items()
                if worker.about is not None and worker.usable
            }

    def queue_lengths(self) -> tuple[int, int]:
        """How many runs hold the turn, 0 or 1, and how many wait for it."""
        return self._queue.lengths()

    def close(self) -> None:
        """End all workers now."""
        with self._guard:
            _close_all(self._workers)

    def data_facts(self, cancel: Cancel, which: DataSet = MNIST) -> Generator[Message, None, Facts | None]:
        """Which data these are.

        Of MNIST, what the workers have: known from before, or from a ready worker, else from the default runtime's.

        Yields:
            `Starting` where a worker has to start.

        Returns:
            Facts of the data; None if cancelled.

        Raises:
            TrainingFailed: The worker cannot start, or data that somebody brought are no longer there.
            WorkerDied: It ended before it was ready.
        """
        if which.digest:
            return _facts_of_own(which)
        if (known := self.known_facts()) is not None:
            return known
        worker = self._worker(Runtime())
        yield from self._until_ready(worker, cancel.is_set)
        return worker.about.data if worker.about is not None else None

    def known_facts(self) -> Facts | None:
        """Which data it is, where that is known from before or a worker is ready; else None."""
        if (known := recognised()) is not None:
            return known
        with self._guard:
            ready = [worker.about for worker in self._workers.values() if worker.about is not None and worker.usable]
        return ready[0].data if ready else None

    def run(
        self,
        runtime: Runtime,
        trainings: Sequence[Training],
        cancel: Cancel,
        how: How | None = None,
        request: AnyRequest | None = None,
    ) -> Iterator[Message]:
        """Train these in the runtime's worker. See the module's text.

        Args:
            runtime: What trains.
            trainings: All different; of one batch size if they are a stack.
            cancel: May be set from any thread, and takes effect within 0.3 s.
            how: None: each by itself, from its seed.
            request: For whom, and how urgently, a turn is wanted; None: a viewer of its own.

        Yields:
            `Waiting`, `Starting` and `Ready` before the first `Progress`, and again after each pause where they apply;
            `Trained` once for each training; `Checkpoint` where parameters are wanted, and `Restarted` where the worker
            was replaced.

        Raises:
            WorkerDied: The worker ended, and what to do about it.
            TrainingFailed: The worker cannot start, or the backend failed; why. `CardLost`: the next run has a new
                worker.
        """
        yield from self._perform(Job(next(self._ids), runtime, tuple(trainings), how or How()), cancel, request)

    def examine(
        self, runtime: Runtime, examination: Examination, cancel: Cancel, request: AnyRequest | Turn | None = None
    ) -> Iterator[Message]:
        """Measure something other than a training, in the runtime's worker, as a run of its own.

        Args:
            runtime: Whose worker measures.
            examination: What to measure.
            cancel: May be set from any thread.
            request: For whom, and how urgently, a turn is wanted, or a place in the queue that several examinations
                have one after another; None: a viewer of its own.

        Yields:
            `Measured` for each row, with what disturbed it among its warnings, and what `run` yields before it starts.

        Raises:
            WorkerDied, TrainingFailed: As `run`.
        """
        job = Job(next(self._ids), runtime, (), examination=examination)
        watch: Watch | None = None
        for message in self._perform(job, cancel, request):
            if isinstance(message, Ready) and watch is None:  # only now: what others did before did not disturb it
                watch = self.watch(runtime).__enter__()
            if isinstance(message, Measured) and watch is not None:
                message = replace(message, measurement=watch.marked(message.measurement))
            yield message

    def watch(self, runtime: Runtime) -> Watch:
        """A watch for what is timed on this runtime's device; the engine's own workers count as no disturbance."""
        return Watch(*self.pids().values(), gpu=runtime.on_gpu)

    @contextmanager
    def turn(self, request: AnyRequest | None = None) -> Iterator[Turn]:
        """A place in the queue, left at the end of the block: for timed work outside of this engine's workers, or for
        several examinations, between which none of the same viewer's later runs shall come.

        Between two of them the place is kept, and others wait for it: the block must not take long over anything else.

        Args:
            request: For whom, and how urgently; None: a viewer of its own.
        """
        ticket = self._queue.join(request or Request())
        try:
            yield Turn(self, ticket)
        finally:
            self._give_back(ticket)
            self._queue.leave(ticket)
            self._cancels.pop(ticket, None)

    def _perform(self, job: Job, cancel: Cancel, request: AnyRequest | Turn | None) -> Iterator[Message]:
        with nullcontext(request) if isinstance(request, Turn) else self.turn(request) as turn:
            yield from self._in_turn(job, cancel, turn)

    def _in_turn(self, job: Job, cancel: Cancel, turn: Turn) -> Iterator[Message]:
        started_on: _Worker | None = None
        died, why = False, ""
        ticket = turn.ticket
        try:
            while not cancel.is_set():
                yield from self._wait(ticket, cancel)
                if cancel.is_set():
                    break
                worker = self._worker(job.runtime)
                if started_on is not None and worker is not started_on:
                    yield Restarted(why)
                # A start takes seconds. Other viewers go first meanwhile; a little noise in a time is better than that
                # wait.
                yield from self._until_ready(worker, lambda: self._must_give_way(ticket, 0.0) or cancel.is_set())
                if worker.about is not None and not cancel.is_set():
                    facts = _facts_of_own(job.data) if job.data.digest else worker.about.data
                    yield Ready(facts, worker.about.card)
                    resume = worker is started_on
                    started_on = worker
                    try:
                        if (yield from self._one_turn(worker, job, resume, cancel, ticket)):
                            return
                    except _DiedIdle as error:
                        if died:  # twice in a row is no accident: this training is what kills it
                            raise WorkerDied(worker.why_ended()) from error
                        died, started_on = (True, None)  # dead before it began: nothing is lost, start with a new one
                    except _Hung as error:
                        if why:
                            raise WorkerDied(worker.why_hung_again()) from error
                        why = worker.why_hung()
                self._give_back(ticket)
        finally:
            self._give_back(ticket)
        if started_on is not None and started_on.usable:
            with suppress(OSError):
                started_on.connection.send(Order(job.id, Wish.CANCEL))  # it waits, paused, in the worker

    def _give_back(self, ticket: Ticket) -> None:
        if self._queue.holds(ticket):  # only the holder of this process's turn can hold the machine's
            self._machine.release()
            self._queue.give_back(ticket)

    def _wait(self, ticket: Ticket, cancel: Cancel) -> Iterator[Message]:
        self._cancels[ticket] = cancel
        while not cancel.is_set() and (place := self._queue.take(ticket)):
            yield Waiting(place)
            self._queue.wait(ticket, place, cancel)
        shown: Waiting | None = None
        while not cancel.is_set() and not self._machine.take():
            if shown != (waiting := Waiting(None, self._machine.holder())):
                yield (shown := waiting)
            cancel.wait(POLL_S)
        if self._machine.beside is not None and not cancel.is_set():
            yield Disturbed(self._machine.beside.disturbs)

    def _worker(self, runtime: Runtime) -> _Worker:
        key = runtime.process
        with self._guard:
            worker = self._workers.get(key)
            if worker is not None and not worker.usable:
                worker.close()
                worker = None
            if worker is None:
                worker = self._workers[key] = _Worker(runtime, self._idle_s, self.niceness)
            return worker

    def _until_ready(self, worker: _Worker, stop: Callable[[], bool]) -> Iterator[Message]:
        limit = time.monotonic() + START_LIMIT_S
        if worker.about is None:
            yield Starting(worker.runtime)
        while worker.about is None:
            with worker.guard:
                if worker.about is None and worker.connection.poll(0):
                    message = self._receive(worker)
                    if isinstance(message, Failed):
                        self._drop(worker)
                        raise TrainingFailed(message.why)
                    worker.about = message
                    break
            if stop():
                return  # the worker goes on starting: the next run wants it
            if time.monotonic() > limit:
                self._drop(worker)
                raise TrainingFailed(
                    f"The worker of “{worker.runtime.label}” did not start within {START_LIMIT_S:.0f} s."
                )
            time.sleep(POLL_S)

    def _one_turn(self, worker: _Worker, job: Job, resume: bool, cancel: Cancel, ticket: Ticket) -> Iterator[Message]:
        """Train until the job ends or the turn is over; the generator's value is whether the job has ended."""
        try:
            self._send(worker, Order(job.id, Wish.RESUME) if resume else job)
        except WorkerDied as error:
            raise error if resume else _DiedIdle() from error
        worker.alive()
        answered = resume
        asked: Wish | None = None
        asked_at = 0.0
        try:
            while True:
                if cancel.is_set() and asked is not Wish.CANCEL:
                    self._send(worker, Order(job.id, Wish.CANCEL))
                    asked, asked_at = Wish.CANCEL, time.monotonic()
                elif asked is None and self._must_give_way(ticket):
                    self._send(worker, Order(job.id, Wish.PAUSE))
                    asked = Wish.PAUSE
                if not worker.connection.poll(POLL_S):
                    if asked is Wish.CANCEL and time.monotonic() - asked_at > CANCEL_ANSWER_S:
                        self._drop(worker)
                        return True
                    if worker.hangs():
                        self._drop(worker)
                        raise _Hung
                    continue
                try:
                    answer = self._receive(worker)
                except WorkerDied as error:
                    raise error if answered else _DiedIdle() from error
                answered = True
                worker.alive()
                content = answer.content
                if answer.job_id != job.id:
                    continue  # the rest of a job that was cancelled while it was paused
                if isinstance(content, End):
                    return content is not End.PAUSED
                if isinstance(content, Failed):
                    if content.card_lost:
                        self._drop(worker)
                        raise CardLost(content.why)
                    raise TrainingFailed(content.why)
                if asked is not Wish.CANCEL and content is not None:
                    yield self._marked(content) if isinstance(content, Measured) else content
        except GeneratorExit:  # the caller stopped iterating: the same as a cancel, with nobody to report to
            self._abandon(worker, job)
            raise

    def _marked(self, measured: Measured) -> Measured:
        """The measurement, with a warning where another program did not give way."""
        if self._machine.beside is None:
            return measured
        warnings = (*measured.measurement.warnings, self._machine.beside.disturbs)
        return replace(measured, measurement=replace(measured.measurement, warnings=warnings))

    def _must_give_way(self, ticket: Ticket, quantum_s: float = QUANTUM_S) -> bool:
        if self._machine.is_to_end():
            for cancel in list(self._cancels.values()):
                cancel.set(ENDED)
        if self._machine.is_left() or self._queue.must_give_way(ticket, quantum_s):
            return True
        return self._queue.held_s() > QUANTUM_S and self._machine.wanted()

    def _abandon(self, worker: _Worker, job: Job) -> None:
        limit = time.monotonic() + CANCEL_ANSWER_S
        try:
            worker.connection.send(Order(job.id, Wish.CANCEL))
            while time.monotonic() < limit:
                if worker.connection.poll(POLL_S):
                    answer = worker.connection.recv()
                    over = isinstance(answer.content, End | Failed) and answer.content is not End.PAUSED
                    if answer.job_id == job.id and over:
                        return
        except (EOFError, OSError):
            pass
        self._drop(worker)

    def _send(self, worker: _Worker, message: Job | Order) -> None:
        try:
            worker.connection.send(message)
        except OSError as error:
            self._drop(worker)
            raise WorkerDied(worker.why_ended()) from error

    def _receive(self, worker: _Worker) -> Any:
        try:
            return worker.connection.recv()
        except (EOFError, OSError) as error:
            self._drop(worker)
            raise WorkerDied(worker.why_ended()) from error

    def _drop(self, worker: _Worker) -> None:
        """Forget a worker and end it; the next run starts another."""
        with self._guard:
            for key, other in list(self._workers.items()):
                if other is worker:
                    del self._workers[key]
        worker.close()


def _close_all(workers: dict[str, _Worker]) -> None:
    while workers:
        workers.popitem()[1].close()


_shared_guard = threading.Lock()
_shared: Engine | None = None


def shared_engine() -> Engine:
    """The engine of this process, made at the first call.

    If the editor reloads this module, the old engine's workers end with its last run.
    """
    global _shared
    with _shared_guard:
        if _shared is None:
            _shared = Engine()
        return _shared
