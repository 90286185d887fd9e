"""What runs in threads, for as long as somebody watches: equal experiments once for all, other tasks for one viewer.

A run that found everything in the store is kept, and whoever asks for the same sees it at once: in a class, most do.

Knows nothing of pages.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from lib.model.backends.fingerprint import source_digest
from lib.model.spec import MNIST
from lib.sweeps.experiments.failures import words
from lib.sweeps.experiments.mnist_training import Experiment
from lib.sweeps.experiments.results import Results, Watched
from lib.sweeps.storage.records import Kind, Record
from lib.sweeps.storage.store import Store
from lib.sweeps.sweep import Options, updates
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Note, State, TrainingFailed, WorkerDied
from lib.sweeps.workers.queue import ALLOWANCE, Cancel, Request, SharedRequest

T = TypeVar("T")

# Below that, lines that begin at once are worth more than a strategy that saves a second.
WORTH_S = 4.0
MAX_SAVED_RUNS = 512
MAX_SAVED_STEPS = 2**24  # of all of them together: their losses, of four bytes each, are what takes memory


def in_background(
    work: Callable[[], None], end: Callable[[State, str], None], cancel: Cancel, name: str
) -> threading.Thread:
    """Do the work in a thread, and report how it ended.

    An unexpected error is raised again in the thread, so that the terminal shows it.

    Args:
        work: Without arguments; it ends early when `cancel` is set.
        end: Called in the thread, with `DONE`, `STOPPED` or `FAILED`, and a sentence where it failed or somebody else
            stopped it, else an empty text.
        cancel: Where it is set when the work returns, the work was stopped.
        name: Of the thread.

    Returns:
        The thread, which is running and does not hold up the end of the program.
    """

    def run() -> None:
        try:
            work()
            end(State.STOPPED if cancel.is_set() else State.DONE, cancel.why)
        except (WorkerDied, TrainingFailed, MemoryError, OSError) as error:
            end(State.FAILED, str(error))
        except Exception as error:
            fault = (
                f"The run ended by a fault of this program ({type(error).__name__}: {error}); the terminal has the"
                " details."
            )
            end(State.FAILED, fault)
            raise

    thread = threading.Thread(target=run, daemon=True, name=name)
    thread.start()
    return thread


@dataclass(frozen=True)
class View(Generic[T]):
    """A background task at one moment: its items so far, its state, and what there is to say.

    `problem` is a sentence where it failed, or a part of it did; `note` says what is happening meanwhile. Either may be
    empty.
    """

    items: list[T]
    state: State
    problem: str
    note: str
    version: int

    @property
    def over(self) -> bool:
        """Whether no more items come."""
        return self.state.over


class BackgroundTask(Watched, Generic[T]):
    """Collects what `make` yields, in a thread, until it ends or `cancel` is set.

    The thread holds neither page nor stage.

    Args:
        make: Yields items, and notes on what is happening meanwhile; it ends itself when `cancel` is set.
        cancel: Ends the task.
    """

    def __init__(self, make: Callable[[], Iterator[T | Note]], cancel: Cancel) -> None:
        super().__init__(State.MEASURING)
        self._items: list[T] = []
        self._problems: list[str] = []
        self._note = ""

        def work() -> None:
            for item in make():
                self._take(item)

        self.thread = in_background(work, self._end, cancel, "background task")

    def view(self) -> View[T]:
        """The task as it is now."""
        with self.changed:
            return View(list(self._items), self.state, " ".join(self._problems), self._note, self.version)

    def _take(self, item: T | Note) -> None:
        with self.changed:
            if isinstance(item, Note):
                self.state, self._note = item.state, item.text
            else:
                self._items.append(item)
                self.state, self._note = State.MEASURING, ""
                if isinstance(item, Record) and item.kind == Kind.FAILURE:
                    self._problems = list(dict.fromkeys([*self._problems, words(item)]))
            self._tell()

    def _end(self, state: State, problem: str) -> None:
        with self.changed:
            self._problems += [problem] if problem else []
            self.state = State.FAILED if self._problems and state is State.DONE else state
            self._note = ""
            self._tell()


@dataclass(eq=False)
class Run:
    """A sweep in a thread, filling its results, for as long as somebody watches it."""

    experiment: Experiment
    request: SharedRequest = field(default_factory=SharedRequest)
    cancel: Cancel = field(default_factory=Cancel)
    results: Results = field(init=False)

    def __post_init__(self) -> None:
        self.results = Results(self.experiment.items, self.experiment.labels)


class Seat:
    """One viewer's place at a run that others may watch too.

    Args:
        run: The run that is watched.
        request: The viewer's, which is among those of the run.
    """

    def __init__(self, run: Run, request: Request) -> None:
        self.run, self.request = run, request
        self._stopped: Results | None = None

    @property
    def results(self) -> Results:
        """The run's results; once the viewer has left, those of that moment."""
        return self._stopped or self.run.results

    def wait_for_end(self, timeout_s: float | None = None) -> bool:
        """Wait until the run is over or left, at most `timeout_s` seconds (None: without limit); whether it is."""
        with self.run.results.changed:
            return self.run.results.ended.wait_for(lambda: self.results.over, timeout_s)

    def leave(self) -> None:
        """Watch the run no longer; it ends when nobody is left. A second call does nothing."""
        with _guard:
            if self._stopped is not None or self.run.results.over:
                return
            with self.run.results.changed:  # held until it is set: to stop them wakes who draws them
                self._stopped = self.run.results.stopped()
            self.run.request.discard(self.request)
            is_last = not self.run.request.each  # nobody can join it any more
        if is_last:  # outside: it waits for the queue, and all who come to any run would wait for that
            self.run.cancel.set()


