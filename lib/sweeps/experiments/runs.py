"""Sweeps in threads, filling the results that others read: equal ones are run once, for all who watch.

A run that found everything in the store is kept, and whoever asks for the same sees it at once: in a class, most do.

Knows nothing of pages.
"""

import threading
from collections import OrderedDict
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field

from lib.model.backends.fingerprint import source_digest
from lib.model.backends.registry import versions
from lib.model.spec import MNIST
from lib.sweeps.experiments.background import Watchable, in_background
from lib.sweeps.experiments.mnist_training import Experiment
from lib.sweeps.experiments.results import Results
from lib.sweeps.storage.records import Key
from lib.sweeps.storage.store import Store
from lib.sweeps.sweep import Options, updates
from lib.sweeps.workers.cancel import Cancel
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import TrainingFailed
from lib.sweeps.workers.notes import State
from lib.sweeps.workers.queue import ALLOWANCE, Request, SharedRequest

# Below that, lines that begin at once are worth more than a strategy that saves a second.
WORTH_S = 4.0


@dataclass(eq=False)
class Run:
    """A sweep in a thread, filling its results, for as long as somebody watches it."""

    experiment: Experiment
    request: SharedRequest = field(default_factory=SharedRequest)
    cancel: Cancel = field(default_factory=Cancel)
    results: Results = field(init=False)

    def __post_init__(self) -> None:
        self.results = Results(self.experiment.items, self.experiment.labels)


class Seat(Watchable):
    """One viewer's place at a run that others may watch too.

    Args:
        run: The run that is watched.
        request: The viewer's, which is among those of the run.
    """

    def __init__(self, run: Run, request: Request) -> None:
        self.run, self.request = run, request
        self.changed, self.ended = run.results.changed, run.results.ended
        self._stopped: Results | None = None

    @property
    def now(self) -> Results:
        """The results that are watched."""
        return self.results

    @property
    def results(self) -> Results:
        """The run's results; once the viewer has left, those of that moment."""
        return self._stopped or self.run.results

    def leave(self) -> None:
        """Watch the run no longer; it ends when nobody is left. A second call does nothing."""
        with _guard:
            if self._stopped is not None or self.run.results.over:
                return
            with self.changed:  # held until it is set: to stop them wakes who draws them
                self._stopped = self.run.results.stopped()
            self.run.request.discard(self.request)
            is_last = not self.run.request.each  # nobody can join it any more
        if is_last:  # outside: it waits for the queue, and all who come to any run would wait for that
            self.run.cancel.set()


MAX_SAVED_RUNS = 512
MAX_SAVED_STEPS = 2**24  # of all of them together: their losses, of four bytes each, are what takes memory


class SavedRuns:
    """Runs whose trainings were all stored, the latest of them; frames that were drawn of them live as long."""

    def __init__(self, most: int = MAX_SAVED_RUNS, most_steps: int = MAX_SAVED_STEPS) -> None:
        self._most, self._most_steps, self._n_steps = most, most_steps, 0
        self._runs: OrderedDict[Hashable, tuple[Run, frozenset[Hashable]]] = OrderedDict()

    def get(self, key: Hashable) -> Run | None:
        """The run that was kept under this key; None where there is none."""
        if key not in self._runs:
            return None
        self._runs.move_to_end(key)
        return self._runs[key][0]

    def keep(self, key: Hashable, run: Run, curves: Collection[Hashable]) -> None:
        """Keep a run that is over, by the keys of its curves, and let go of those asked for longest ago."""
        run.request.each = ()  # nobody's pages are held by it
        self._let_go(key)
        self._runs[key] = (run, frozenset(curves))
        self._n_steps += _n_steps(run)
        while self._runs and (len(self._runs) > self._most or self._n_steps > self._most_steps):
            self._let_go(next(iter(self._runs)))

    def forget(self, trained: Collection[Hashable]) -> None:
        """Let go of all that have one of these curves, by their keys: they were trained anew."""
        for key in [key for key, (_, curves) in self._runs.items() if not curves.isdisjoint(trained)]:
            self._let_go(key)

    def _let_go(self, key: Hashable) -> None:
        if key in self._runs:
            self._n_steps -= _n_steps(self._runs.pop(key)[0])


def _n_steps(run: Run) -> int:
    return sum(line.n_steps for line in run.results.lines)


_guard = threading.Lock()
_under_way: dict[Hashable, Run] = {}
_saved = SavedRuns()


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
    curves = _curves(experiment, engine, store)
    with _guard:
        if not fresh and (saved := _saved.get((key, curves))) is not None:
            return Seat(saved, request)
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
        lambda *how: _end(run, key, curves, *how),
        run.cancel,
        f"run {experiment.name}",
    )
    return seat


def under_way() -> tuple[str, ...]:
    """The names of the experiments whose runs are under way, in the order in which they began."""
    with _guard:
        return tuple(run.experiment.name for run in _under_way.values() if not run.results.over)


def _fill(run: Run, engine: Engine, store: Store | None, fresh: bool) -> None:
    """Sweep the experiment into the results."""
    options = Options(run.experiment.strategy, worth_s=WORTH_S, fresh=fresh, processes=False)
    for update in updates(run.experiment.items, engine, store, run.cancel, options, run.request):
        run.results.add(update)


def _curves(experiment: Experiment, engine: Engine, store: Store | None) -> tuple[Key, ...]:
    """The keys of its curves in the store, one for each item; none where they are not yet known, or private."""
    data = engine.known_facts()
    if store is None or data is None or experiment.data != MNIST:
        return ()
    return tuple(Key(item.training, item.runtime, data.digest, versions(item.runtime)) for item in experiment.items)


def _end(run: Run, key: Hashable, curves: tuple[Key, ...], state: State, failure: str) -> None:
    """Let nobody join the run any more, and end its results."""
    with _guard:
        if _under_way.get(key) is run:
            del _under_way[key]
    run.results.end(state, failure)
    with _guard:
        if run.results.state is State.SAVED and curves:
            _saved.keep((key, curves), run, curves)
        elif run.results.state is not State.SAVED:
            lines = zip(curves, run.results.lines, strict=False)  # no curves, where they were not known
            _saved.forget({curve for curve, line in lines if not line.cached})
