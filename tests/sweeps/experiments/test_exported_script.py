# pyright: reportArgumentType=false
"""Exported scripts, which run without this project and check their curve, and tables of results."""

import io
import os
import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib import ROOT
from lib.formatting import seconds
from lib.model.backends.base import Epoch, Steps, initial_parameters
from lib.model.backends.registry import Runtime, load_train, unavailable
from lib.model.data import prepared
from lib.model.data.mnist import Data, Facts, batch_starts, load
from lib.model.data.prepared import DataSummary
from lib.model.spec import Network, Training
from lib.sweeps.experiments import exported_script as module
from lib.sweeps.experiments.exported_script import LIBRARIES, exported_bundle, exported_script, installed, takeaway
from lib.sweeps.experiments.results import Line, Results
from lib.sweeps.experiments.script_parts import common
from lib.sweeps.storage.records import Curve
from lib.sweeps.sweep import Finished
from lib.sweeps.workers.messages import Item

pytestmark = pytest.mark.timeout(900)
EVERY = [
    pytest.param(
        key,
        id=key,
        marks=[
            pytest.mark.skipif(key not in installed(), reason=f"{label} is not installed"),
            *([pytest.mark.images] if key == "numpy" else []),
        ],
    )
    for key, (label, _) in LIBRARIES.items()
]
# Trainings that are stable on MNIST and on the digits, and one that diverges. All are short.
CASES = {
    "no hidden layer": Training(Network(()), 0.1, 256, 3),
    "two hidden layers": Training(Network((64, 32)), 0.03, 128, 2),
    "batch size 32": Training(Network((16,)), 0.05, 32, 2),
    "diverging": Training(Network((256, 128, 64)), 10.0, 4096, 3),
}


@cache
def images() -> Data:
    return load()


def line_of(training: Training, data: Data) -> Line:
    events = list(load_train("numpy")(training, data))
    losses = np.concatenate([event.losses for event in events if isinstance(event, Steps)])
    line = Line(Item(training, Runtime("numpy")))
    epochs = tuple(event for event in events if isinstance(event, Epoch))
    line.finish(Curve(0.0, epochs, losses, "2026-11-23T05:00:00"), cached=False)
    return line


@cache
def trained(training: Training) -> Line:
    return line_of(training, images())


