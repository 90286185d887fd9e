"""“Look inside”: draws the best network once its section is in view."""

from __future__ import annotations

import html
import io
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

import marimo as mo
import numpy as np

from lib import formatting
from lib.formatting import counted, percent
from lib.model.backends.base import Parameters
from lib.model.backends.registry import Runtime
from lib.model.backends.with_numpy import predict_logits
from lib.model.data import prepared
from lib.model.data.mnist import DataError, Facts, load_test
from lib.model.data.prepared import DataSummary
from lib.model.spec import MNIST, Training
from lib.once import Once, once
from lib.sweeps.experiments.results import Results, Watched
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Item, Job, Ready, Trained, TrainingFailed, WorkerDied
from lib.sweeps.workers.queue import Cancel, Request, Urgency
from lib.ui import figures, layout
from lib.ui.lab import Hook, Page, Stage, end_script, until_the_class_goes_on
from lib.ui.views.chart_text import ChartText, Values
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
                    self.stage.showings.draw(showing, partial(self._put, mo.Html(layout.quiet(note.text))))
                known = _train_for_parameters(engine, item.training, cancel, Request(self.stage.viewer, Urgency.LATER))
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
    seen = look(parameters, tested, labels)
    what, of, names, size = "digits", "test images", None, (28, 28)
    if own is not None:
        what, of, names, size = "classes", f"test rows of {own.name}", own.classes, own.image
    lead = (
        f"{training.network.label}, learning rate {formatting.format_rate(training.learning_rate)}, batch size"
        f" {training.batch_size}, {training.epochs} epochs: {percent(seen.accuracy)} of the {len(tested):,} {of}"
        " correct; no training saw them."
    )
    parts = [(f"Which {what} it confuses", confusion_figure(seen, names), confusion_text(seen, names))]
    if size is not None:
        images = tested if own is None else (255 * tested.reshape(-1, *size)).round().astype(np.uint8)
        wrong = wrong_figure(seen, images, labels, names), wrong_text(seen, labels, names)
        weights = weights_figure(parameters, size), weights_text(parameters, size)
        parts += [("Most confident mistakes", *wrong), ("What the first layer looks for", *weights)]
    shown = "".join(layout.framed(caption, as_svg(figure, caption, text)) for caption, figure, text in parts)
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


if TYPE_CHECKING:
    from matplotlib.figure import Figure

N_WRONG = 12
N_WEIGHTS = 32
MAX_WRITTEN = 20  # with more classes, counts and names would be illegible
N_TOLD = 3  # confusions named in the sentence
_INK = "#808894"  # placeholder for the page's text colour, which `as_svg` inserts
_DARK_SHARE = 0.77  # of the largest count: above it, cells are so dark that their count is white


@dataclass(frozen=True)
class NetworkView:
    """How a network classifies the test images.

    `confusion[true, predicted]` holds counts, `(classes, classes)`; `wrong` the most confident mistakes, most confident
    first, each as (index of the test image, predicted class, probability).
    """

    confusion: np.ndarray
    wrong: tuple[tuple[int, int, float], ...]

    @property
    def accuracy(self) -> float:
        return float(np.trace(self.confusion) / self.confusion.sum())


def look(parameters: Parameters, images: np.ndarray, labels: np.ndarray) -> NetworkView:
    """Run the test images through the network.

    Args:
        parameters: Weights and biases, layer by layer.
        images: uint8 `(n, height, width)`, or float32 rows `(n, inputs)` in [0, 1].
        labels: `(n,)`, from 0.
    """
    n_classes = len(parameters[-1][1])
    predicted = np.empty(len(images), np.int64)
    sure = np.empty(len(images))
    for first in range(0, len(images), 2_000):
        part = images[first : first + 2_000].astype(np.float32)
        part = part.reshape(len(part), -1) / np.float32(255 if images.dtype == np.uint8 else 1)
        logits = predict_logits(parameters, part).astype(np.float64)
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        predicted[first : first + len(part)] = logits.argmax(axis=1)
        sure[first : first + len(part)] = powers.max(axis=1) / powers.sum(axis=1)
    confusion = np.zeros((n_classes, n_classes), np.int64)
    np.add.at(confusion, (labels.astype(np.int64), predicted), 1)
    missed = np.flatnonzero(predicted != labels)
    worst = missed[np.argsort(-sure[missed], kind="stable")][:N_WRONG]
    return NetworkView(confusion, tuple((int(i), int(predicted[i]), float(sure[i])) for i in worst))


