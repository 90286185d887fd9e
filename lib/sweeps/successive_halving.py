"""Successive halving: many settings for a few epochs, the best of them for more, the best of those for all.

Jamieson and Talwalkar, “Non-stochastic best arm identification and hyperparameter optimization”, 2016. If a quarter
survives each rung, 256 settings and 16 epochs cost 256 × 1 + 64 × 3 + 16 × 12 = 640 epochs, as many as 40 full
trainings. It works where the settings that lead early also lead late; a small learning rate starts slowly, so compare
with the full sweep where it matters.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from lib.storage.records import Curve
from lib.storage.store import Store
from lib.sweeps.events import Continued, Finished, ToTrain, Update, Void
from lib.sweeps.sweep import Options, updates
from lib.workers.cancel import Cancel
from lib.workers.engine import Engine
from lib.workers.messages import Item, Progress
from lib.workers.queue import Request

KEEP_ONE_IN = 4


@dataclass(frozen=True)
class Rung:
    """A round of the search: so many settings are trained until they have had so many epochs."""

    settings: int
    epochs: int


def rungs(settings: int, epochs: int, keep_one_in: int = KEEP_ONE_IN) -> list[Rung]:
    """As many rungs as both numbers allow, the last with all epochs.

    Args:
        settings: At least one.
        epochs: Of a full training.
        keep_one_in: From rung to rung the settings are divided by it, and the epochs multiplied.

    Raises:
        ValueError: `keep_one_in` is less than 2.

    >>> rungs(256, 16)
    [Rung(settings=256, epochs=1), Rung(settings=64, epochs=4), Rung(settings=16, epochs=16)]
    """
    if keep_one_in < 2:
        raise ValueError(
            f"halving: expected to keep one in 2 or more, got one in {keep_one_in}; choose a larger number"
        )
    steps = int(math.log(min(settings, epochs), keep_one_in) + 1e-9)
    return [Rung(math.ceil(settings / keep_one_in**k), epochs // keep_one_in ** (steps - k)) for k in range(steps + 1)]


def cost_epochs(of: Sequence[Rung]) -> int:
    """Epochs that all rungs train, each continuing where the one before ended.

    >>> cost_epochs(rungs(256, 16))
    640
    """
    before = [0, *(rung.epochs for rung in of)]
    return sum(rung.settings * (rung.epochs - done) for rung, done in zip(of, before, strict=False))


def halved(
    items: Sequence[Item],
    engine: Engine,
    store: Store | None,
    cancel: Cancel,
    options: Options | None = None,
    request: Request | None = None,
    keep_one_in: int = KEEP_ONE_IN,
) -> Iterator[Update]:
    """As `lib.sweeps.sweep.updates`, but what a rung leaves behind is `Finished` with the epochs that it had.

    Args:
        items: Equal ones are trained once; all have the same number of epochs.
        engine: Its workers train.
        store: Where rungs continue from; None: a temporary one.
        cancel: Ends it early; what the rung had finished by then is `Finished`.
        options: How each rung is made.
        request: For whom, and how urgently, turns are wanted.
        keep_one_in: One in so many survives a rung.

    Raises:
        ValueError: The items have different numbers of epochs, or `keep_one_in` is less than 2.

    Raises what `updates` raises, too.
    """
    epochs = {item.training.epochs for item in items}
    if len(epochs) > 1:
        raise ValueError(f"halving: expected one number of epochs for all, got {sorted(epochs)}; choose one")
    with TemporaryDirectory() as folder:
        cached = store or Store(Path(folder) / "halving.sqlite")  # the next rung continues from what is stored
        alive, request = list(dict.fromkeys(items)), request or Request()
        plan = rungs(len(alive), max(epochs, default=1), keep_one_in)
        for rung, following in zip(plan, [*plan[1:], None], strict=True):
            found: dict[Item, Finished] = {}
            whole = {_with_epochs(item, rung.epochs): item for item in alive}
            for update in updates(list(whole), engine, cached, cancel, options, request):
                if isinstance(update, Finished):
                    found[whole[update.item]] = replace(update, item=whole[update.item])
                elif isinstance(update, Progress | Continued):
                    yield replace(update, item=whole[update.item])
                elif isinstance(update, ToTrain | Void):
                    yield replace(update, items=tuple(whole[item] for item in update.items))
                else:
                    yield update
            if cancel.is_set() or following is None:
                yield from found.values()
                return
            alive = sorted(found, key=lambda item: standing(found[item].curve), reverse=True)[: following.settings]
            yield from (found[item] for item in found if item not in alive)


def standing(curve: Curve) -> float:
    """What settings are ranked by: validation accuracy after the last epoch, −1 for what diverged."""
    last = curve.epochs[-1]
    return -1.0 if last.diverged_step is not None else last.validation_accuracy


def _with_epochs(item: Item, epochs: int) -> Item:
    return replace(item, training=replace(item.training, epochs=epochs))
