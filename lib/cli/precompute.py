"""Train for all slider positions of the first notebook, before a class moves them: `python -m lib.cli.precompute`.

Positions closest to the defaults come first. The program ends when its time is up or at Ctrl-C; finished trainings are
stored, and the same command resumes. The exit status is 0 if all are done, 3 if some are left, 1 if an option or the
store is unusable.
"""

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain, combinations, groupby, product
from typing import Any

from lib.cli import INCOMPLETE, UNUSABLE, Unusable, check_minutes, say, time_limit
from lib.formatting import counted, sentence
from lib.labs.mnist_training import EXPERIMENTS
from lib.model.backends.registry import Runtime
from lib.model.spec import Network, Training
from lib.sweeps.experiments.backend_race import Cell, fastest, plan, race
from lib.sweeps.experiments.lines import rates_between
from lib.sweeps.experiments.mnist_training import every_runtime
from lib.sweeps.storage.records import Kind
from lib.sweeps.storage.store import Store
from lib.sweeps.sweep import AUTO, Finished, Options, quickest_runtime, updates
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Item, Note, Progress, TrainingFailed, note_of
from lib.sweeps.workers.queue import Cancel, Request, Urgency
from lib.ui.controls import settings_of

POINTS = 4_000  # losses stored per training: 200 per epoch, more than a chart shows
PANELS = ("rate", "size", "depth", "backend")  # of the four experiments
# Trainings whose seconds a page compares run alone on the machine.
STRATEGIES = dict.fromkeys(PANELS, "sequential") | {"rate": AUTO}


@dataclass(frozen=True)
class Position:
    """One position of an experiment's sliders, except epochs, and its trainings.

    In `groups`: trainings of one batch size whose closest position has this many moved sliders.
    """

    experiment: str
    moved: int  # sliders not at their default
    items: tuple[Item, ...]


def positions(sliders: Mapping[str, Any], runtime: Runtime) -> Iterator[Position]:
    """Yield all positions of the four experiments' sliders.

    A training with the most epochs serves every position of the epochs slider, so each setting of the other sliders is
    trained once. Networks are those that the page offers; the last experiment has every runtime.

    Args:
        sliders: Of the page's four panels, by their names in the address: `usual` value and `options`.
        runtime: For the other experiments.
    """

    @cache  # positions share items
    def item(hidden: str, rate: float, size: int, epochs: int) -> Item:
        return Item(Training(Network.parse(hidden), rate, size, epochs), runtime)

    def moved(panel: str, **values: object) -> int:
        return sum(value != _plain(sliders[f"{panel}.{name}"].usual) for name, value in values.items())

    def offered(panel: str, *names: str) -> Iterator[tuple]:
        return product(*(sliders[f"{panel}.{name}"].options for name in names))

    most = {panel: max(sliders[f"{panel}.epochs"].options) for panel in PANELS}
    hidden = sliders["rate.hidden"].usual
    for ends in combinations(sliders["rate.range"].options, 2):
        for count, size in offered("rate", "count", "size"):
            items = tuple(item(hidden, rate, size, most["rate"]) for rate in rates_between(*ends, count))
            yield Position("rate", moved("rate", range=ends, count=count, size=size), items)
    hidden = sliders["size.hidden"].usual
    for sizes, (rate,) in product(_subsets(sliders["size.sizes"].options), offered("size", "rate")):
        items = tuple(item(hidden, rate, size, most["size"]) for size in sizes)
        yield Position("size", moved("size", sizes=sizes, rate=rate), items)
    for networks, (rate, size) in product(
        _subsets(sliders["depth.networks"].options), offered("depth", "rate", "size")
    ):
        items = tuple(item(network, rate, size, most["depth"]) for network in networks)
        yield Position("depth", moved("depth", networks=networks, rate=rate, size=size), items)
    for rate, size in offered("backend", "rate", "size"):
        training = Training(Network.parse(sliders["backend.hidden"].usual), rate, size, most["backend"])
        items = tuple(Item(training, runtime) for runtime in every_runtime())
        yield Position("backend", moved("backend", rate=rate, size=size), items)


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _subsets(options: Sequence[Any]) -> list[tuple]:
    return list(chain.from_iterable(combinations(options, n) for n in range(1, len(options) + 1)))


