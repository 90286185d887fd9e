"""Runs trainings in warm worker processes, one run at a time; viewers take turns.

Each pair of library and device has one worker that uses all cores, plus one worker per core for runs in several
processes.

`Engine.run` is a generator of messages (`Waiting`, `Progress`, `Trained`, and a `Note` when a worker starts). It ends
when the trainings have ended, raises `TrainingFailed` with a sentence for the user, and stops early when `cancel` is
set.

Timed work queues for its turn (`lib.sweeps.workers.queue`): a run that must give way is paused in its worker and later
resumes where it stopped.

`read` parses a user's file in a separate process with limits. Only one such process runs at any time, so that together
they use no more memory than one is allowed.
"""

import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

import psutil

from lib import python_path
from lib.model.backends.fingerprint import source_digest
from lib.model.backends.registry import BACKENDS, Runtime, complete_environment, environment_of
from lib.model.data import prepared
from lib.model.data.mnist import DataError, Facts, recognised
from lib.model.spec import MNIST, DataSet
from lib.once import once
from lib.sweeps.workers.messages import (
    CardLost,
    End,
    Job,
    Measured,
    Message,
    Note,
    Ready,
    Restarted,
    State,
    TrainingFailed,
    Waiting,
)
from lib.sweeps.workers.queue import POLL_S, QUANTUM_S, AnyRequest, Cancel, MachineLock, Queue, Request, Ticket
from lib.timing.measurement import Watch
from lib.timing.profiling.request import Examination

IDLE_S = 600.0  # without a job, until a worker ends
IDLE_OF_MANY_S = 120.0  # for single-core workers, which together hold a lot of memory
CANCEL_ANSWER_S = 2.0
START_LIMIT_S = 360.0  # includes a first download of the data
HUNG_S = 10.0  # a busy worker has hung if it sends nothing and hardly computes for this long
ENDED = "Another page ended this run to start its own: restart it with this section's button."
LOOK_S = 1.0  # from a worker's last message until we first check its CPU time
HUNG_CPU_S = 0.1  # CPU time below which a worker hardly computes; not 0, because idle threads poll for the parent


def _facts_of_own(which: DataSet) -> Facts:
    try:
        return prepared.known(which.digest).facts
    except DataError as error:
        raise TrainingFailed(str(error)) from error


class _Worker:
    def __init__(self, runtime: Runtime, idle_s: float, niceness: int, threads: int | None) -> None:
        self.runtime = runtime
        self.sources = source_digest()
        self.ready: Ready | None = None
        self.lost_by = ""
        self.guard = threading.Lock()  # several threads may wait for `Ready`, but only one may read
        self.process = Process(
            "lib.sweeps.workers.worker",
            (str(os.getpid()), str(idle_s), runtime.backend, runtime.device, runtime.precision),
            complete_environment(runtime, threads),
            environment_of(runtime).python,
            niceness,
        )
        self.connection = self.process.connection
        self._sign_of_life = (0.0, time.monotonic())  # CPU seconds, and when they were read

    @property
    def usable(self) -> bool:
        """Whether it is running the current code; a worker exits if it cannot start or has been idle for long."""
        return not self.connection.closed and self.process.alive and self.sources == source_digest()

    def close(self) -> None:
        self.connection.close()  # ends an idle worker; a busy one needs the kill
        self.process.kill()

    def lost(self, how: str) -> NoReturn:
        self.lost_by = how
        self.close()
        raise TrainingFailed(
            self.why(
                f"{how}. Nothing else is lost. Move a control or press “Run again” to start a new worker. If it happens"
                " again, find out what stops it, such as a debugger or a device that does not respond."
            )
        )

    def alive(self) -> None:
        self._sign_of_life = (self._sign_of_life[0], time.monotonic())

    def hangs(self) -> bool:
        """Whether it has sent nothing and hardly computed for `HUNG_S`; ask only while it is busy."""
        now = time.monotonic()
        if now - self._sign_of_life[1] < LOOK_S:
            return False
        cpu_s = self.process.cpu_s()
        if cpu_s is None or cpu_s - self._sign_of_life[0] > HUNG_CPU_S:
            self._sign_of_life = (cpu_s or 0.0, now)
        return now - self._sign_of_life[1] > HUNG_S

    def why(self, words: str) -> str:
        return f"The worker process of “{BACKENDS[self.runtime.backend].label}” {words}"


