"""Train what the sliders of the first notebook ask for, before a class moves them: `python -m lib.cli.precompute`.

The nearest positions to the usual ones come first. It ends when its time is up or at Ctrl-C; what is trained is stored,
and the same command goes on. The exit status is 0 where every position is answered, 3 where some are left, 1 where an
option or the store cannot be used.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence

from lib.cli import INCOMPLETE, UNUSABLE, Unusable, check_minutes, say, time_limit
from lib.formatting import sentence
from lib.labs.mnist_training import EXPERIMENTS
from lib.model.backends.registry import versions
from lib.sweeps.experiments.precomputation import Group, Slider, answered, groups, positions, train
from lib.sweeps.storage.records import Key
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Item, Note
from lib.sweeps.workers.queue import Cancel, Request, Urgency
from lib.ui.panel import settings_of

MINUTES, MOST_MINUTES = 240.0, 1440.0
SAY_EVERY_S = 10.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, and return the exit status: 0 for all positions, or `INCOMPLETE`, or `UNUSABLE`.

    Args:
        arguments: Words of the command line; None for those of this program.

    Raises:
        SystemExit: The words cannot be read (status 2), or ask for help (status 0).
    """
    parser = argparse.ArgumentParser(prog="python -m lib.cli.precompute", description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"at most so long (default {MINUTES:g})")
    options = parser.parse_args(arguments)
    try:
        check_minutes(options.minutes, MOST_MINUTES, MINUTES)
        return 0 if precompute(Store(), options.minutes) else INCOMPLETE
    except Unusable as error:
        print(sentence(error), file=sys.stderr)
        return UNUSABLE


def precompute(store: Store, minutes: float) -> bool:
    """Train for at most so many minutes, and return whether every position is answered at once.

    Args:
        store: Where the curves go.
        minutes: Time limit.

    Raises:
        Unusable: The store cannot be written.
    """
    every = list(positions({name: Slider(one.usual, one.options) for name, one in settings_of(EXPERIMENTS).items()}))
    cancel, engine = Cancel(), Engine()
    began = time.monotonic()
    try:
        with time_limit(minutes, cancel) as stopped:
            trained = _train_all(groups(every), engine, store, cancel, lambda text: _say(began, minutes, text))
        facts = engine.known_facts()
    finally:
        engine.close()

    def is_stored(item: Item) -> bool:
        if facts is None:  # it was stopped before the images were loaded
            return False
        return store.get(Key(item.training, item.runtime, facts.digest, versions(item.runtime))) is not None

    found = answered(every, is_stored)
    for experiment, (there, whole) in found.items():
        _say(
            began, minutes, f"{experiment}: {there:,} of {whole:,} positions answered, each for every number of epochs"
        )
    complete = all(there == whole for there, whole in found.values())
    why = "complete" if complete else "stopped" if stopped.is_set() else "the time is up" if cancel.is_set() else "over"
    rest = "" if complete else ". The same command goes on from here"
    _say(began, minutes, f"{why}: {trained:,} trainings{rest}")
    return complete


def _train_all(
    todo: Sequence[Group], engine: Engine, store: Store, cancel: Cancel, report: Callable[[str], None]
) -> int:
    """Train the groups in turn, and return how many trainings were not stored before.

    Raises:
        Unusable: The store cannot be written.
    """
    whole, done, trained, said_at = sum(len(group.items) for group in todo), 0, 0, time.monotonic()
    for group in todo:
        for one in train(group, engine, store, cancel, Request(urgency=Urgency.LATER)):
            if isinstance(one, Note):
                report(one.text)
                continue
            done, trained = done + 1, trained + (not one.cached)
            if time.monotonic() - said_at > SAY_EVERY_S:
                said_at = time.monotonic()
                report(f"{done:,} of {whole:,} trainings; now {_words(group)}")
            if store.trouble:
                raise Unusable(store.trouble)
        if cancel.is_set():
            break
    return trained


def _words(group: Group) -> str:
    moved = f"{group.moved} slider{'s' * (group.moved != 1)} moved" if group.moved else "the usual position"
    return f"{group.experiment}, {moved}, batch size {group.items[0].training.batch_size:,}"


def _say(began: float, minutes: float, text: str) -> None:
    say(time.monotonic() - began, minutes * 60, text)


if __name__ == "__main__":
    sys.exit(main())
