"""The viewer's own data: the panel, reading dropped files, and looking inside networks trained on them."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import marimo as mo

from lib import formatting
from lib.formatting import counted, listed
from lib.model.backends.registry import Runtime
from lib.model.data.prepared import DataSummary, Prepared
from lib.model.spec import MAX_TEXT
from lib.sweeps.experiments.mnist_training import (
    Experiment,
    both_winners,
    bring,
    experiment_on,
    moved_to_mnist,
    not_used,
    that_fit,
)
from lib.sweeps.experiments.results import BackgroundTask, Results, Subscription
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Note, State
from lib.sweeps.workers.queue import Cancel, Request, Urgency
from lib.ui import layout, url_state
from lib.ui.controls import Control, Controls, Declared, dropdown
from lib.ui.lab import Hook, Page, Painter, Section, Stage, button, end_script, put
from lib.ui.views.markup import quiet
from lib.ui.views.mnist_training import state_of

NONE = "mnist"
SETS = {
    "MNIST": NONE,
    "scikit-learn: digits (8 × 8)": "digits",
    "scikit-learn: iris": "iris",
    "scikit-learn: wine": "wine",
    "scikit-learn: breast cancer": "breast_cancer",
}


class DataChoice(Controls):
    FILES = "Or drop your own: CSV with a label column; .npz with x and y; IDX files; also zipped"
    set = dropdown("Train on", NONE, SETS, full_width=True)
    label = Declared(
        lambda name: Control(
            url_state.text(name, "", str),
            lambda value: mo.ui.text(
                value, label="Label column (empty: guessed)", max_length=MAX_TEXT, full_width=True
            ),
        )
    )


class OwnData(Hook):
    """The data that every section trains on instead of MNIST; `data` is None for MNIST."""

    def __init__(self) -> None:
        self.settings = DataChoice.settings("data")
        self.data: Prepared | None = None
        self._seen: tuple | None = None  # set and files when the panel was read last
        self._uses_files = False  # not the set: whichever of them changed last
        self._left_out: dict[str, str] = {}  # by experiment name

    def attach(self, page: Page) -> None:
        super().attach(page)
        self.stage = Stage(page.engine, page.store, page.address)
        self._pending = page.address.read(self.settings["data.set"]) != NONE

    def panel(self) -> mo.ui.dictionary:
        elements = DataChoice.elements("data", self.page.address)
        return mo.ui.dictionary(
            {"set": elements.pop("set"), **elements},
            on_change=lambda values: self.page.address.save("data", {name: values[name] for name in ("set", "label")}),
        )

    def read(self, fields: mo.ui.dictionary) -> None:
        """Read the chosen data in a separate process, then describe them or say why they cannot be used.

        Unusable data change nothing: the page keeps the data it had.
        """
        stage = self.stage
        try:
            at = DataChoice.checked("data", fields.value)
        except ValueError as error:
            mo.output.replace(_shown(fields, True, layout.failed(formatting.sentence(error)).text))
            return
        shown = partial(_shown, fields, self._seen is not None or at.set != NONE)
        files = self._files_of(at)
        if not files and at.set == NONE:
            stage.stop()
            stage.showings.begin()
            stage.running = None
            mo.output.replace(shown(""))
            return self._use(None)
        label = at.label.strip() if files else ""
        asked = (label, self._seen if files else at.set)
        request = Request(stage.viewer, Urgency.NOW)
        running = stage.begin_if_new(asked, 0, request, lambda _: ((), partial(_bring, files, at.set, label)))
        if not stage.streams:
            running.wait_for_end()
        Painter(partial(self._draw, running, shown), running).show(stage)
        if not stage.streams and (now := running.view()).state is State.FAILED:
            end_script(now.problem, 1)

    def _files_of(self, at: DataChoice) -> Sequence[tuple[str, bytes | Path]]:
        """The dropped files; none if the viewer has chosen a set since."""
        files, before = at.values["files"], self._seen
        self._seen = seen = (at.set, tuple((name, hash(content)) for name, content in files))
        if before is not None and seen != before:
            self._uses_files = seen[1] != before[1]
        return files if self._uses_files else ()

    def _draw(self, running: BackgroundTask, shown: Callable[[str], mo.Html]) -> None:
        now = running.view()
        found = next((item for item in now.items if isinstance(item, Prepared)), None)
        if found is not None:
            told_below = layout.sentence(loaded(found.about))
        else:
            told_below = layout.state_line(now.state, 0.0, 1.0, now.note, now.problem)
            told_below += quiet("The experiments keep using the previous data." if now.problem else "")
        put(now, shown(told_below).text, loaded(found.about) if found is not None else "")
        if now.over:
            self._use(found if found is not None else self.data)

    def _use(self, data: Prepared | None) -> None:
        if self._pending or data is not self.data:
            self._pending, self.data = False, data
            self.page.news.tell()

    def waits(self) -> str:
        return quiet("The experiments start once the data are read.") if self._pending else ""

    def close(self) -> None:
        self.stage.close()

    def elements(self) -> dict[str, Any]:
        return {"mnist": button(COMPARE, COMPARE_MEANS)}

    def changed(self, experiment: Experiment) -> Experiment:
        if self.data is None:
            return experiment
        sizes, notes = [item.training.batch_size for item in experiment.items], list[str]()
        if experiment.ordered_by == "batch size":
            fitting = that_fit(self.data, sizes)
            notes.append(left_out(sorted(set(sizes)), fitting))
            experiment = experiment.kept(lambda item: item.training.batch_size in fitting)
        if experiment.ordered_by != "backend":
            gaps = not_used(self.data, [item.runtime for item in experiment.items])
            notes += [f"{Runtime().label} trains instead of “{one.label}”: {reason}." for one, reason, _ in gaps]
        self._left_out[experiment.name] = " ".join(filter(None, notes))
        return experiment_on(self.data, experiment)

    def extra_run(self, section: Section, experiment: Experiment) -> Subscription | None:
        if self.data is None:
            return None
        return section.stage.run_unseen(moved_to_mnist(experiment), cast(int, section.value("mnist")))

    def below(self, section: Section, experiment: Experiment, results: Results) -> str:
        if self.data is None:
            return ""
        left_out = layout.quiet(self._left_out.get(experiment.name, ""))
        if not results.over:
            return left_out
        unseen = section.stage.unseen.joined
        if unseen is not None and unseen.results.state.under_way:
            return state_of(unseen.results) + left_out
        curves = [line.curve for line in results.lines]
        found = both_winners(experiment, curves, self.page.store, self.page.engine.known_facts())
        if found is None:
            return left_out
        sentence = layout.said(winner_sentence(experiment, self.data.about.name, *found))
        offer = f'<div class="lab-buttons">{section.button("mnist")}</div>' if found[1] is None else ""
        return sentence + offer + left_out


def _bring(
    files: Sequence[tuple[str, bytes | Path]],
    built_in: str,
    label: str,
    engine: Engine,
    _store: Store,
    cancel: Cancel,
    request: Request,
) -> Iterator[Prepared | Note]:
    yield from bring(files, built_in, label, cancel, request, engine.niceness)


def _shown(fields: mo.ui.dictionary, is_open: bool, below: str) -> mo.Html:
    stacked = "".join(f"<div>{element.text}</div>" for element in fields.elements.values())
    return mo.Html(
        f'<details class="lab-own"{" open" if is_open else ""}><summary>Your own data</summary>'
        f'<div class="lab-own-fields">{stacked}</div>{below}</details>'
    )


COMPARE, COMPARE_MEANS = (
    "Train on MNIST for comparison",
    "The same settings on MNIST; the sentence above then names the winner",
)
_CALLED = {"learning-rate": "learning rate", "batch-size": "batch size", "depth": "hidden layers", "backend": "library"}


def loaded(about: DataSummary) -> str:
    image = f" (images of {about.image[1]} × {about.image[0]})" if about.image is not None else ""
    names = about.classes
    parts = [
        f"{about.name}: {about.n_train + about.n_validation + about.n_test:,} rows,"
        f" {counted(about.n_inputs, 'input')}{image} scaled to [0, 1], {len(about.classes)} classes"
        f" ({', '.join(names if len(names) <= 5 else (*names[:3], '…', names[-1]))})",
        f"{about.n_train:,} rows for training, {about.n_validation:,} for validation, {about.n_test:,} for “Look"
        f" inside”; {about.split}",
        *(note[:1].upper() + note[1:] for note in about.notes),
    ]
    return ". ".join(parts) + "."


def left_out(asked: list[int], fitting: tuple[int, ...]) -> str:
    missing = [f"{size:,}" for size in asked if size not in fitting]
    return f"Left out, for lack of training rows: batch size {listed(missing)}." if missing else ""


def winner_sentence(experiment: Experiment, name: str, own: list[str], mnist: list[str] | None) -> str:
    """Whether these data change the winner.

    Args:
        experiment: The experiment on the data.
        name: Name of the data.
        own: Winners on the data.
        mnist: Winners on MNIST with the same settings; None if those results are not stored.
    """
    here = f"On {name} {_best(own, experiment)}"
    if mnist is None:
        return f"{here}. Whether MNIST has the same winner is unknown: no MNIST results for these settings are stored."
    there = f"on MNIST {_best(mnist, experiment)}"
    common = [label for label in own if label in mnist]
    if not common:
        return f"{name} changes the winner. {here}; {there}."
    if len(own) == len(mnist) == 1:
        return f"{name} does not change the winner: {listed(common)}, as on MNIST."
    return f"No change of winner is certain: {listed(common)} may be best on both. {here}; {there}."


def _best(found: list[str], experiment: Experiment) -> str:
    quick = experiment.name == "backend"
    if len(found) == 1:
        return f"{_CALLED[experiment.name]} {found[0]} {'is quickest' if quick else 'is most accurate'}"
    return f"{listed(found)} are {'equally quick' if quick else 'equally accurate'} as far as this shows"
