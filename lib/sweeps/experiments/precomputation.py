"""What the sliders of the first notebook can ask for, trained before anybody moves them: the nearest positions first.

A training with the most epochs serves every position of the slider for epochs, so each setting of the others is trained
once. Networks are those that the page offers, and the backend is its usual one; the last experiment has every runtime.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, combinations, product
from typing import Any

from lib.model.spec import Network, Training
from lib.sweeps.experiments.lines import rates_between
from lib.sweeps.experiments.mnist_training import every_runtime
from lib.sweeps.storage.store import Store
from lib.sweeps.strategies import AUTO
from lib.sweeps.sweep import Finished, Options, updates
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Item, Note, Progress, TrainingFailed, WorkerDied, note_of
from lib.sweeps.workers.queue import Cancel, Request

POINTS = 4_000  # of a training's losses are stored: two hundred an epoch, more than a chart shows
EXPERIMENTS = ("rate", "size", "depth", "backend")
# Where seconds are shown side by side, each training has the machine to itself.
STRATEGIES = dict.fromkeys(EXPERIMENTS, "sequential") | {"rate": AUTO}


@dataclass(frozen=True)
class Slider:
    """A control of the page: the value that it opens with, and all that it offers."""

    usual: Any
    options: Sequence[Any]


Sliders = Mapping[str, Slider]  # by the names that they have in the page's address


@dataclass(frozen=True)
class Position:
    """Where the sliders of an experiment may stand, all but the one for epochs: how many are moved, what is trained."""

    experiment: str
    moved: int
    items: tuple[Item, ...]


@dataclass(frozen=True)
class Group:
    """Trainings of one experiment and batch size whose nearest position is equally far from the usual one."""

    experiment: str
    moved: int
    items: tuple[Item, ...]


def positions(sliders: Sliders) -> Iterator[Position]:
    """All positions of the four experiments' sliders.

    Args:
        sliders: Of the page's four panels.
    """

    @cache  # a position holds what others hold, too
    def item(hidden: str, rate: float, size: int, epochs: int) -> Item:
        return Item(Training(Network.parse(hidden), rate, size, epochs))

    def moved(panel: str, **values: object) -> int:
        return sum(value != _plain(sliders[f"{panel}.{name}"].usual) for name, value in values.items())

    def offered(panel: str, *names: str) -> Iterator[tuple]:
        return product(*(sliders[f"{panel}.{name}"].options for name in names))

    most = {panel: max(sliders[f"{panel}.epochs"].options) for panel in EXPERIMENTS}
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


def groups(every: Sequence[Position]) -> list[Group]:
    """What the positions train, each training once: the nearest first, of these the large batches, which are quick.

    The experiment with every runtime comes last: some of them take minutes for an epoch.

    Args:
        every: As `positions` gives them.
    """
    nearest: dict[Item, tuple] = {}
    for position in every:
        for item in position.items:
            order = (position.experiment == "backend", position.moved, -item.training.batch_size, position.experiment)
            nearest[item] = min(order, nearest.get(item, order))
    alike: dict[tuple, list[Item]] = {}
    for item, order in nearest.items():
        alike.setdefault(order, []).append(item)
    return [Group(order[3], order[1], tuple(alike[order])) for order in sorted(alike)]


def answered(every: Sequence[Position], is_stored: Callable[[Item], bool]) -> dict[str, tuple[int, int]]:
    """How many positions of each experiment are answered at once, and how many there are; epochs left out.

    Args:
        every: As `positions` gives them.
        is_stored: Whether a training is.
    """
    stored = cache(is_stored)
    of = {name: [all(map(stored, one.items)) for one in every if one.experiment == name] for name in EXPERIMENTS}
    return {name: (sum(found), len(found)) for name, found in of.items()}


def train(group: Group, engine: Engine, store: Store, cancel: Cancel, request: Request) -> Iterator[Finished | Note]:
    """Train what is not stored of a group.

    Args:
        group: What is wanted.
        engine: Its workers train.
        store: Where the curves go, their losses thinned to `POINTS`.
        cancel: Ends it; what is finished stays stored.
        request: Place in the queue of all that runs on this machine.

    Yields:
        Each training that is finished or stored already, and notes on what is waited for or failed.
    """
    options = Options(STRATEGIES[group.experiment], points=POINTS)
    try:
        for update in updates(group.items, engine, store, cancel, options, request):
            if isinstance(update, Finished):
                yield update
            elif not isinstance(update, Progress) and (note := note_of(update)) is not None and note.text:  # type: ignore[arg-type]
                yield note
    except (TrainingFailed, WorkerDied, MemoryError) as error:
        yield Note(str(error))
