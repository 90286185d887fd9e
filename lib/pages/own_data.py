"""Connects data that somebody brings to marimo: the panel, reading what is dropped, and a look inside networks."""

import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import marimo as mo

from lib import formatting
from lib.backends.base import Parameters
from lib.data.mnist import Facts
from lib.data.mnist_arrays import DataError
from lib.data.own import prepared
from lib.data.own.prepared import Prepared
from lib.experiments import own_data as experiment
from lib.experiments.background import BackgroundTask
from lib.experiments.mnist_training import Experiment
from lib.experiments.results import Results
from lib.pages import layout, url_state
from lib.pages.controls import Control, Controls
from lib.pages.dropped_files import file_fields, files_of, stacked
from lib.pages.stage import Stage
from lib.pages.streaming import OFFERED, Unseen, paint_while_it_runs, painted
from lib.pages.url_state import Address, Refused, Setting
from lib.spec import MAX_TEXT, MNIST
from lib.storage.store import Store
from lib.views import network_inside
from lib.views import own_data as view
from lib.views.markup import quiet
from lib.workers.cancel import Cancel
from lib.workers.engine import Engine
from lib.workers.messages import Item
from lib.workers.notes import Note, State
from lib.workers.queue import Request, Urgency

NONE = "mnist"
SETS = {
    "MNIST": NONE,
    "scikit-learn: digits (8 × 8)": "digits",
    "scikit-learn: iris": "iris",
    "scikit-learn: wine": "wine",
    "scikit-learn: breast cancer": "breast_cancer",
}
PENDING = "pending"  # in place of data that the address names, until they are read


def _setting() -> Setting[str]:
    among = url_state.choice("data.set", NONE, tuple(SETS.values()))

    def parse(said: str) -> str:
        if prepared.is_digest(said):
            raise Refused("a file that somebody dropped is not part of a link; drop it on this page")
        return among.parse(said)

    return Setting(among.name, among.usual, among.expected, parse, among.options)


def _controls() -> Controls:
    labels = {name: label for label, name in SETS.items()}
    return Controls(
        Control(_setting(), lambda value: mo.ui.dropdown(SETS, value=labels[value], label="Train on", full_width=True)),
        Control(
            url_state.text("data.label", "", str),
            lambda value: mo.ui.text(
                value=value,
                label="Column of labels (empty: guessed)",
                full_width=True,
                max_length=MAX_TEXT,
            ),
        ),
    )


def settings() -> dict[str, Setting]:
    """What the address may say of the data: a set of scikit-learn's, a table's labels, never a dropped file."""
    return _controls().settings


def panel(address: Address) -> mo.ui.dictionary:
    """The sets to choose from, a field for files, in the editor one for a path, and one for labels."""
    controls = _controls().elements(address)
    files = file_fields("Or drop your own: CSV with a label column; .npz with x and y; IDX files; also packed")
    save = address.save("data")
    return mo.ui.dictionary(
        {"set": controls["set"], **files, "label": controls["label"]},
        on_change=lambda values: save({name: values[name] for name in controls}),
    )


def at_first(address: Address) -> str | None:
    """What is trained on when the page opens: None for MNIST, `PENDING` where the address names a set."""
    return PENDING if address.read(_setting()) != NONE else None


class Chosen:
    """Which field of the panel a viewer changed last: that is what is trained on."""

    def __init__(self) -> None:
        self._before: dict[str, object] = {}
        self._last = "set"
        self.touched = False  # since the page was opened

    def of(self, values: Mapping[str, object]) -> tuple[Sequence[tuple[str, bytes | Path]], str]:
        """The files, or none and the name of a set."""
        files = files_of(values)
        now: dict[str, object] = {
            "set": values["set"],
            "files": tuple((name, hash(content)) for name, content in files),
        }
        changed = [name for name in now if name in self._before and self._before[name] != now[name]]
        self._before = now
        if changed:
            self._last, self.touched = changed[-1], True
        return (files, "") if files and self._last == "files" else ((), str(values["set"] or NONE))


def read(stage: Stage, fields: mo.ui.dictionary, chosen: Chosen, done: Callable[[object], object]) -> Prepared | None:
    """Read what was chosen, in a process of its own, and say what it is or why it cannot be used.

    What cannot be used changes nothing: the page goes on with what it had.

    Args:
        stage: Where it is read.
        fields: From `panel`.
        chosen: Of this viewer.
        done: Sets a state: to the data once they are read, or to None for MNIST; or by a function of what it was.

    Returns:
        The data, where nobody watches; else None, and `done` is told later.
    """
    try:
        values = _controls().checked(fields.value)
    except ValueError as error:
        mo.output.replace(_shown(fields, True, layout.failed(formatting.sentence(error)).text))
        return None
    files, built_in = chosen.of(values)
    shown = partial(_shown, fields, chosen.touched or bool(files) or built_in != NONE)
    if not files and built_in == NONE:
        had_some = stage.running is not None
        stage.stop()
        stage.next_showing()
        stage.running = None
        mo.output.replace(shown(""))
        if had_some:
            done(None)
        return None
    label = str(values["label"]).strip() if files else ""
    asked = (built_in, label, tuple((name, hash(content)) for name, content in files))
    request = Request(stage.viewer, Urgency.NOW)
    running = stage.begin_if_new(asked, 0, request, lambda _: ((), partial(_bring, files, built_in, label)))
    paint_while_it_runs(stage, running, partial(_paint, running, shown, done, []))
    return _found(running) if not stage.streams else None