def run(text: str, folder: Path) -> subprocess.CompletedProcess:
    file = folder / "exported.py"
    file.write_text(text)
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "MNIST_NPZ", "LANG")}
    environment = kept | {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    # On a busy machine, threads that wait for each other turn seconds into minutes.
    environment |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [sys.executable, "-I", str(file)]  # `-I` ignores PYTHONPATH and the caller's folder
    return subprocess.run(
        command, check=False, cwd=folder, env=environment, capture_output=True, text=True, timeout=200
    )


def exported(line: Line, library: str = "numpy") -> str:
    if images().source != "MNIST":
        pytest.skip("needs real MNIST: set MNIST_NPZ")
    return exported_script("learning rate", line, images().facts, library)


def with_each_library(cases, usual):
    return [
        pytest.param(
            case,
            *library.values,
            id=f"{case}-{library.id}",
            marks=[*library.marks, *([] if library.id == "numpy" or case == usual else [pytest.mark.release])],
        )
        for library in EVERY
        for case in cases
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("case", "library"), with_each_library(CASES, "two hidden layers"))
def test_a_script_repeats_the_curve_without_this_project(case, library, tmp_path):
    line = trained(CASES[case])
    done = run(exported(line, library), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "same curve within" in done.stdout
    assert "Twice more" not in done.stdout, "the stated tolerance is enough"
    if case == "diverging":
        assert line.diverged_step is not None
        assert f"not finite in step {line.diverged_step}\n" in done.stdout
    else:
        assert len(re.findall(r"^ +\d+ .*%$", done.stdout, re.MULTILINE)) == CASES[case].epochs


@pytest.mark.slow
def test_a_changed_expectation_is_detected(tmp_path):
    line = trained(CASES["no hidden layer"])
    text, loss = exported(line), line.epochs[-1].validation_loss
    assert f"({loss:.6f}," in text
    done = run(text.replace(f"({loss:.6f},", f"({loss * (1 + 3 * common.TOLERANCE[0]):.6f},"), tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "different curve" in done.stdout
    assert "Twice more" in done.stdout, "rounding was asked first, and does not explain it"


def steady(loss, accuracy=0.92):
    return [(0.5, 0.9), (loss, accuracy)], None


STEADY = steady(0.4)


@pytest.mark.parametrize(
    ("expected", "curves", "status", "trainings"),
    [
        pytest.param(STEADY, [steady(0.403, 0.921)], 0, 1, id="within the tolerance"),
        pytest.param(STEADY, [steady(0.42)] * 3, 1, 3, id="rounding does not explain it"),
        pytest.param(STEADY, [steady(loss) for loss in (0.42, 0.425, 0.41)], 0, 3, id="rounding explains it"),
        pytest.param(STEADY, [([(0.5, 0.9)], 9)] * 3, 1, 3, id="only one diverged"),
        pytest.param(([], 8), [([], 8)], 0, 1, id="diverged in the same step"),
        pytest.param(([], 8), [([], 9)] * 3, 1, 3, id="diverged in another step"),
        pytest.param(([], 800), [([], step) for step in (790, 795, 788)], 0, 3, id="rounding moves the step"),
        pytest.param(STEADY, [steady(np.nan, 0.1)] * 3, 1, 3, id="no number"),
    ],
)
def test_a_script_retrains_only_if_rounding_may_explain_a_gap(monkeypatch, expected, curves, status, trainings):
    trained_from = []
    monkeypatch.setattr(common, "EXPECTED", expected[0])
    monkeypatch.setattr(common, "DIVERGED_AT", expected[1])

    def curve_from(nudge: int):
        trained_from.append(nudge)
        return curves[nudge]

    assert (common.compare(curve_from), len(trained_from)) == (status, trainings)


@given(st.integers(1, 300), st.integers(1, 64), st.integers(0, 5), st.integers(0, 9))
def test_a_scripts_batches_match_the_projects(n_images, size, seed, epoch):
    size = min(size, n_images)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(common, "BATCH_SIZE", size)
        patch.setattr(common, "SEED", seed)
        assert common.batch_starts(n_images, epoch) == batch_starts(n_images, size, seed, epoch).tolist()


@given(st.lists(st.integers(1, 20), max_size=3), st.integers(0, 5))
def test_a_scripts_start_matches_and_a_nudge_is_one_rounding_error(hidden, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(common, "HIDDEN", tuple(hidden))
        patch.setattr(common, "SEED", seed)
        start, nudged = common.initial_parameters(), common.initial_parameters(1)
    for (ours, _), (theirs, biases), (other, _) in zip(
        initial_parameters(Network(tuple(hidden)), seed), start, nudged, strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
        assert theirs.dtype == biases.dtype == other.dtype == np.float32
        np.testing.assert_array_max_ulp(theirs, other, 1)
        assert (theirs != other).all()


@pytest.mark.slow
def test_other_data_end_a_script_with_a_sentence(tmp_path):
    text = re.sub(r'"x_train": "[0-9a-f]{8}', '"x_train": "00000000', exported(trained(CASES["no hidden layer"])))
    done = run(text, tmp_path)
    assert done.returncode == 2
    assert "not the exported training's data" in done.stdout


def own_data_line(dtype) -> tuple[Line, Facts]:
    rng = np.random.default_rng(5)
    y = np.arange(300, dtype=np.int32) % 3
    x = np.clip(rng.normal(y[:, None] / 3 + 0.2, 0.1, (300, 3)), 0, 1)
    about = DataSummary("“three” flowers", 3, ("a", "b", "c"), 200, 60, 40, 0.34, "in order")
    made = prepared.save(about, x.astype(np.float32) if dtype == "float32" else (255 * x).astype(np.uint8), y)
    training = Training(made.network((8,)), 0.2, 16, 6, data=made.data_set)
    return line_of(training, prepared.load(made.digest)), made.facts


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "library"), with_each_library(["float32", "uint8"], ""))
def test_own_data_are_bundled_with_the_script(dtype, library, tmp_path):
    line, facts = own_data_line(dtype)
    with zipfile.ZipFile(io.BytesIO(exported_bundle("depth", line, facts, library))) as bundle:
        assert bundle.namelist() == [f"own_data_8_rate_0.2_batch_16_{library}.py", "data.npz"]
        text = bundle.read(bundle.namelist()[0]).decode()
        bundle.extract("data.npz", tmp_path)
    done = run(text, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "same curve within" in done.stdout
    with np.load(tmp_path / "data.npz") as kept:
        x, y = kept["x_train"], kept["y_train"]
    assert len(x) == len(y) == 260, "the test rows stay here"
    np.savez(tmp_path / "data.npz", x_train=x[::-1], y_train=y)
    done = run(text, tmp_path)
    assert done.returncode == 2, "other rows are found out"


def test_own_data_too_large_to_bundle_are_refused(monkeypatch):
    line, facts = own_data_line("uint8")
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    with pytest.raises(ValueError, match=r"expected at most 0 MiB .* use a part of the data"):
        exported_bundle("depth", line, facts, "numpy")


MNIST_FACTS = Facts("MNIST", "741c9888")


@pytest.mark.parametrize("config", [["--isolated"], ["--config", str(ROOT / "pyproject.toml")]], ids=["plain", "ours"])
@pytest.mark.parametrize("library", ["numpy", "jax", "keras", "torch"])
def test_exported_scripts_pass_ruff(library, config, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_version", lambda name: (name, "1.2.3"))
    epochs = tuple(Epoch(n, 93, 0.5 / (n + 1), 0.9, 0.1, 0.1, list) for n in range(20))
    for hidden in ((), (128,), (4096,) * 8):
        line = Line(Item(Training(Network(hidden), 1e-4, 512, 20), Runtime("keras-tensorflow")))
        line.finish(Curve(0.0, epochs, np.zeros(0, np.float32)), cached=True)
        for rows in (None, {"x_train": np.zeros(1), "y_train": np.zeros(1)}):
            name = f"{rows is None}_{module.file_name(line, library)[-70:]}"
            (tmp_path / name).write_text(exported_script("depth", line, MNIST_FACTS, library, rows))
    for command in (["check"], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *command, *config, "--no-cache", str(tmp_path)]
        done = subprocess.run(ruff, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(tmp_path.glob("*.py"))) == 6


def test_a_keras_script_uses_the_backend_of_its_training():
    line = trained(CASES["no hidden layer"])
    by_tensorflow = Line(replace(line.item, runtime=Runtime("keras-tensorflow")))
    by_tensorflow.finish(line.curve, cached=True)
    if unavailable(by_tensorflow.item.runtime) is None:
        text = exported(by_tensorflow, "keras")
        assert 'os.environ["KERAS_BACKEND"] = "tensorflow"' in text
        assert re.search(r'#     "tensorflow(-cpu)?==', text)


def test_trainings_that_cannot_be_exported_are_refused():
    line = trained(CASES["no hidden layer"])
    with pytest.raises(ValueError, match=r"expected a training on MNIST or your own data, got scikit-learn digits"):
        exported_script("depth", line, Facts("scikit-learn digits", "1"), "numpy")
    card = Line(replace(line.item, runtime=Runtime("torch", "gpu", "tf32")))
    card.finish(line.curve, cached=True)
    with pytest.raises(ValueError, match="expected a training in float32, got tf32"):
        exported(card)


def test_a_missing_library_is_not_offered(monkeypatch):
    monkeypatch.setattr(module, "_version", lambda name: (name, "" if name == "torch" else "1"))
    assert installed() == {"numpy": "NumPy", "jax": "JAX", "keras": "Keras"}


ITEMS = [Item(Training(Network((8,)), rate, 4096, 2), Runtime("numpy")) for rate in (0.1, 0.5, 10.0)]


def curve(accuracy: float, diverged: int | None = None) -> Curve:
    epochs = tuple(Epoch(n, 11, 0.4, accuracy, 0.2, 0.1, list, diverged if n else None) for n in range(2))
    return Curve(0.0, epochs, np.full(22, 0.5, np.float32), "2026-11-23T05:00:00")


@pytest.fixture
def results() -> Results:
    found = Results(ITEMS, ["0.1", "0.5", "10"])
    for item, one in zip(ITEMS, (curve(0.8), curve(0.9), curve(0.95, 3)), strict=True):
        found.add(Finished(item, one, cached=False))
    return found


def test_the_best_line_is_first_and_a_diverged_one_last(results):
    assert takeaway("learning rate", results, MNIST_FACTS, "").best_first() == [1, 0, 2]


@pytest.mark.parametrize("epoch_s", [(0.3, 0.1, 0.2), (0.1, 0.3, 0.2)])
def test_one_training_by_several_runtimes_is_ordered_by_its_seconds(epoch_s):
    training = Training(Network((8,)), 0.1, 4096, 2)
    items = [Item(training, Runtime(key)) for key in ("numpy", "jax-epoch", "jax-step")]
    found = Results(items, [item.runtime.label for item in items])
    for item, train_s, accuracy in zip(items, epoch_s, (0.9, 0.9002, 0.9004), strict=True):
        epochs = tuple(replace(epoch, train_s=train_s) for epoch in curve(accuracy).epochs)
        found.add(Finished(item, replace(curve(accuracy), epochs=epochs), cached=False))
    one = takeaway("backend", found, MNIST_FACTS, "")
    assert [epoch_s[place] for place in one.best_first()] == sorted(epoch_s)
    assert one.described(0).startswith(f"NumPy: 90.0\u202f%, {seconds(epoch_s[0])} per epoch")


def test_every_row_has_its_training_machine_and_data(results):
    for name, make in takeaway("learning rate", results, MNIST_FACTS, "").rows.items():
        rows = make()
        assert len(rows), name
        about = {"backend", "learning_rate", "batch_size", "hidden_layers", "machine", "data", "data_digest"}
        assert about <= set(rows.columns), name
        assert all(rows["machine"].tolist()), name
        assert set(rows["data_digest"]) == {MNIST_FACTS.digest}, name


def test_a_search_has_a_row_for_each_setting():
    found = {item.training: curve(accuracy) for item, accuracy in zip(ITEMS, (0.8, 0.9, 0.7), strict=True)}
    taken = module.takeaway_of_search(found, MNIST_FACTS)
    assert taken.best_first() == [1, 0, 2]
    assert taken.labels[1] == "8, rate 0.5, batch size 4096"
    assert len(taken.rows["each setting"]()) == 3
    assert set(taken.rows["loss by step, averaged"]()["data"]) == {"MNIST"}
