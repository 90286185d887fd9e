"""A sweep in a thread, filling the results that others read. Knows nothing of pages."""

import threading
from dataclasses import dataclass

from lib.engine import Engine, TrainingFailed, WorkerDied
from lib.experiments import Experiment
from lib.results import DONE, FAILED, STOPPED, Results
from lib.store import Store
from lib.sweep import Options, updates
from lib.turns import Claim

# Before that, no strategy beats one after another by more than it costs to find out, and lines begin at once.
WORTH_S = 4.0


@dataclass
class Run:
    """A sweep in a thread, filling its results."""

    experiment: Experiment
    results: Results

    @classmethod
    def start(
        cls,
        experiment: Experiment,
        engine: Engine,
        store: Store | None,
        cancel: threading.Event,
        claim: Claim,
        fresh: bool = False,
    ) -> "Run":
        """Begin, and return at once. `cancel` ends it early; `fresh` trains even what is kept."""
        run = cls(experiment, Results(experiment.items, experiment.labels))
        # The thread must not hold the stage that owns the run: its collection is what cancels a run that nobody sees.
        arguments = (experiment, run.results, engine, store, cancel, claim, fresh)
        threading.Thread(target=_fill, args=arguments, daemon=True, name=f"run {experiment.name}").start()
        return run

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end, but not longer than the time-out; whether it is over."""
        with self.results.changed:
            return self.results.changed.wait_for(lambda: self.results.over, timeout_s)


def _fill(
    experiment: Experiment,
    results: Results,
    engine: Engine,
    store: Store | None,
    cancel: threading.Event,
    claim: Claim,
    fresh: bool,
) -> None:
    """Sweep the experiment into the results; whatever goes wrong becomes a sentence in them."""
    try:
        options = Options(experiment.strategy, worth_s=WORTH_S, fresh=fresh, streams=True)
        for update in updates(experiment.items, engine, store, cancel, options, claim):
            results.add(update)
        results.end(STOPPED if cancel.is_set() else DONE)
    except (WorkerDied, TrainingFailed, MemoryError, OSError) as error:
        results.end(FAILED, str(error))
    except Exception as error:
        fault = (
            f"The run ended by a fault of this program ({type(error).__name__}: {error}); the terminal has the details."
        )
        results.end(FAILED, fault)
        raise
