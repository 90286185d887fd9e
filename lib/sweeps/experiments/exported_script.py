"""Exports: a training as a standalone Python script that checks its own curve, and the rows behind the charts as CSV.

A script is assembled from the pieces in `script_parts`: the shared code, the source of the data and one library's
training loop. Pieces are read as text and never imported, so the library need not be installed.

**Tolerance.** All libraries start from the same parameters and see the same batches; only the order in which they add
float32 numbers differs. `tests/model/backends/test_backends.py` holds every backend to within 1e-5 of float64 over
twenty steps, and after 160 steps to a validation loss within 1e-3 of NumPy's and an accuracy within 0.01 (two of its
200 images). An exported training has 12,000 validation images and thousands of steps, so `TOLERANCE` is 1 % of the loss
and half a point of accuracy. This holds for stable trainings: on MNIST, ten epochs of 784→128→10 at rate 0.1 and batch
size 32 differed between NumPy and JAX by at most 1.0 % and 0.09 points.

It cannot hold where rounding errors grow with every step: at large rates, small batches or many layers. At rate 2 and
batch size 256, NumPy and JAX were 28 points apart. No fixed number is right there. A script outside `TOLERANCE`
therefore measures the effect of rounding on its own training: it trains twice more, with each weight moved to the next
float32 above or below, and allows (and prints) four times the resulting difference. A training that diverges does so in
the same step, unless rounding moves that step too.

Every exported row names its training, runtime, machine and data; column names carry the units. A script for a reader's
own data comes with the data, as one ZIP file.
"""

import ast
import io
import math
import sys
import textwrap
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lib.formatting import format_rate, percent, seconds
from lib.model.backends.registry import HERE, PRECISIONS, versions
from lib.model.data import prepared
from lib.model.data.mnist import ARRAYS, KERAS_URL, Facts, sha256
from lib.model.hardware.machine import this_machine
from lib.model.spec import MNIST, Training
from lib.sweeps.experiments.mnist_training import losses_frame, search_frame, settings_of
from lib.sweeps.experiments.results import Line, Results
from lib.sweeps.storage.records import Curve
from lib.sweeps.workers.messages import Item

if TYPE_CHECKING:
    import pandas as pd

DATA_FILE = "data.npz"  # a reader's own data, in the script's folder
WIDTH = 88  # columns: ruff's default, so the script passes a format check anywhere
_PARTS = Path(__file__).parent / "script_parts"


# By key: the library's display name, and the distributions that a script needs.
LIBRARIES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "numpy": ("NumPy", ("numpy",)),
    "jax": ("JAX", ("numpy", "jax", "jaxlib")),
    "keras": ("Keras", ("numpy", "keras")),
    "torch": ("PyTorch", ("numpy", "torch")),
}
_KERAS_ON = {"keras-tensorflow": "tensorflow", "keras-torch": "torch"}  # by backend; for all others, JAX


def exported_script(
    experiment: str, line: Line, data: Facts, library: str, brought: Mapping[str, np.ndarray] | None = None
) -> str:
    """Return a Python script that repeats a line's training and compares the curve.

    Args:
        experiment: Name of the experiment for the script's docstring, such as “learning rate”.
        line: A finished training.
        data: The images it was trained on.
        library: An installed library, a key of `LIBRARIES`; it need not be the one that trained the line.
        brought: `x_train` and `y_train` of a reader's own data, expected in `DATA_FILE`; None for MNIST.

    Raises:
        ValueError: The script cannot be written; the message is a sentence to show.
    """
    (label, distributions), keras_on = LIBRARIES[library], _KERAS_ON.get(line.item.runtime.backend, "jax")
    needs = [*distributions, *([keras_on] if library == "keras" else [])]
    if line.item.runtime.precision != PRECISIONS[0]:
        raise ValueError(
            f"expected a training in {PRECISIONS[0]}, got {line.item.runtime.precision}; choose another line"
        )
    if data.source != "MNIST" and brought is None:
        raise ValueError(f"expected a training on MNIST or your own data, got {data.source}; train on MNIST")
    (imports, _, shared), (more_imports, late, training) = _split("common"), _split(f"with_{library}")
    late = late.replace('"KERAS_BACKEND"] = "jax"', f'"KERAS_BACKEND"] = "{keras_on}"')
    about, early = _about(experiment, line, data, label), _sorted(imports | more_imports)
    head = f"{_header(needs)}\n{about}\n\n{(early + late).rstrip()}\n\n{_settings(line, brought)}"
    return "\n\n\n".join(part.strip() for part in (head, shared, training, _MAIN)) + "\n"


def file_name(line: Line, library: str) -> str:
    training = line.item.training
    of = "own_data" if training.data.digest else "mnist"
    network = "_".join(map(str, training.network.hidden)) or "no_hidden_layer"
    return f"{of}_{network}_rate_{training.learning_rate:g}_batch_{training.batch_size}_{library}.py"


def installed() -> dict[str, str]:
    """Return the libraries whose versions a script can name: their display names by key."""
    return {key: label for key, (label, needs) in LIBRARIES.items() if all(_version(name)[1] for name in needs)}


