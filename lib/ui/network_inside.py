"""“Look inside”: draws the best network once its section is in view."""

import html
from collections import OrderedDict
from functools import partial

import marimo as mo
import numpy as np

from lib import formatting
from lib.model.backends.base import Parameters
from lib.model.backends.registry import Runtime
from lib.model.data.mnist import DataError, Facts, load_test
from lib.model.spec import MNIST, Training
from lib.once import Once, once
from lib.sweeps.experiments.results import Results, Watched
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import How, Item, Ready, Trained, TrainingFailed, WorkerDied
from lib.sweeps.workers.queue import Cancel, Request, Urgency
from lib.ui import figures, layout, own_data
from lib.ui.lab import Hook, Page
from lib.ui.stage import Stage, end_script, until_the_class_goes_on
from lib.ui.views import network_inside as view
from lib.ui.widgets import MAX_PARAMETERS, TOO_LARGE, DrawDigit, encode, sample_digits

INSIDE = "inside"  # its name in `Page.in_sight`
NOTHING = "The best network appears here once an experiment above has finished and this section is in view."


class Inside(Hook):
    """The best network of the section that finished last, drawn once this section is in view.

    If its parameters are not cached, it is trained again, which gives the same ones: training is deterministic.
    """

    def __init__(self) -> None:
        self.digit = DrawDigit()
        self.best: Item | None = None
        self._news, self._cancel = Watched(), Cancel()

    def attach(self, page: Page) -> None:
        super().attach(page)
        self.stage = Stage(page.engine, page.store, page.address)

    def close(self) -> None:
        self._cancel.set()
        self.stage.close()
        self._news.tell()

    def done(self, results: Results) -> None:
        if (best := results.best()) is not None:
            if results.parameters is not None and results.data is not None:
                remember(*results.parameters, results.data)
            self.best = best
            self._cancel.set()
            self._news.tell()

    def redraw(self) -> None:
        figures.late()
        self._news.tell()

    def show(self, prose: mo.Html) -> None:
        self._prose = prose.text
        self._put(mo.Html(layout.out_of_sight(INSIDE, NOTHING)))
        if not self.stage.streams:
            if self.best is not None:
                self._draw(self.stage.showings.begin(), self.best)
            return
        mo.Thread(target=self._keep, args=(self.stage.showings.begin(),), daemon=True).start()

    def _put(self, content: mo.Html) -> None:
        mo.output.replace(mo.Html(self._prose + content.text))

    def _keep(self, showing: int) -> None:
        version, drawn = -1, None
        while self.stage.showings.is_latest(showing):
            version, best = self._news.version, self.best
            if INSIDE in self.page.in_sight and best is not None and best != drawn:
                self._cancel, drawn = Cancel(), best
                self._draw(showing, best)
            self._news.wait_for_news(version)

    def _draw(self, showing: int, item: Item) -> None:
        cancel, engine, output = self._cancel, self.stage.engine, None
        try:
            known = _parameters.get(item.training)
            if known is None:
                for note in until_the_class_goes_on(self.stage.is_teacher, cancel):
                    self.stage.showings.draw(showing, partial(self._put, layout.note(note.text)))
                request = Request(self.stage.viewer, Urgency.LATER)
                known = _train_for_parameters(engine, item.training, cancel, request)
            if known is not None and not cancel.is_set():
                output = drawn_for(self.digit, item, *known)
        except (WorkerDied, TrainingFailed, OSError) as error:
            self.stage.showings.draw(showing, partial(self._put, layout.failed(str(error))))
            end_script(str(error), 1)
        if output is not None:
            self.stage.showings.draw(showing, partial(self._put, output))


# The latest networks' parameters and training data, shared by all viewers.
_parameters: OrderedDict[Training, tuple[Parameters, Facts]] = OrderedDict()
_MAX_KEPT_PARAMETERS = 8


def remember(item: Item, parameters: Parameters, data: Facts) -> None:
    _parameters[item.training] = (parameters, data)
    while len(_parameters) > _MAX_KEPT_PARAMETERS:
        _parameters.popitem(last=False)


def _train_for_parameters(
    engine: Engine, training: Training, cancel: Cancel, request: Request
) -> tuple[Parameters, Facts] | None:
    data: Facts | None = None
    for message in engine.run(Runtime(), [training], cancel, how=How(want_parameters=True), request=request):
        if isinstance(message, Ready):
            data = message.data
        elif isinstance(message, Trained) and message.parameters is not None and data is not None:
            remember(Item(training), message.parameters, data)
            return message.parameters, data
    return None


def drawn_for(canvas: DrawDigit, item: Item, parameters: Parameters, data: Facts) -> mo.Html:
    """Confusion matrix, most confident mistakes and first-layer weights.

    The canvas gets the network, unless it is too large for the page. The network is tested only on images of the data
    set it was trained on.
    """
    training = item.training
    if training.data != MNIST:
        canvas.network, canvas.says = {}, f"The canvas needs a network trained on MNIST; this one learnt {data.source}."
        return own_data.inside(item, parameters, data)
    try:
        images, labels = test_images(data.digest)
    except DataError as error:
        return layout.failed(
            f"Cannot look inside this network, trained on {data.source}: {error}. “Run again” trains on the current"
            " data."
        )
    drawn = _looks.get((training, data.digest), lambda: _look(training, parameters, images, labels))
    if not canvas.samples:
        canvas.samples = sample_digits(images, labels)
    canvas.network = encode(parameters) if training.network.n_parameters <= MAX_PARAMETERS else {}
    canvas.says = "" if canvas.network else TOO_LARGE
    return mo.Html(drawn)


_looks = Once[tuple[Training, str], str](8)


def _look(training: Training, parameters: Parameters, images: np.ndarray, labels: np.ndarray) -> str:
    seen = view.look(parameters, images, labels)
    lead = (
        f"{training.network.label}, learning rate {formatting.format_rate(training.learning_rate)}, batch size"
        f" {training.batch_size}, {training.epochs} epochs: {formatting.percent(seen.accuracy)} of the {len(images):,}"
        " test images correct; no training saw them."
    )
    parts = [
        ("Which digits it confuses", view.confusion_figure(seen), view.confusion_text(seen)),
        ("Most confident mistakes", view.wrong_figure(seen, images, labels), view.wrong_text(seen, labels)),
        ("What the first layer looks for", view.weights_figure(parameters), view.weights_text(parameters)),
    ]
    shown = "".join(layout.framed(caption, view.as_svg(figure, caption, text)) for caption, figure, text in parts)
    return f'<p class="lab-sentence">{html.escape(lead)}</p><div class="lab-charts lab-inside">{shown}</div>'


@once
def test_images(digest: str) -> tuple[np.ndarray, np.ndarray]:
    """The test images `(n, 28, 28)` and labels `(n,)`, uint8, of this data set, loaded once for all viewers.

    Raises:
        DataError: The data set here now has another digest.
    """
    images, labels, found = load_test()
    if found.digest != digest:
        raise DataError(f"expected test images from the data this network was trained on, got {found.source}")
    return images, labels