@dataclass(eq=False)
class _Task:
    job: Job
    worker: _Worker | None = None
    why: str = ""  # its worker was lost; a second loss ends the task, because the job may be what kills them
    asked: End | None = None  # the last order sent: pause or stop
    asked_at: float = 0.0

    def send(self, order: Job | End | None) -> None:
        """Send the worker the job, an order to pause or stop it, or None to resume it."""
        assert self.worker is not None, "given to one"
        self.worker.alive()
        self.asked, self.asked_at = order if isinstance(order, End) else None, time.monotonic()
        with suppress(OSError):  # the next read notices that the worker has ended
            self.worker.connection.send(order if isinstance(order, Job) else (self.job.id, order))


class Engine:
    """The workers of this process, shared by all its viewers. Cheap until the first run.

    Attributes:
        niceness: Added to this process's own for workers started from now on.
    """

    def __init__(self) -> None:
        self.niceness = 0
        self._workers: dict[str, _Worker] = {}
        self._guard = threading.Lock()
        self._machine = MachineLock()
        self.queue = Queue(self._machine.release)
        self._cancels: dict[Ticket, Cancel] = {}  # of every run that has asked for a turn
        weakref.finalize(self, _close_all, self._workers)  # also runs at interpreter exit

    def warm(self, runtime: Runtime) -> None:
        self._worker(runtime)

    def pids(self) -> dict[str, int]:
        """Process ids of ready workers by `Runtime.process`, which is followed by a number for single-core workers."""
        with self._guard:
            return {
                name: worker.ready.pid
                for name, worker in self._workers.items()
                if worker.ready is not None and worker.usable
            }

    def close(self) -> None:
        with self._guard:
            _close_all(self._workers)

    def processes(self, runtime: Runtime) -> int:
        """Return the number of single-core workers that are ready for this runtime."""
        return sum(name.startswith(f"{runtime.process} ") for name in self.pids())

    def data_facts(self, cancel: Cancel, which: DataSet = MNIST) -> Generator[Message, None, Facts | None]:
        """Return facts about the data set.

        For MNIST, these come from an earlier load or a ready worker, else from the default runtime's worker.

        Yields:
            A note if a worker has to start.

        Returns:
            The facts; None if cancelled.

        Raises:
            TrainingFailed: The worker cannot start, ended before it was ready, or a user's data set no longer exists.
        """
        if which.digest:
            return _facts_of_own(which)
        if (known := self.known_facts()) is not None:
            return known
        worker = self._worker(Runtime())
        yield from self._until_ready(worker, cancel.is_set)
        return worker.ready.data if worker.ready is not None else None

    def known_facts(self) -> Facts | None:
        """Facts about MNIST from an earlier load or a ready worker; None if there is neither."""
        if (known := recognised()) is not None:
            return known
        with self._guard:
            ready = [worker.ready for worker in self._workers.values() if worker.ready is not None and worker.usable]
        return ready[0].data if ready else None

    def run(
        self, jobs: Iterable[Job], cancel: Cancel, request: AnyRequest | Ticket | None = None, n_workers: int = 0
    ) -> Iterator[Message]:
        """Run jobs of one runtime in its workers; the module docstring describes the protocol.

        Args:
            jobs: In the order of starting. If a worker dies, only its current job starts over, in another worker.
            cancel: May be set from any thread, and takes effect within 0.3 s.
            request: Viewer and urgency, or a ticket that several runs share; None: a new viewer.
            n_workers: Number of single-core, single-threaded workers; 0: one worker with all cores.

        Yields:
            `Waiting`, `Note` and `Ready` as they apply, before the first `Progress` and again after each pause;
            `Trained` once per training; `Checkpoint` if parameters are wanted; `Restarted` if the worker was replaced.

        Raises:
            TrainingFailed: The worker cannot start, or the backend failed. After `CardLost`, the next run gets a new
                worker. Failures of jobs are raised after all others are done.
        """
        tasks = list(map(_Task, jobs))
        failed: list[RuntimeError] = []
        with nullcontext(request) if isinstance(request, Ticket) else self.turn(request) as turn:
            try:
                while tasks and not cancel.is_set():
                    yield from self.take(turn, cancel)
                    if not cancel.is_set():
                        numbers = range(1, n_workers + 1) if n_workers else (0,)
                        yield from self._one_turn(tasks, numbers, cancel, turn, failed)
                    self.queue.give_back(turn)
            finally:
                self.queue.give_back(turn)
                for task in tasks:
                    if task.worker is not None and task.asked is not End.STOPPED:  # paused there
                        task.send(End.STOPPED)
        if failed and not cancel.is_set():
            raise failed[0]

    def examine(
        self, runtime: Runtime, examination: Examination, cancel: Cancel, request: AnyRequest | Ticket | None = None
    ) -> Iterator[Message]:
        """Measure something other than a training in the runtime's worker.

        Args:
            runtime: Selects the worker.
            examination: What to measure.
            cancel: May be set from any thread.
            request: Viewer and urgency, or a ticket that several examinations share; None: a new viewer.

        Yields:
            The messages that `run` yields before it starts, then `Measured` for each row. Its warnings name whatever
            disturbed the measurement.

        Raises:
            TrainingFailed: As `run`.
        """
        watch: Watch | None = None
        for message in self.run([Job(runtime, examination=examination)], cancel, request):
            if isinstance(message, Ready) and watch is None:  # earlier activity did not disturb the measurement
                watch = Watch(runtime.on_gpu)
            if isinstance(message, Measured) and watch is not None:
                message = replace(message, measurement=watch.marked(message.measurement))
            yield message

    @contextmanager
    def turn(self, request: AnyRequest | None = None) -> Iterator[Ticket]:
        """Hold a place in the queue within the block: for timed work outside this engine's workers, or for several
        examinations that no later run of the same viewer may interrupt.

        Other runs wait while the block holds its place, so it should do little between examinations.

        Args:
            request: Viewer and urgency; None: a new viewer.
        """
        turn = self.queue.join(Request() if request is None else request)
        try:
            yield turn
        finally:
            self.queue.leave(turn)
            self._cancels.pop(turn, None)

    def _one_turn(
        self, tasks: list[_Task], numbers: Iterable[int], cancel: Cancel, turn: Ticket, failed: list[RuntimeError]
    ) -> Iterator[Message]:
        """Continue until all tasks are done or the turn is over; removes finished tasks from the list."""
        job = tasks[0].job
        team = [self._worker(job.runtime, number) for number in numbers]
        for task in tasks:
            if task.worker is not None and task.worker not in team:
                task.worker = None
                yield Restarted(task.why, task.job.items)
        for worker in team:
            # A start takes seconds, so let other viewers go first: some noise in their times beats that wait.
            yield from self._until_ready(worker, lambda: self._must_give_way(turn, 0.0) or cancel.is_set())
        ready = [worker.ready for worker in team if worker.ready is not None]
        if len(ready) < len(team) or cancel.is_set():
            return
        yield replace(ready[0], data=_facts_of_own(job.data)) if job.data.digest else ready[0]
        busy = {task.worker: task for task in tasks if task.worker is not None}
        waiting, ending = deque(task for task in tasks if task.worker is None), False
        for task in busy.values():
            task.send(None)
        try:
            while waiting or busy:
                closed = any(worker.connection.closed for worker in team)  # the next turn gets a new worker
                ending = ending or closed or cancel.is_set() or self._must_give_way(turn)
                for worker in team:
                    if waiting and worker not in busy and not ending:
                        task = busy[worker] = waiting.popleft()
                        task.worker = worker
                        task.send(task.job)
                order = End.STOPPED if cancel.is_set() else End.PAUSED
                for task in busy.values():
                    if ending and task.asked not in (order, End.STOPPED):
                        task.send(order)
                if not busy:
                    return
                for task, content in self._heard(busy):
                    if isinstance(content, RuntimeError):
                        failed.append(content)
                    if isinstance(content, RuntimeError | End):
                        if content is not End.PAUSED:
                            tasks.remove(task)
                    elif content is not None and task.asked is not End.STOPPED:
                        yield content
        except GeneratorExit:  # the caller stopped iterating: cancel, but do not yield
            for task in busy.values():
                task.send(End.STOPPED)
            while busy:
                self._heard(busy)
            raise

    def _heard(self, busy: dict[_Worker, _Task]) -> list[tuple[_Task, Any]]:
        """Return each task's next message within `POLL_S`, or None; removes workers that stopped from `busy`."""
        said = wait([worker.connection for worker in busy], POLL_S)
        found = []
        for worker, task in list(busy.items()):
            content = self._hear(worker, task, worker.connection in said)
            if isinstance(content, RuntimeError | End):
                del busy[worker]
            found.append((task, content))
        return found

    def _hear(self, worker: _Worker, task: _Task, speaks: bool) -> Any:
        """Return the worker's message, or None. The first lost worker counts as a pause: another starts over."""
        if not speaks:
            if task.asked is End.STOPPED and time.monotonic() - task.asked_at > CANCEL_ANSWER_S:
                worker.close()
                return End.STOPPED
            if not worker.hangs():
                return None
        try:
            if not speaks:
                worker.lost(f"did not respond for {HUNG_S:.0f} s")
            job_id, content = self._receive(worker)
        except TrainingFailed as died:
            if task.why:
                return died
            task.why = worker.why(f"{worker.lost_by}; another one starts the run over.")
            return End.PAUSED
        worker.alive()
        if job_id != task.job.id:
            return None  # left over from a job that was cancelled while paused
        if isinstance(content, CardLost):
            worker.close()
        return content

    def take(self, turn: Ticket, cancel: Cancel) -> Iterator[Message]:
        """Wait until it is this ticket's turn, or `cancel` is set.

        Yields:
            `Waiting` whenever the place in line changes.
        """
        self._cancels[turn] = cancel
        while not cancel.is_set() and (place := self.queue.take(turn)):
            yield Waiting(place)
            self.queue.wait(turn, place, cancel)
        shown: Waiting | None = None
        while not cancel.is_set() and not self._machine.take():
            holder = self._machine.holder()
            other = holder.waited_for if holder is not None else "another program on this machine is measuring"
            if shown != (waiting := Waiting(None, other)):
                yield (shown := waiting)
            cancel.wait(POLL_S)

    def _worker(self, runtime: Runtime, number: int = 0) -> _Worker:
        """Return the runtime's worker with all cores (0) or a single-core one (from 1); starts it if needed."""
        key = f"{runtime.process} {number}" if number else runtime.process
        with self._guard:
            if key in self._workers and not self._workers[key].usable:
                self._workers.pop(key).close()
            if key not in self._workers:
                idle_s, threads = (IDLE_OF_MANY_S, 1) if number else (IDLE_S, None)
                self._workers[key] = _Worker(runtime, idle_s, self.niceness, threads)
            return self._workers[key]

    def _until_ready(self, worker: _Worker, stop: Callable[[], bool]) -> Iterator[Message]:
        limit = time.monotonic() + START_LIMIT_S
        if worker.ready is None:
            yield Note(f"{worker.runtime.label}: its worker imports the library and loads the images", State.STARTING)
        while worker.ready is None:
            with worker.guard:
                if worker.ready is None and worker.connection.poll(0):
                    message = self._receive(worker)
                    if isinstance(message, TrainingFailed):
                        worker.close()
                        raise message
                    worker.ready = message
            if stop():
                return  # the worker keeps starting: the next run will need it
            if time.monotonic() > limit:
                worker.close()
                raise TrainingFailed(
                    f"The worker of “{worker.runtime.label}” did not start within {START_LIMIT_S:.0f} s."
                )
            time.sleep(POLL_S)

    def _must_give_way(self, turn: Ticket, quantum_s: float = QUANTUM_S) -> bool:
        if self._machine.is_to_end():
            for cancel in list(self._cancels.values()):
                cancel.set(ENDED)
        return self._machine.is_left() or self.queue.must_give_way(turn, quantum_s, self._machine.wanted)

    def _receive(self, worker: _Worker) -> Any:
        try:
            return worker.connection.recv()
        except (EOFError, OSError):
            worker.lost(f"{worker.process.how_it_ended()} during training")


