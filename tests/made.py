"""The four experiments of the first notebook, made by its own cells, and its page without a browser."""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import mnist_training
from lib.labs import mnist_training as page
from lib.model.backends.registry import DEFAULT, Runtime
from lib.sweeps.storage.store import Store
from lib.ui import lab as lab_module
from lib.ui.url_state import Address

CELLS = {"rate": "learning_rate", "size": "batch_size", "depth": "hidden_layers", "backend": "which_backend"}


@cache
def jobs(prefix):
    """Return a function from a cell's control values to its experiment, ready to draw."""
    asked = []

    def show(_panel, jobs, draw, say, below=None):
        asked.append(lambda at: replace(jobs(at), draw=tuple(draw), say=say))

    lab = SimpleNamespace(show=show, what_is_missing=None)
    getattr(mnist_training, CELLS[prefix]).run(lab=lab, **{prefix: None})
    return asked[0]


def _made(prefix, **values):
    return jobs(prefix)(SimpleNamespace(**values))


def learning_rate(rates, *, epochs, batch_size, hidden, backend=DEFAULT):
    usual = {"range": (0.1, 1.0), "count": 2, "size": batch_size, "hidden": hidden, "runtime": Runtime(backend)}
    found = _made("rate", epochs=epochs, **usual)
    trained = [replace(found.items[0].training, learning_rate=rate) for rate in rates]
    items = [replace(found.items[0], training=training) for training in trained]
    return replace(type(found).by("learning rate", items), draw=found.draw, say=found.say)


def batch_size(sizes, *, epochs, rate, hidden, backend=DEFAULT, target=0.95):
    return _made("size", sizes=sizes, epochs=epochs, rate=rate, hidden=hidden, runtime=Runtime(backend), target=target)


def depth(chosen, *, own="", epochs, rate, batch_size, backend=DEFAULT):
    trained = {"rate": rate, "size": batch_size, "runtime": Runtime(backend)}
    return _made("depth", networks=chosen, own=own, epochs=epochs, **trained)


def backends(*, batch_size, epochs, rate, hidden):
    return _made("backend", size=batch_size, epochs=epochs, rate=rate, hidden=hidden)


def first_lab(monkeypatch, engine, folder, streams: bool = False, **settings: str):
    monkeypatch.setattr(lab_module, "shared_engine", lambda: engine)
    monkeypatch.setattr(lab_module, "Store", lambda: Store(folder / "results.sqlite"))
    monkeypatch.setattr(page, "fastest_here", Runtime)
    monkeypatch.setattr(lab_module, "opened", lambda _name, _settings: Address(arguments=settings))
    lab = page.FirstLab()
    for section in lab.page.sections.values():
        section.stage.streams = streams
    return lab
