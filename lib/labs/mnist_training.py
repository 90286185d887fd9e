"""The first notebook's controls, title, buttons, own data, and class."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import marimo as mo

from lib.labs.why_slower import WhySlower, answer
from lib.model.backends.registry import Runtime, usable_runtimes
from lib.model.data.mnist import Facts, recognised
from lib.model.spec import BATCH_SIZES, MNIST, RATE_STEPS
from lib.sweeps.experiments.backend_race import fastest_here
from lib.sweeps.experiments.lines import MAX_LINES, parse_networks
from lib.sweeps.experiments.mnist_training import Experiment, not_used
from lib.sweeps.experiments.published import ARTICLE_ARCHITECTURES, OVERHEAD_ARTICLE
from lib.sweeps.experiments.results import Results, Watched
from lib.ui import layout
from lib.ui.controls import FASTEST, Controls, backend, batch_size, hidden, several, slider, span, text
from lib.ui.heading import asides, heading
from lib.ui.lab import Hook, Lab, Page, Painter, Stage, button
from lib.ui.network_inside import Inside
from lib.ui.own_data import OwnData
from lib.ui.predict_first import PredictFirst
from lib.ui.presets import listed_presets
from lib.ui.random_search import SearchControls, search
from lib.ui.url_state import Address
from lib.ui.views.mnist_training import published_epoch_s
from lib.ui.widgets import Scripted, WholePage

EPOCHS = tuple(range(1, 21))
TARGETS = (0.8, 0.85, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98)
COUNTS = tuple(range(2, MAX_LINES + 1))


def _steps(label: str, usual: float, options: Collection[float]) -> Any:
    return slider(label, usual, options, debounce=False)


class TrainingControls(Controls):
    AGAIN = "Run again", "Train and time again"
    EXPORTS = PINS = True
    backend: Any = FASTEST

    @property
    def runtime(self) -> Runtime:
        return fastest_here() if self.backend == FASTEST else Runtime(self.backend)


class RateControls(TrainingControls):
    range = span("Learning rates", (0.001, 1.0), RATE_STEPS)
    count = _steps("How many rates", 4, COUNTS)
    epochs = _steps("Epochs", 3, EPOCHS)
    size = batch_size("Batch size", 32, debounce=False)
    hidden = hidden()
    backend = backend()


class SizeControls(TrainingControls):
    sizes = several("Batch sizes", (1, 32, 256), BATCH_SIZES)
    epochs = _steps("Epochs", 3, EPOCHS)
    rate = _steps("Learning rate", 0.01, RATE_STEPS)
    target = _steps("Target accuracy", 0.9, TARGETS)
    hidden = hidden()
    backend = backend()


class DepthControls(TrainingControls):
    networks = several("Hidden layers", ARTICLE_ARCHITECTURES, ARTICLE_ARCHITECTURES)
    own = text("Your own", "", parse_networks, "256, 128, 64; 512; none")
    epochs = _steps("Epochs", 3, EPOCHS)
    rate = _steps("Learning rate", 0.1, RATE_STEPS)
    size = batch_size("Batch size", 32, debounce=False)
    backend = backend()


class BackendControls(TrainingControls):
    size = batch_size("Batch size", 32, debounce=False)
    epochs = _steps("Epochs, the first not timed", 5, EPOCHS[1:])
    rate = _steps("Learning rate", 0.1, RATE_STEPS)
    hidden = hidden()


class YourControls(TrainingControls):
    """The reader's own experiment: change it, and the cell below it."""

    rate = _steps("Learning rate", 0.1, RATE_STEPS)
    size = batch_size("Batch size", 128, debounce=False)
    epochs = _steps("Epochs", 3, EPOCHS)


EXPERIMENTS = {"rate": RateControls, "size": SizeControls, "depth": DepthControls, "backend": BackendControls}
PANELS = {"net": WhySlower} | EXPERIMENTS | {"search": SearchControls, "your": YourControls}


class FirstLab(Lab):
    def __init__(self) -> None:
        self.own, self.first, self.inside, self._title = OwnData(), PredictFirst(), Inside(), _Title()
        super().__init__("mnist_training", (self.own, self.first, self.inside, self._title), **PANELS)
        self.why = answer(self.page, asides("mnist_training", listed_presets(), self._title.tools.text))
        self.search = search(self.own)
        # Not a method: the drawing thread would hold the lab, and the page would outlive its session.
        self.what_is_missing = partial(missing, self.own)
        self.reset, self._title.set_reset = mo.state(0)

    def head(self) -> None:
        self._title.show(self.own, self.first)


class _Title(Hook):
    """The page's head, which names the images once a worker has loaded them."""

    set_reset: Callable[[Any], None]

    def attach(self, page: Page) -> None:
        super().attach(page)
        self.stage = Stage(page.engine, page.store, page.address)
        self._news = Watched()
        page.news.followed_by(self._news)
        self._known = page.engine.known_facts(), page.store.trouble
        # Kept as attributes because marimo holds elements weakly.
        self.tools, self._whole = tools(page, self), mo.ui.anywidget(WholePage(page.come_into_sight))

    def close(self) -> None:
        self.stage.close()

    def knows(self, results: Results) -> None:
        known = results.data, self.page.store.trouble
        if results.items[0].training.data == MNIST and known != self._known:
            self._known = known
            self._news.tell()

    def show(self, own: OwnData, first: PredictFirst) -> None:
        Painter(partial(self._draw, own, first), self._news).show(self.stage)

    def _draw(self, own: OwnData, first: PredictFirst) -> None:
        data, trouble = self._known
        brought = own.data.about.name if own.data is not None else ""
        mo.output.replace(mo.Html(title(self.page.address, data, trouble, brought) + self._whole.text + first.note()))


def title(address: Address, data: Facts | None, trouble: str, brought: str = "") -> str:
    """HTML: title, machine, and caveats about the page.

    Args:
        address: Its problems are listed.
        data: The images; None until a worker has loaded them.
        trouble: The store's trouble, a sentence; empty for none.
        brought: Name of the viewer's own data; empty for MNIST.
    """
    problems = layout.problems([*address.problems, *filter(None, [trouble])])
    images = layout.images_line(data or recognised(), brought)
    return heading("mnist_training", "Why is my GPU slower?", address, problems, images)


def missing(own: OwnData, experiment: Experiment, _results: Results) -> str:
    """HTML below the bars of the backends: the source of published marks, and the backends that cannot run here."""
    if experiment.data != MNIST:
        return layout.missing(not_used(own.data, usable_runtimes()))
    source = f"Grey marks: published seconds, from “{OVERHEAD_ARTICLE}” (Core i9-10885H), not measured here."
    return layout.quiet(source * any(map(published_epoch_s, experiment.items))) + layout.missing()


def tools(page: Page, head: _Title) -> mo.Html:
    def reset() -> None:
        page.address.clear()
        for section in page.sections.values():
            section.stage.opening = True
        head.set_reset(lambda resets: resets + 1)
        page.news.tell()

    def stop() -> None:
        for section in page.sections.values():
            section.stop()

    return mo.hstack(
        [
            button("Reset", "Reset controls to the articles' settings", press=reset),
            mo.ui.anywidget(Scripted("copy link")),
            mo.ui.anywidget(Scripted("present")),
            button("Stop all", "Stop every experiment on this page", press=stop),
        ],
        justify="start",
        wrap=True,
    )