def _version(distribution: str) -> tuple[str, str]:
    names = [distribution, *(["tensorflow-cpu"] if distribution == "tensorflow" else [])]
    return next(((name, found) for name in names if (found := HERE.version(name))), (distribution, ""))


def _header(needs: list[str]) -> str:
    pinned = "".join(f'#     "{name}=={version}",\n' for name, version in map(_version, needs))
    python = ".".join(HERE.python_version.split(".")[:2])
    return f'# /// script\n# requires-python = ">={python}"\n# dependencies = [\n{pinned}# ]\n# ///'


def _about(experiment: str, line: Line, data: Facts, library: str) -> str:
    training, runtime, curve = line.item.training, line.item.runtime, line.curve
    assert curve is not None, "only a finished training is offered"
    when = curve.measured_at[:10] or "an unknown date"
    which = f"a reader's own, scaled and split, in {DATA_FILE} next to this file" if training.data.digest else "MNIST"
    paragraphs = [
        f"{'→'.join(map(str, training.network.widths))} on {data.source}, trained with {library}.",
        f"From the experiment on {experiment} of “Why is my GPU slower?”, exported {datetime.now(UTC):%Y-%m-%d}:"
        f" hidden layers {training.network.label}, learning rate {format_rate(training.learning_rate)}, batch size"
        f" {training.batch_size}, {len(line.epochs)} epochs, seed {training.seed}. It was trained there by"
        f" {runtime.label}, on {when}, on {this_machine().line}, with {versions(runtime)}. Data: {which}, digest"
        f" {data.digest}.",
        "Run it with `uv run`, or with a Python that has the packages listed above. It trains the network again and"
        " compares the curve with the table below: exit status 0 if it matches, 1 if it differs, 2 if the data differ.",
        "Libraries add numbers in different orders, so float32 rounding makes curves drift apart, more with large"
        " learning rates. If the curve is outside the tolerance, the file measures how far rounding alone drives this"
        " training apart, and allows four times that.",
    ]
    text = "\n\n".join(textwrap.fill(one, WIDTH - 4) for one in paragraphs)
    return f'"""{text.replace(chr(92), "/").replace(chr(34), chr(39))}\n"""'


def _settings(line: Line, brought: Mapping[str, np.ndarray] | None) -> str:
    training, at = line.item.training, line.diverged_step
    epochs = line.epochs if at is None else line.epochs[:-1]
    whole = takewhile(lambda epoch: math.isfinite(epoch.validation_loss), epochs)
    rows = "".join(f"    ({one.validation_loss:.6f}, {one.validation_accuracy:.5f}),\n" for one in whole)
    if brought is None:
        file, url = 'os.environ.get("MNIST_NPZ") or "mnist.npz"', KERAS_URL
        digests = {name: ARRAYS[name][1] for name in ("x_train", "y_train")}
    else:
        file, url = f'os.path.join(os.path.dirname(__file__), "{DATA_FILE}")', ""
        digests = {name: sha256(array) for name, array in brought.items()}
    sums = "".join(f'    "{name}": "{digest}",\n' for name, digest in digests.items())
    network = training.network
    expected = f"EXPECTED = [\n{rows}]" if rows else "EXPECTED = []"
    return (
        f"N_INPUTS, N_CLASSES, N_TRAIN = {network.n_inputs}, {network.n_classes}, {training.data.n_train:_}\n"
        f"HIDDEN = {network.hidden}\nLEARNING_RATE = {training.learning_rate!r}\n"
        f"BATCH_SIZE = {training.batch_size}\nEPOCHS = {len(line.epochs)}\nSEED = {training.seed}\n\n"
        f'DATA_FILE = {file}\nDATA_URL = "{url}"\n'
        f"# SHA-256 of the arrays' bytes.\nDATA_SHA256 = {{\n{sums}}}\n\n"
        f"# Validation loss and accuracy after each epoch, from the exported training.\n{expected}\n"
        f"DIVERGED_AT = {at}  # first step, from 1, whose loss was not finite\n"
    )


_MAIN = """
if __name__ == "__main__":
    x, y, x_validation, y_validation = training_data()

    def curve_from(nudge: int) -> Curve:
        start = initial_parameters(nudge)
        return curve_of(train(start, x, y, x_validation), y_validation)

    sys.exit(compare(curve_from))
"""


def _split(piece: str) -> tuple[set[str], str, str]:
    """Split a piece into its imports, what follows before the first function or class, and the rest."""
    text = (_PARTS / f"{piece}.py").read_text()
    lines, nodes = text.splitlines(keepends=True), ast.parse(text).body[1:]  # without its docstring
    imports = list(takewhile(lambda node: isinstance(node, ast.Import | ast.ImportFrom), nodes))
    first = next(node.lineno for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)) - 1
    return set(map(ast.unparse, imports)), "".join(lines[imports[-1].end_lineno : first]), "".join(lines[first:])


def _sorted(imports: set[str]) -> str:
    """Sort imports as ruff does, without those of this project."""
    groups: list[list[str]] = [[], []]  # standard library, third-party
    for line in sorted(imports, key=lambda line: (line.startswith("from"), line)):
        package = line.split()[1].split(".")[0]
        if package != "lib":
            groups[package not in sys.stdlib_module_names].append(line)
    return "\n\n".join(map("\n".join, groups)) + "\n"