_guard = threading.Lock()
_under_way: dict[Hashable, Run] = {}
_saved: OrderedDict[Hashable, Run] = OrderedDict()  # whose trainings were all stored, the latest asked for last


def join(experiment: Experiment, engine: Engine, store: Store | None, request: Request, fresh: bool = False) -> Seat:
    """A seat at the run of this experiment: one that is under way or was saved, or a new one. Returns at once.

    Args:
        experiment: What is trained; runs of equal ones are shared.
        engine: Its workers train.
        store: Where curves are looked up and stored; None: nothing is cached.
        request: For whom, and how urgently, turns are wanted.
        fresh: Train even what is cached, and what others train already.
    """
    key = (experiment, engine, store.identity if store is not None else None, source_digest())
    data = engine.known_facts()
    public = store is not None and data is not None and experiment.data == MNIST
    saved = (key, data.digest) if public and data is not None else None  # None: it is not kept
    with _guard:
        if not fresh and saved in _saved:
            _saved.move_to_end(saved)
            return Seat(_saved[saved], request)
        there = None if fresh else _under_way.get(key)
        joins = there is not None and bool(there.request.each) and not there.results.over
        run = there if there is not None and joins else Run(experiment)
        seat = Seat(run, request)
        try:
            ALLOWANCE.admit(request, lambda: seat.results.over)
        except TrainingFailed as error:  # a run of the viewer's own says so: the others' goes on
            seat = Seat(Run(experiment), request)
            seat.results.end(State.FAILED, str(error))
            return seat
        run.request.add(request)
        if joins:
            return seat
        _under_way[key] = run
    # The thread must not hold the stage whose viewer asked: its collection is what leaves a run that nobody sees.
    in_background(
        lambda: _fill(run, engine, store, fresh),
        lambda *how: _end(run, key, saved, *how),
        run.cancel,
        f"run {experiment.name}",
    )
    return seat


def under_way() -> tuple[str, ...]:
    """The names of the experiments whose runs are under way, in the order in which they began."""
    with _guard:
        return tuple(run.experiment.name for run in _under_way.values() if not run.results.over)


def _fill(run: Run, engine: Engine, store: Store | None, fresh: bool) -> None:
    options = Options(run.experiment.strategy, worth_s=WORTH_S, fresh=fresh, processes=False)
    for update in updates(run.experiment.items, engine, store, run.cancel, options, run.request):
        run.results.add(update)


def _end(run: Run, key: Hashable, saved: Hashable, state: State, failure: str) -> None:
    """Let nobody join the run any more, end its results, and keep it, or what it has not trained anew of those kept."""
    with _guard:
        if _under_way.get(key) is run:
            del _under_way[key]
    run.results.end(state, failure)
    with _guard:
        if run.results.state is not State.SAVED:
            trained = {line.item for line in run.results.lines if not line.cached}
            for other in [one for one, it in _saved.items() if not trained.isdisjoint(it.experiment.items)]:
                del _saved[other]
        elif saved is not None:
            run.request.each = ()  # nobody's pages are held by it
            _saved[saved] = run
            _saved.move_to_end(saved)
            while len(_saved) > MAX_SAVED_RUNS or sum(map(_n_steps, _saved.values())) > MAX_SAVED_STEPS:
                _saved.popitem(last=False)


def _n_steps(run: Run) -> int:
    return sum(line.n_steps for line in run.results.lines)
