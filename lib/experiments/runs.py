"""Sweeps in threads, filling the results that others read: equal ones are run once, for all who watch.

Knows nothing of pages.
"""

import threading
from collections.abc import Hashable
from dataclasses import dataclass, field

from lib.experiments.background import Watchable, in_background
from lib.experiments.mnist_training import Experiment
from lib.experiments.results import Results
from lib.storage.store import Store
from lib.sweeps.sweep import Options, updates
from lib.workers.cancel import Cancel
from lib.workers.engine import Engine
from lib.workers.notes import State
from lib.workers.queue import ALLOWANCE, Request, SharedRequest

# Below that, no strategy saves more than it costs to find out, and without measuring lines begin at once.
WORTH_S = 4.0


@dataclass(eq=False)
class Run:
    """A sweep in a thread, filling its results, for as long as somebody watches it."""

    experiment: Experiment
    results: Results
    request: SharedRequest
    cancel: Cancel = field(default_factory=Cancel)


class Seat(Watchable):
    """One viewer's place at a run that others may watch too.

    Args:
        run: The run that is watched.
        request: The viewer's, which is among those of the run.
    """

    def __init__(self, run: Run, request: Request) -> None:
        self.run, self.request, self.changed = run, request, run.results.changed
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
            if self._stopped is None and not self.run.results.over:
                self._stopped = self.run.results.stopped()  # which wakes who draws it
                self.run.request.discard(self.request)
                if not self.run.request.each:
                    self.run.cancel.set()


_guard = threading.Lock()
_under_way: dict[Hashable, Run] = {}


def join(experiment: Experiment, engine: Engine, store: Store | None, request: Request, fresh: bool = False) -> Seat:
    """A seat at the run of this experiment: the one that is under way, or a new one. Returns at once.

    Args:
        experiment: What is trained; runs of equal ones are shared.
        engine: Its workers train.
        store: Where curves are looked up and stored; None: nothing is cached.
        request: For whom, and how urgently, turns are wanted.
        fresh: Train even what is cached, and what others train already.
    """
    key = (experiment, engine, store.path if store is not None else None)
    with _guard:
        run = None if fresh else _under_way.get(key)
        if run is not None and run.request.each and not run.results.over:
            run.request.add(request)
            return Seat(run, request)
        run = _under_way[key] = Run(experiment, Results(experiment.items, experiment.labels), SharedRequest(request))
    # The thread must not hold the stage whose viewer asked: its collection is what leaves a run that nobody sees.
    in_background(
        lambda: _fill(run, engine, store, fresh),
        lambda *how: _end(run, key, *how),
        run.cancel,
        f"run {experiment.name}",
    )
    return Seat(run, request)


def under_way() -> tuple[str, ...]:
    """The names of the experiments whose runs are under way, in the order in which they began."""
    with _guard:
        return tuple(run.experiment.name for run in _under_way.values() if not run.results.over)


def _fill(run: Run, engine: Engine, store: Store | None, fresh: bool) -> None:
    """Sweep the experiment into the results."""
    options = Options(run.experiment.strategy, worth_s=WORTH_S, fresh=fresh, streams=True)
    with ALLOWANCE.admitted(run.request, run.cancel):
        for update in updates(run.experiment.items, engine, store, run.cancel, options, run.request):
            run.results.add(update)


def _end(run: Run, key: Hashable, state: State, failure: str) -> None:
    """Let nobody join the run any more, and end its results."""
    with _guard:
        if _under_way.get(key) is run:
            del _under_way[key]
    run.results.end(state, failure)
