"""“Look inside”: draws the best network once its section is in view."""

import base64
import html
import io
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

import marimo as mo
import numpy as np

from lib import formatting
from lib.formatting import counted, percent
from lib.model.backends.base import VALIDATION_SLICE, Parameters
from lib.model.backends.registry import Runtime
from lib.model.backends.with_numpy import predict_logits
from lib.model.data import prepared
from lib.model.data.mnist import DataError, Facts, load_test, scaled
from lib.model.data.prepared import DataSummary
from lib.model.spec import MNIST, Training
from lib.once import Once, once
from lib.sweeps.experiments.results import Results, Watched
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Item, Job, Ready, Trained, TrainingFailed
from lib.sweeps.workers.queue import Cancel, Request, Urgency
from lib.ui import layout
from lib.ui.lab import Hook, Page, Stage, end_script, until_the_class_goes_on
from lib.ui.views.markup import quiet, table
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
                    self.stage.showings.draw(showing, partial(self._put, mo.Html(layout.quiet(note.text))))
                known = _train_for_parameters(engine, item.training, cancel, Request(self.stage.viewer, Urgency.LATER))
            if known is not None and not cancel.is_set():
                output = drawn_for(self.digit, item, *known)
        except (TrainingFailed, OSError) as error:
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
    for message in engine.run([Job(Runtime(), (training,), want_parameters=True)], cancel, request):
        if isinstance(message, Ready):
            data = message.data
        elif isinstance(message, Trained) and message.parameters is not None and data is not None:
            remember(Item(training), message.parameters, data)
            return message.parameters, data
    return None


def drawn_for(canvas: DrawDigit, item: Item, parameters: Parameters, data: Facts) -> mo.Html:
    """Confusion matrix; for images also the most confident mistakes and first-layer weights.

    The canvas gets a network trained on MNIST, unless it is too large for the page. A network is tested only on the
    data set it was trained on.
    """
    training, is_mnist = item.training, item.training.data == MNIST
    try:
        tested = (*test_images(data.digest), None) if is_mnist else prepared.load_test(data.digest)
    except DataError as error:
        again = "; “Run again” trains on the current data" if is_mnist else ""
        return layout.failed(f"Cannot look inside this network, trained on {data.source}: {error}{again}.")
    if is_mnist and not canvas.samples:
        canvas.samples = sample_digits(*tested[:2])
    fits = training.network.n_parameters <= MAX_PARAMETERS
    canvas.network = encode(parameters) if is_mnist and fits else {}
    other = f"The canvas needs a network trained on MNIST; this one learnt {data.source}."
    canvas.says = "" if canvas.network else TOO_LARGE if is_mnist else other
    return mo.Html(_looks.get((training, data.digest), lambda: _look(training, parameters, *tested)))


_looks = Once[tuple[Training, str], str](8)


def _look(
    training: Training, parameters: Parameters, tested: np.ndarray, labels: np.ndarray, own: DataSummary | None
) -> str:
    confusion, worst = look(parameters, tested, labels)
    what, of, called, size = "digits", "test images", [str(digit) for digit in range(10)], (28, 28)
    if own is not None:
        what, of, called, size = "classes", f"test rows of {own.name}", own.classes, own.image
    lead = (
        f"{training.network.label}, learning rate {formatting.format_rate(training.learning_rate)}, batch size"
        f" {training.batch_size}, {training.epochs} epochs: {percent(np.trace(confusion) / len(tested))} of the"
        f" {len(tested):,} {of} correct; no training saw them."
    )
    parts = {f"Which {what} it confuses": confusion_table(confusion, called)}
    if size is not None:
        images = tested if own is None else (255 * tested.reshape(-1, *size)).round().astype(np.uint8)
        parts["Most confident mistakes"] = mistakes(worst, images, labels, called)
        parts["What the first layer looks for"] = weights_image(parameters, size)
    shown = "".join(layout.framed(caption, drawn) for caption, drawn in parts.items())
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


N_WRONG = 12
N_WEIGHTS = 32
_COLUMNS = 8  # of the picture of weights
N_TOLD = 3  # confusions named in the sentence
Mistake = tuple[int, int, float]  # index of the test image, predicted class, probability
_ADDS, _SUBTRACTS = np.array([33, 102, 172]), np.array([178, 24, 43])  # blue, red