def confusion_figure(inside: NetworkView, names: Sequence[str] | None = None) -> Figure:
    """Counts by true class (rows) and predicted class (columns); only mistakes are coloured, not the diagonal.

    Above `MAX_WRITTEN` classes the counts are not written. Without `names`, classes are numbered.
    """
    n_classes = len(inside.confusion)
    figure, axes = _figure(4.2, 4.0)
    mistakes = inside.confusion.copy()
    np.fill_diagonal(mistakes, 0)
    axes.imshow(mistakes, cmap="Oranges", vmin=0)
    top = max(int(mistakes.max()), 1)
    for true in range(n_classes):
        for said in range(n_classes):
            if (count := inside.confusion[true, said]) and n_classes <= MAX_WRITTEN:
                color = "white" if mistakes[true, said] > _DARK_SHARE * top else "black"
                axes.text(said, true, str(count), ha="center", va="center", fontsize=7, color=color)
        axes.add_patch(_square(true, true))
    places = range(0, n_classes, -(-n_classes // MAX_WRITTEN))
    shown = [str(place) if names is None else _short(names[place]) for place in places]
    axes.set(xticks=places, yticks=places, xticklabels=shown, yticklabels=shown)
    if names is not None and max(map(len, shown)) > 3:
        axes.tick_params(axis="x", rotation=90)
    axes.set(xlabel="predicted", ylabel="actual")
    return figure


def confusion_text(inside: NetworkView, names: Sequence[str] | None = None) -> ChartText:
    confusion, called = inside.confusion, _called(inside, names)
    mistakes = confusion.copy()
    np.fill_diagonal(mistakes, 0)
    order = np.argsort(-mistakes, axis=None, kind="stable")[:N_TOLD]
    worst = [(true, said) for true, said in zip(*np.unravel_index(order, mistakes.shape), strict=True)]
    told = [
        f"{called[true]} mistaken for {called[said]} ({counted(int(mistakes[true, said]), 'time')})"
        for true, said in worst
        if mistakes[true, said]
    ]
    right = f"{np.trace(confusion):,} of {confusion.sum():,} are correct, {percent(inside.accuracy)}."
    content = f"{right} Most confused: {', '.join(told)}." if told else f"{right} There are no mistakes."
    rows = []
    for true, row in enumerate(mistakes):
        taken = f"{called[row.argmax()]} ({counted(int(row.max()), 'time')})" if row.any() else "–"
        rows.append((called[true], f"{confusion[true].sum():,}", f"{confusion[true, true]:,}", taken))
    axes = "One row per actual class, one column per predicted class."
    return ChartText(axes, content, (Values.of(("actual", "tested", "correct", "most often mistaken for"), rows),))


def _called(inside: NetworkView, names: Sequence[str] | None) -> list[str]:
    return [str(one) if names is None else names[one] for one in range(len(inside.confusion))]


def _short(name: str) -> str:
    return name if len(name) <= 12 else f"{name[:11]}…"


def _square(x: int, y: int):
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor="#f2f3f5", edgecolor="none", zorder=0.5)


def wrong_figure(
    inside: NetworkView, images: np.ndarray, labels: np.ndarray, names: Sequence[str] | None = None
) -> Figure:
    """The test images of the most confident mistakes.

    `images`, uint8 `(n, height, width)`, and `labels`, `(n,)`, are those given to `look`.
    """
    called = [str(one) if names is None else _short(names[one]) for one in range(len(inside.confusion))]
    figure = _empty(4.6, 4.0)
    for place, (index, said, probability) in enumerate(inside.wrong):
        axes = figure.add_subplot(3, 4, place + 1)
        axes.imshow(images[index], cmap="gray_r", vmin=0, vmax=255, interpolation="none")
        told = f"{called[labels[index]]}, says {called[said]}\n{100 * probability:.0f} % sure"
        axes.set_title(told, fontsize=7, color=_INK)
        axes.axis("off")
    return figure


def wrong_text(inside: NetworkView, labels: np.ndarray, names: Sequence[str] | None = None) -> ChartText:
    called = _called(inside, names)
    rows = [
        (str(place), called[labels[index]], called[said], f"{100 * probability:.0f} %")
        for place, (index, said, probability) in enumerate(inside.wrong, 1)
    ]
    if not rows:
        return ChartText("", "There are no mistakes.")
    _, true, said, sure = rows[0]
    content = f"{counted(len(rows), 'image')}. The most confident: {true}, mistaken for {said}, {sure} sure."
    return ChartText("", content, (Values.of(("image", "actual", "predicted", "sure"), rows),))


def weights_figure(parameters: Parameters, size: tuple[int, int] = (28, 28)) -> Figure:
    """First-layer weights as images, at most `N_WEIGHTS` units by norm: blue adds to a unit, red subtracts.

    `size` is the height and width of the images.
    """
    height, width = size[0] + 2, size[1] + 2
    weights = parameters[0][0]  # (inputs, width)
    strongest = _strongest(weights)
    columns = 8
    rows = -(-len(strongest) // columns)
    tiles = np.zeros((rows * height, columns * width))
    for place, unit in enumerate(strongest):
        row, column = divmod(place, columns)
        scale = float(np.abs(weights[:, unit]).max()) or 1.0
        top, left = row * height + 1, column * width + 1
        tiles[top : top + size[0], left : left + size[1]] = weights[:, unit].reshape(size) / scale
    figure, axes = _figure(4.8, 0.6 * rows + 0.1)
    axes.imshow(tiles, cmap="RdBu", vmin=-1, vmax=1, interpolation="none")
    axes.axis("off")
    return figure


def weights_text(parameters: Parameters, size: tuple[int, int] = (28, 28)) -> ChartText:
    """`weights_figure` in words: which units are drawn, and where in the image each one's weights are extreme."""
    weights = parameters[0][0]  # (inputs, width)
    strongest = _strongest(weights)
    norms = np.linalg.norm(weights[:, strongest], axis=0)
    n_units = weights.shape[1]
    rows = []
    for unit, norm in zip(strongest, norms, strict=True):
        most, least = (_place(int(find(weights[:, unit])), size) for find in (np.argmax, np.argmin))
        rows.append((str(unit + 1), f"{norm:.3g}", most, least))
    drawn = "All" if len(strongest) == n_units else f"The {len(strongest)} with the largest weights of"
    content = (
        f"{drawn} {counted(n_units, 'unit')}, each as an image of {size[0]} × {size[1]} weights: blue adds to the unit,"
        f" red subtracts. Norm of one unit's weights: {norms[-1]:.3g} to {norms[0]:.3g}."
    )
    head = ("unit", "norm of its weights", "adds most at", "subtracts most at")
    return ChartText("", content, (Values.of(head, rows),))


def _strongest(weights: np.ndarray) -> np.ndarray:
    """The units with the largest norms of `weights` `(inputs, width)`, at most `N_WEIGHTS`, largest first."""
    return np.argsort(-np.linalg.norm(weights, axis=0), kind="stable")[:N_WEIGHTS]


def _place(index: int, size: tuple[int, int]) -> str:
    row, column = divmod(index, size[1])
    return f"row {row + 1}, column {column + 1}"


def as_svg(figure: Figure, name: str, text: ChartText) -> str:
    """HTML: the figure in the page's text colour, light or dark, its text for screen readers, and its values below."""
    from matplotlib.text import Text

    for written in figure.findobj(Text):
        cast("Text", written).set_parse_math(False)  # class names of own data may look like formulas: `$0_$50`
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg")
    svg = "<svg" + drawn.getvalue().partition("<svg")[2].replace(_INK, "currentColor")
    label = html.escape(text.label(name))
    return f'<div class="lab-drawn" role="img" aria-label="{label}">{svg}</div>{text.as_html(name)}'


def _empty(width: float, height: float) -> Figure:
    # Imported here, because it takes 0.7 s, which would delay the page's first chart. Never pyplot: under `marimo run`,
    # several threads draw at once.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.patch.set_alpha(0)
    return figure


def _figure(width: float, height: float):
    figure = _empty(width, height)
    axes = figure.add_subplot()
    axes.patch.set_alpha(0)
    axes.tick_params(colors=_INK, labelsize=8, length=0)
    axes.xaxis.label.set_color(_INK)
    axes.yaxis.label.set_color(_INK)
    axes.spines[:].set_visible(False)
    return figure, axes