def _bring(
    files: Sequence[tuple[str, bytes | Path]],
    built_in: str,
    label: str,
    engine: Engine,
    _store: Store,
    cancel: Cancel,
    request: Request,
) -> Iterator[Prepared | Note]:
    yield from experiment.bring(files, built_in, label, cancel, request, engine.niceness)


def _found(running: BackgroundTask) -> Prepared | None:
    return next((item for item in running.view().items if isinstance(item, Prepared)), None)


def _paint(
    running: BackgroundTask, shown: Callable[[str], mo.Html], done: Callable[[object], object], told: list[bool]
) -> int:
    now, found = running.view(), _found(running)
    if found is not None:
        told_below = layout.sentence(view.loaded(found.about))
    else:
        told_below = layout.state_line(now.state, 0.0, 1.0, now.note, now.problem)
        told_below += quiet("The experiments go on with the data that they had." if now.problem else "")
    version = painted(now, shown(told_below).text, view.loaded(found.about) if found is not None else "")
    if now.over and not told:
        told.append(True)
        if found is not None:
            done(found)
        elif now.state is State.FAILED:
            done(_what_there_was)
    return version


def _what_there_was(told: object) -> object:
    """The data as they were before something could not be read: MNIST, where there were none yet."""
    return None if told == PENDING else told


def _shown(fields: mo.ui.dictionary, is_open: bool, below: str) -> mo.Html:
    return mo.Html(
        f'<details class="lab-own"{" open" if is_open else ""}><summary>Your own data</summary>'
        f'<div class="lab-own-fields">{stacked(fields).text}</div>{below}</details>'
    )


def now(told: object, at_once: Prepared | None) -> Prepared | None:
    """What is trained on now; the cells that ask wait while the set of the address is being read.

    Args:
        told: The state that `read` sets.
        at_once: From `read`, where nobody watches.
    """
    mo.stop(told == PENDING and at_once is None, layout.note("The experiments begin when the data are read."))
    return at_once if at_once is not None else told if isinstance(told, Prepared) else None


def compared_with_mnist(
    stage: Stage, own: Prepared | None, after: Callable[[Experiment, Results], str] | None = None
) -> Callable[[Experiment, Results], str] | None:
    """An `after` for an experiment: whether these data change the winner; `after` itself on MNIST.

    Args:
        stage: Its store has what was trained on MNIST.
        own: The data; None for MNIST.
        after: Gives HTML that comes below; None for none.
    """
    if own is None:
        return after
    store, engine = stage.store, stage.engine

    def below(shown: Experiment, results: Results) -> str:
        sentence = ""
        if results.over:
            found = experiment.both_winners(shown, results, store, engine.known_facts())
            sentence = view.winner_sentence(shown, own.about.name, *found) if found is not None else ""
        return layout.said(sentence) + OFFERED + (after(shown, results) if after is not None else "")

    return below


def trained_on_mnist_too(stage: Stage, own: Prepared | None, panel: mo.ui.dictionary) -> Unseen | None:
    """What an experiment offers to train on MNIST at the press of its panel's button, where that is not stored; None on
    MNIST.

    Args:
        stage: Its store has what was trained on MNIST.
        own: The data; None for MNIST.
        panel: Has the button.
    """
    if own is None:
        return None
    store, engine, button = stage.store, stage.engine, panel["mnist"].text

    def offer(shown: Experiment, results: Results) -> str:
        found = experiment.both_winners(shown, results, store, engine.known_facts()) if results.over else None
        return f'<div class="lab-buttons">{button}</div>' if found is not None and found[1] is None else ""

    return Unseen(experiment.moved_to_mnist, cast(int, panel.value["mnist"]), offer)


def inside(item: Item, parameters: Parameters, data: Facts) -> mo.Html:
    """Confusion matrix of the test rows; for images also the most confident mistakes and the first layer's weights.

    Args:
        item: The training.
        parameters: Weights and biases, layer by layer.
        data: What the network was trained on.
    """
    assert item.training.data != MNIST, "MNIST's networks are looked into by `lib.pages.mnist_training`"
    try:
        rows, labels, about = prepared.load_test(data.digest)
    except DataError as error:
        return layout.failed(formatting.sentence(str(error)))
    seen = network_inside.look(parameters, rows, labels)
    training = item.training
    lead = (
        f"{training.network.label}, learning rate {formatting.format_rate(training.learning_rate)}, batch size"
        f" {training.batch_size}, {training.epochs} epochs: {formatting.percent(seen.accuracy)} of the"
        f" {len(rows):,} test rows of {about.name}, which no training saw."
    )
    names = about.classes
    confused = network_inside.confusion_figure(seen, names), network_inside.confusion_text(seen, names)
    parts = [("Which classes it confuses", *confused)]
    if about.image is not None:
        images = (255 * rows.reshape(-1, *about.image)).round().astype("uint8")
        wrong = network_inside.wrong_figure(seen, images, labels, names), network_inside.wrong_text(seen, labels, names)
        weights = [
            make(parameters, about.image) for make in (network_inside.weights_figure, network_inside.weights_text)
        ]
        parts += [("Most confident mistakes", *wrong), ("What the first layer looks for", *weights)]
    drawn = ((caption, network_inside.as_svg(figure, caption, text)) for caption, figure, text in parts)
    shown = "".join(layout.framed(caption, figure) for caption, figure in drawn)
    return mo.Html(f'<p class="lab-sentence">{html.escape(lead)}</p><div class="lab-charts">{shown}</div>')