ABOUT = ("backend", "hidden_layers", "learning_rate", "batch_size", "parameters", "measured_at")


@dataclass(frozen=True)
class Takeaway:
    """The exports that an experiment offers at this moment.

    Args:
        experiment: Name for use in a sentence, such as “learning rate”.
        labels: One per line.
        lines: Its trainings, finished or not.
        rows: By display name, a function that builds the rows.
        data: The data trained on; None if unknown.
        sentence: The experiment's conclusion; empty while there is none.
    """

    experiment: str
    labels: Sequence[str]
    lines: Sequence[Line]
    rows: Mapping[str, "Callable[[], pd.DataFrame]"]
    data: Facts | None
    sentence: str

    @property
    def own_data(self) -> bool:
        """Whether any line was trained on a reader's own data, which a script alone cannot load."""
        return any(line.item.training.data != MNIST for line in self.lines)

    def best_first(self) -> list[int]:
        """Indices of the finished lines: diverged ones last, then by accuracy, then by seconds per epoch.

        Runtimes of the same training share the best accuracy among them, since theirs differ by rounding alone.
        """
        finished = {place: line for place, line in enumerate(self.lines) if line.curve is not None}
        reached: dict[Training, float] = {}
        for line in finished.values():
            reached[line.item.training] = max(line.accuracy or 0.0, reached.get(line.item.training, 0.0))

        def order(place: int) -> tuple[bool, float, float]:
            line = finished[place]
            return line.diverged_step is not None, -reached[line.item.training], float(np.median(line.epoch_s))

        return sorted(finished, key=order)

    def described(self, place: int) -> str:
        line = self.lines[place]
        end = "diverged" if line.diverged_step is not None else percent(line.accuracy or 0.0)
        return f"{self.labels[place]}: {end}, {seconds(float(np.median(line.epoch_s)))} per epoch"

    @property
    def settings(self) -> str:
        if not self.lines:
            return ""
        found = settings_of([line.item for line in self.lines])
        return f"{'; '.join(f'{name} {value}' for name, value in found)}."


def takeaway(about: str, results: Results, data: Facts | None, sentence: str) -> Takeaway:
    """Return the exports of a run, with the same rows as its charts.

    Args:
        about: Name of the experiment.
        results: The run's results so far.
        data: The data trained on, used when the run does not know it itself.
        sentence: The conclusion shown on the page.
    """
    frames = {
        "each epoch": lambda: _with_settings(results, results.epochs_frame()),
        "loss by step, as drawn": lambda: _with_settings(results, results.steps_frame()),
        "each training": results.summary_frame,
    }
    rows = {name: lambda make=make: _placed(make(), results.data or data) for name, make in frames.items()}
    return Takeaway(about, results.labels, results.lines, rows, results.data or data, sentence)


def takeaway_of_search(found: Mapping[Training, Curve], data: Facts | None) -> Takeaway:
    lines = [Line(Item(training)) for training in found]
    for line, curve in zip(lines, found.values(), strict=True):
        line.finish(curve, cached=True)
    labels = [
        f"{one.network.label}, rate {format_rate(one.learning_rate)}, batch size {one.batch_size}" for one in found
    ]
    rows = {
        "each setting": lambda: _placed(search_frame(found), data),
        "loss by step, averaged": lambda: _placed(losses_frame(found), data),
    }
    return Takeaway("a random search", labels, lines, rows, data, "")


def _with_settings(results: Results, rows: "pd.DataFrame") -> "pd.DataFrame":
    return rows.merge(results.summary_frame()[["line", *ABOUT]], on="line", how="left")


def _placed(rows: "pd.DataFrame", data: Facts | None) -> "pd.DataFrame":
    known = data or Facts("", "")
    return rows.assign(machine=this_machine().line, data=known.source, data_digest=known.digest)


MAX_BYTES = 64 << 20  # of the rows: the page sends all of it at once


def exported_bundle(experiment: str, line: Line, data: Facts, library: str) -> bytes:
    """Return a ZIP of the script and the training and validation rows.

    Args:
        experiment: As in `exported_script`.
        line: A finished training on a reader's own data.
        data: The data it was trained on.
        library: A key of `LIBRARIES`.

    Raises:
        ValueError: The script cannot be written, or the data are too large or gone; the message is a sentence to show.
    """
    rows = prepared.rows_to_train_on(line.item.training.data.digest)
    n_bytes = sum(array.nbytes for array in rows.values())
    if n_bytes > MAX_BYTES:
        raise ValueError(
            f"expected at most {MAX_BYTES >> 20} MiB of rows to download, got {n_bytes >> 20}; use a part of the data"
        )
    script, kept = exported_script(experiment, line, data, library, rows), io.BytesIO()
    np.savez_compressed(kept, **rows)  # pyright: ignore[reportArgumentType]
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(file_name(line, library), script)
        archive.writestr(DATA_FILE, kept.getvalue(), zipfile.ZIP_STORED)  # compressed already
    return made.getvalue()