def look(parameters: Parameters, images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, list[Mistake]]:
    """Run the test images through the network.

    Returns the counts `[true, predicted]`, `(classes, classes)`, and the most confident mistakes, most confident first.

    Args:
        parameters: Weights and biases, layer by layer.
        images: uint8 `(n, height, width)`, or float32 rows `(n, inputs)` in [0, 1].
        labels: `(n,)`, from 0.
    """
    n_classes = len(parameters[-1][1])
    slices = (images[first : first + VALIDATION_SLICE] for first in range(0, len(images), VALIDATION_SLICE))
    logits = np.concatenate([predict_logits(parameters, scaled(part)) for part in slices]).astype(np.float64)
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    predicted, sure = logits.argmax(axis=1), powers.max(axis=1) / powers.sum(axis=1)
    confusion = np.zeros((n_classes, n_classes), np.int64)
    np.add.at(confusion, (labels.astype(np.int64), predicted), 1)
    missed = np.flatnonzero(predicted != labels)
    worst = missed[np.argsort(-sure[missed], kind="stable")][:N_WRONG]
    return confusion, [(int(i), int(predicted[i]), float(sure[i])) for i in worst]


def confusion_table(confusion: np.ndarray, called: Sequence[str]) -> str:
    """HTML: counts by actual class (rows) and predicted class (columns); the more frequent a mistake, the darker."""
    mistakes = _mistakes(confusion)
    shares = mistakes / max(mistakes.max(), 1)
    rows = []
    for name, counts, row in zip(called, confusion, shares, strict=True):
        cells = zip(counts, row, strict=True)
        rows.append(
            [html.escape(name), *(f'<i style="--share: {share:.2f}">{count or ""}</i>' for count, share in cells)]
        )
    head = [html.escape(name if len(name) <= 12 else f"{name[:11]}…") for name in called]
    return table(["actual", *head], rows, "lab-confusion") + quiet(confusion_sentence(confusion, called))


def confusion_sentence(confusion: np.ndarray, called: Sequence[str]) -> str:
    mistakes = _mistakes(confusion)
    order = np.argsort(-mistakes, axis=None, kind="stable")[:N_TOLD]
    told = [
        f"{called[true]} mistaken for {called[said]} ({counted(int(mistakes[true, said]), 'time')})"
        for true, said in zip(*np.unravel_index(order, mistakes.shape), strict=True)
        if mistakes[true, said]
    ]
    found = f"Most confused: {', '.join(told)}." if told else "There are no mistakes."
    return f"A row per actual class, a column per predicted class. {found}"


def _mistakes(confusion: np.ndarray) -> np.ndarray:
    return confusion - np.diag(np.diag(confusion))


def mistakes(worst: Sequence[Mistake], images: np.ndarray, labels: np.ndarray, called: Sequence[str]) -> str:
    """HTML: the test images of the most confident mistakes.

    `images`, uint8 `(n, height, width)`, and `labels`, `(n,)`, are those given to `look`.
    """
    shown = [
        f"<span>{_image(255 - images[index])}{html.escape(called[int(labels[index])])}, says"
        f" {html.escape(called[said])}<br>{100 * probability:.0f} % sure</span>"
        for index, said, probability in worst
    ]
    return f'<div class="lab-mistakes">{"".join(shown)}</div>' if shown else quiet("There are no mistakes.")


def weights_image(parameters: Parameters, size: tuple[int, int]) -> str:
    """HTML: first-layer weights as images, at most `N_WEIGHTS` units by norm: blue adds to a unit, red subtracts.

    `size` is the height and width of the images.
    """
    weights = parameters[0][0]  # (inputs, width)
    norms = np.linalg.norm(weights, axis=0)
    strongest = np.argsort(-norms, kind="stable")[:N_WEIGHTS]
    units = weights[:, strongest].T.reshape(-1, *size)  # (units, height, width)
    largest = np.abs(units).max(axis=(1, 2), keepdims=True)
    framed = np.pad(units / np.where(largest, largest, 1.0), ((0, -len(units) % _COLUMNS), (1, 1), (1, 1)))
    rows = framed.reshape(-1, _COLUMNS, *framed.shape[1:])  # (rows, columns, height, width)
    tiles = rows.swapaxes(1, 2).reshape(-1, _COLUMNS * framed.shape[2])
    colors = np.where(tiles[..., None] > 0, _ADDS, _SUBTRACTS)
    drawn = "All" if len(strongest) == len(norms) else f"The {len(strongest)} with the largest weights of"
    content = (
        f"{drawn} {counted(len(norms), 'unit')}, each as an image of {size[0]} × {size[1]} weights: blue adds to the"
        f" unit, red subtracts. Norm of one unit's weights: {norms[strongest[-1]]:.3g} to {norms[strongest[0]]:.3g}."
    )
    return _image(255 - np.abs(tiles[..., None]) * (255 - colors)) + quiet(content)


def _image(pixels: np.ndarray) -> str:
    """HTML: a picture of pixels from 0 to 255, `(height, width)` or `(height, width, 3)`, without words."""
    from PIL import Image  # imported here, because the page's first chart does not need it

    drawn = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(drawn, "png")
    return f'<img class="lab-pixels" alt="" src="data:image/png;base64,{base64.b64encode(drawn.getvalue()).decode()}">'
