"""How many epochs a batch size needs for an accuracy: what makes seconds per epoch comparable between batch sizes.

All backends take the same steps from the same start (tests check that), so the epochs are counted once, with JAX, and
the seconds are each backend's own. The learning rate is chosen on one seed and judged on three others. The accuracy is
evaluated after each epoch only, so the epochs, and with them the seconds, are upper bounds.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lib.model.backends.registry import Runtime, versions
from lib.model.data.mnist import Facts
from lib.model.spec import Network, Training
from lib.sweeps.storage.records import Key
from lib.sweeps.storage.store import Store
from lib.sweeps.sweep import Finished, Options, updates
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Item, Note, note_of
from lib.sweeps.workers.queue import Cancel, Request

TUNED_ON = 0
SEEDS = (1, 2, 3)
RATES = {
    1: (0.01, 0.03),
    32: (0.1, 0.3),
    128: (0.1, 0.3),
    512: (0.3, 1.0),
    1024: (0.3, 1.0),
    2048: (0.3, 1.0),
    4096: (0.3, 1.0),
}
EPOCHS = {1: 3, 32: 8, 128: 12, 512: 20, 1024: 20, 2048: 30, 4096: 30}
TARGETS = (0.9, 0.92, 0.94, 0.95, 0.96, 0.97)

Learned = Mapping[Training, tuple[float, ...]]  # validation accuracy after each epoch


@dataclass(frozen=True)
class TrialTrained:
    """A training and its validation accuracies after each epoch, 0 to 1."""

    training: Training
    accuracies: tuple[float, ...]


@dataclass(frozen=True)
class Needed:
    """Epochs to a target accuracy at one batch size, over the judged seeds."""

    rate: float  # chosen on the seed `TUNED_ON`
    epochs: tuple[int | None, ...]  # of each judged run; None where it did not get there in `tried` epochs
    tried: int

    @property
    def reached(self) -> tuple[int, ...]:
        """Epochs of the runs that reached the target, fewest first."""
        return tuple(sorted(epochs for epochs in self.epochs if epochs is not None))

    @property
    def words(self) -> str:
        """How many runs reached the target, after how many epochs, and with which learning rate."""
        counts = ", ".join(map(str, self.reached)) or "none"
        return (
            f"{len(self.reached)} of {len(self.epochs)} runs reached it within {self.tried} epochs ({counts}), at"
            f" learning rate {self.rate:g}"
        )


def trials(network: Network) -> list[Training]:
    """All trainings whose epochs are counted: every batch size and learning rate, on the tuning and judged seeds."""
    return [
        Training(network, rate, size, EPOCHS[size], seed)
        for size in RATES
        for rate in RATES[size]
        for seed in (TUNED_ON, *SEEDS)
    ]


def learned(store: Store, network: Network, facts: Facts | None) -> dict[Training, tuple[float, ...]]:
    """Validation accuracies after each epoch of the trials that are stored for these images.

    Args:
        store: Where the curves are looked up.
        network: What is trained.
        facts: Which images; None while that is not known, and then nothing is found.
    """
    if facts is None:
        return {}
    runtime = Runtime()
    cached = {t: store.get(Key(t, runtime, facts.digest, versions(runtime))) for t in trials(network)}
    return {t: tuple(epoch.validation_accuracy for epoch in c.epochs) for t, c in cached.items() if c is not None}


def learn(
    todo: list[Training], engine: Engine, store: Store, cancel: Cancel, request: Request, pooled: bool = True
) -> Iterator[TrialTrained | Note]:
    """Train these trials; each is stored as soon as it is done.

    Args:
        todo: What to train.
        engine: Trains them.
        store: Where the curves are looked up and stored.
        cancel: Ends the trainings when it is set.
        request: Place in the queue of all that runs on this machine.
        pooled: Whether several processes may be used, where that is faster.

    Yields:
        Each finished training, and notes on what is trained or waited for.
    """
    options = Options(processes=pooled)
    for update in updates([Item(training) for training in todo], engine, store, cancel, options, request):
        if isinstance(update, Finished):
            training = update.item.training
            yield TrialTrained(training, tuple(epoch.validation_accuracy for epoch in update.curve.epochs))
            yield Note(f"counting epochs to an accuracy, batch size {training.batch_size:,}")
        elif (note := note_of(update)) is not None:  # type: ignore[arg-type]
            yield note


def needed(known: Learned, network: Network, batch_size: int, target: float) -> Needed | None:
    """Epochs to the target, with the learning rate that needs the fewest on the seed `TUNED_ON`.

    Rates that need equally many epochs, or never reach it, are ranked by their best accuracy.

    Args:
        known: Accuracies by training.
        network: What is trained.
        batch_size: Images per step.
        target: Validation accuracy, 0 to 1.

    Returns:
        None while a training of this batch size is missing, and for a batch size that is not in `RATES`.
    """
    tried, rates = EPOCHS.get(batch_size, 0), RATES.get(batch_size, ())
    runs = {
        rate: [known.get(Training(network, rate, batch_size, tried, seed)) for seed in (TUNED_ON, *SEEDS)]
        for rate in rates
    }
    if not rates or any(run is None for of_rate in runs.values() for run in of_rate):
        return None
    counts = {rate: [epochs_to(run, target) for run in of_rate if run is not None] for rate, of_rate in runs.items()}
    best = min(rates, key=lambda rate: (counts[rate][0] or tried + 1, -max(runs[rate][0] or (0.0,))))
    return Needed(best, tuple(counts[best][1:]), tried)


def epochs_to(accuracies: tuple[float, ...], target: float) -> int | None:
    """The first epoch, counted from 1, after which the accuracy is at least the target; None where it never is.

    >>> epochs_to((0.9, 0.95, 0.94), 0.95), epochs_to((0.9,), 0.95)
    (2, None)
    """
    return next((number for number, accuracy in enumerate(accuracies, 1) if accuracy >= target), None)