def _close_all(workers: dict[str, _Worker]) -> None:
    while workers:
        workers.popitem()[1].close()


@once
def shared_engine() -> Engine:
    """The engine of this process, created on the first call.

    If the editor reloads this module, the old engine's workers end with its last run.
    """
    return Engine()


class Process:
    """Run a module's `main(connection, *arguments)` in a fresh interpreter with its own environment.

    Not forked: libraries with threads do not survive a fork, and read their settings when loaded.

    Args:
        module: Dotted name.
        arguments: Passed on the command line.
        environment: Variables added to this process's own.
        python: The interpreter; its packages may differ from this one's.
        niceness: Added to this process's own, as the `nice` command does; 0 for the same priority.
    """

    def __init__(
        self,
        module: str,
        arguments: tuple[str, ...],
        environment: Mapping[str, str],
        python: str = sys.executable,
        niceness: int = 0,
    ) -> None:
        ours, theirs = Pipe()
        self.connection: Connection = ours
        code = (
            "import sys; from multiprocessing.connection import Connection; "
            f"from {module} import main; main(Connection(int(sys.argv[1])), *sys.argv[2:])"
        )
        with theirs:
            self._process = subprocess.Popen(
                [python, "-P", "-c", code, str(theirs.fileno()), *arguments],
                env=os.environ | dict(environment),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
            )
        # Before the process starts threads, which inherit it.
        os.setpriority(os.PRIO_PROCESS, self._process.pid, os.getpriority(os.PRIO_PROCESS, 0) + niceness)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def how_it_ended(self) -> str:
        """Say how the process ended, after its connection broke; kills one that has not ended."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5)  # a broken pipe comes shortly before the end
        self.kill(wait=True)
        status = self._process.returncode
        if status == -signal.SIGKILL:
            return "was killed, often by the system because memory ran out,"
        return f"crashed ({signal.Signals(-status).name})" if status < 0 else f"ended (exit status {status})"

    def cpu_s(self) -> float | None:
        """CPU seconds used so far; None if the process has ended."""
        try:
            times = psutil.Process(self._process.pid).cpu_times()
        except psutil.Error:
            return None
        return times.user + times.system

    def kill(self, wait: bool = False) -> None:
        """End the process at once. Unless `wait`, one that takes longer than 50 ms to end is reaped by a later call."""
        _killed[:] = [process for process in _killed if process.poll() is None]
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(None if wait else 0.05)
        if self._process.returncode is None:
            _killed.append(self._process)


_killed: list[subprocess.Popen] = []


READ_LIMIT_S = 150.0  # excluding time in the queue
# Reading measures nothing, so it needs neither a graphics card nor extra threads.
_READER = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "-1", "OMP_NUM_THREADS": "1"}


_queue = Queue()


def read(
    module: str,
    *question: object,
    cancel: Cancel,
    request: Request | None = None,
    niceness: int = 0,
    doing: str = "reading it",
    advice: str = "use less data",
) -> Generator[Note, None, object | None]:
    """Read a file in a separate process; all files given to this server share one queue.

    Args:
        module: Its `main` answers through `lib.model.hardware.process.answer`.
        question: Sent to the process.
        cancel: Ends both waiting and reading.
        request: Viewer and urgency; None: a new viewer.
        niceness: Added to this process's own.
        doing: Shown while reading.
        advice: What to do if reading takes too much memory or time.

    Yields:
        The place in line whenever it changes, then `doing` when reading starts.

    Returns:
        The answer; None if cancelled.

    Raises:
        TrainingFailed: The file cannot be read; the text says why, and what to do.
    """
    ticket = _queue.join(request or Request())
    try:
        while place := _queue.take(ticket):
            yield Note(f"{place} ahead of this: files are read one at a time", State.WAITING)
            _queue.wait(ticket, place, cancel)
            if cancel.is_set():
                return None
        yield Note(doing)
        process = Process(module, (), _READER | {"PYTHONPATH": python_path()}, niceness=niceness)
        try:
            return _answer(process.connection, question, cancel, advice)
        finally:
            process.connection.close()
            process.kill(wait=True)  # frees its memory for the next one
    finally:
        _queue.leave(ticket)


def _answer(connection: Connection, question: tuple[object, ...], cancel: Cancel, advice: str) -> object | None:
    limit = time.monotonic() + READ_LIMIT_S
    try:
        connection.send(question)
        while not connection.poll(POLL_S):
            if cancel.is_set():
                return None
            if time.monotonic() > limit:
                raise TrainingFailed(f"reading it took more than {READ_LIMIT_S:.0f} s; {advice}")
        answer = connection.recv()
    except (EOFError, OSError):
        raise TrainingFailed(
            f"reading it failed: it exceeds the memory or time limit, or is damaged; {advice}"
        ) from None
    if isinstance(answer, str):
        raise TrainingFailed(answer)
    return answer