def groups(every: Iterable[Position]) -> list[Position]:
    """Group the positions' trainings, each once: closest to the defaults first, then large batches, which are quick.

    The experiment with every runtime comes last, because some take minutes per epoch.
    """
    nearest: dict[Item, tuple] = {}
    for position in every:
        for item in position.items:
            order = (position.experiment == "backend", position.moved, -item.training.batch_size, position.experiment)
            nearest[item] = min(order, nearest.get(item, order))
    order_of = nearest.__getitem__
    return [
        Position(order[3], order[1], tuple(alike))
        for order, alike in groupby(sorted(nearest, key=order_of), key=order_of)
    ]


def train(group: Position, engine: Engine, store: Store, cancel: Cancel, request: Request) -> Iterator[Finished | Note]:
    """Train a group, with losses thinned to `POINTS`.

    Yields:
        Each finished or already stored training, and notes on waiting and failures.
    """
    options = Options(STRATEGIES[group.experiment], points=POINTS)
    try:
        for update in updates(group.items, engine, store, cancel, options, request):
            if isinstance(update, Finished):
                yield update
            elif not isinstance(update, Progress) and (note := note_of(update)) is not None and note.text:  # type: ignore[arg-type]
                yield note
    except (TrainingFailed, MemoryError) as error:
        yield Note(str(error))


MINUTES, MOST_MINUTES = 240.0, 1440.0
TELL_EVERY_S = 10.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lib.cli.precompute", description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"time limit (default {MINUTES:g})")
    options = parser.parse_args(arguments)
    try:
        check_minutes(options.minutes, MOST_MINUTES, MINUTES)
        return 0 if precompute(Store(), options.minutes) else INCOMPLETE
    except Unusable as error:
        print(sentence(error), file=sys.stderr)
        return UNUSABLE


def _fastest_timed(engine: Engine, store: Store, cancel: Cancel) -> Runtime:
    """Return the runtime that the pages will use, after timing the default and the quickest one if necessary."""
    ways = [Cell(Runtime(), 32), Cell(quickest_runtime(), 32)]
    todo = plan(list(dict.fromkeys(ways)), store.records(Kind.RACE), 1)
    with suppress(TrainingFailed, MemoryError):  # then the other one is the fastest
        for _ in race(todo, engine, store, cancel, Request()):
            pass
    return fastest(store.records(Kind.RACE))


def precompute(store: Store, minutes: float) -> bool:
    """Train for at most this many minutes, and return whether everything is stored.

    Raises:
        Unusable: The store cannot be written.
    """
    cancel, engine, began = Cancel(), Engine(), time.monotonic()

    def tell(text: str) -> None:
        say(time.monotonic() - began, minutes * 60, text)

    stored = new = 0
    told_at = began
    try:
        with time_limit(minutes, cancel) as stopped:
            todo = groups(positions(settings_of(EXPERIMENTS), _fastest_timed(engine, store, cancel)))
            whole = sum(len(group.items) for group in todo)
            for group in todo:
                for one in train(group, engine, store, cancel, Request(urgency=Urgency.LATER)):
                    if isinstance(one, Note):
                        tell(one.text)
                        continue
                    stored += 1
                    new += not one.cached
                    if store.trouble:
                        raise Unusable(store.trouble)
                    if time.monotonic() - told_at > TELL_EVERY_S:
                        told_at = time.monotonic()
                        where = f"{group.experiment}, {counted(group.moved, 'slider')} moved"
                        tell(f"{stored:,} of {whole:,} trainings; now {where}")
    finally:
        engine.close()
    complete = stored == whole
    why = "complete" if complete else "stopped" if stopped.is_set() else "the time is up" if cancel.is_set() else "over"
    rest = "" if complete else ". The same command continues from here"
    tell(f"{why}: {new:,} trainings, {stored:,} of {whole:,} stored{rest}")
    return complete


if __name__ == "__main__":
    sys.exit(main())
