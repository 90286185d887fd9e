"""Six different trainings, and helpers that sweep them."""

from lib.model.spec import Network, Training
from lib.sweeps.sweep import Finished, Options, updates
from lib.sweeps.workers.messages import Item
from lib.sweeps.workers.queue import Cancel

MIXED = [
    Training(Network(hidden), rate, 4096, 2, seed)
    for hidden, rate, seed in (
        ((12,), 0.1, 0),
        ((12,), 0.3, 0),
        ((7, 5), 0.1, 0),
        ((12,), 0.1, 1),
        ((64, 64, 64), 1000.0, 0),
        ((), 0.1, 0),
    )
]


def made(trainings, engine, store=None, **options):
    items = [Item(training) for training in trainings]
    events = list(updates(items, engine, store, Cancel(), Options(**options)))
    return events, by_place(items, events)


def by_place(items, events):
    found = {update.item: update for update in events if isinstance(update, Finished)}
    return {place: found[item] for place, item in enumerate(items) if item in found}
