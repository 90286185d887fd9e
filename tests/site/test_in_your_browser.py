"""The page that trains in a browser, tested without one: its files, their code, and where Python comes from."""

import hashlib
import io
import json
import re
import subprocess
import sys
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from lib.formatting import percent
from lib.model.data.mnist import batch_starts
from lib.site import in_your_browser
from lib.site.in_your_browser import N_TRAIN, N_VALIDATION, SECTIONS, USUAL, NoRuntime, driver, runtime_files
from tests import made

EPOCHS = 3


@pytest.fixture(scope="module")
def data():
    content, source = in_your_browser.images_kept()
    return driver.read_images(content, source)


def test_the_images_have_the_projects_shapes(data):
    assert data.x_train.shape == (N_TRAIN, 784)
    assert data.x_validation.shape == (N_VALIDATION, 784)
    assert (data.x_train.dtype, data.y_train.dtype) == (np.float32, np.int32)
    assert 0 <= data.x_train.min() < data.x_train.max() <= 1
    assert data.source


@pytest.mark.parametrize("experiment", USUAL)
def test_every_experiment_reports_its_steps_and_epochs(data, experiment):
    settings = USUAL[experiment] | {"epochs": EPOCHS}
    lines = driver.begin(experiment, settings, data)["lines"]
    told = list(driver.events(experiment, settings, data))
    json.dumps(told, allow_nan=False)
    for place, line in enumerate(lines):
        mine = [event for event in told if event["line"] == place]
        assert [event["epoch"] for event in mine if "epoch" in event] == list(range(1, EPOCHS + 1))
        firsts = [(event["first_step"], len(event["losses"])) for event in mine if "losses" in event]
        assert [first for first, _ in firsts] == [sum(n for _, n in firsts[:k]) for k in range(len(firsts))]
        assert sum(n for _, n in firsts) == line["steps"]
    epochs = [[event for event in told if event["line"] == place and "epoch" in event] for place in range(len(lines))]
    best = max(one[-1]["accuracy"] for one in epochs)
    assert best > 0.7
    ended = [(line["label"], one) for line, one in zip(lines, epochs, strict=True)]
    sentence = driver.concluded(experiment, settings, data, ended)
    assert percent(best) in sentence or experiment == "backend"


def test_rates_and_networks_match_the_notebook(data):
    settings = USUAL["learning-rate"] | {"low": 0.001, "high": 1.0, "count": 4}
    asked = made.learning_rate((0.001, 0.01, 0.1, 1.0), epochs=3, batch_size=32, hidden="32", backend="numpy")
    found = driver.trainings("learning-rate", settings, data)
    assert [label for label, _ in found] == list(asked.labels)
    settings = USUAL["depth"] | {"networks": ["128"], "own": "none; 128; 64, 32"}
    asked = made.depth(("128",), own="none; 128; 64, 32", epochs=3, rate=0.1, batch_size=32, backend="numpy")
    found = driver.trainings("depth", settings, data)
    assert [one.network for _, one in found] == [item.training.network for item in asked.items]


def test_a_divergence_names_its_step_and_has_no_loss_there(data):
    told = list(driver.events("backend", USUAL["backend"], replace(data, x_train=data.x_train * np.float32(1e30))))
    json.dumps(told, allow_nan=False)
    *_, last, end = told
    step = end["diverged_step"]
    assert step is not None
    assert last["losses"][step - last["first_step"]] is None


def test_the_backend_experiment_gives_all_backends_the_same_training(data):
    """It sends the program, the first parameters and the order of batches, which reproduce NumPy's curve."""
    job = driver.begin("backend", USUAL["backend"], data)["job"]
    json.dumps(job, allow_nan=False)
    ((_, training),) = driver.trainings("backend", USUAL["backend"], data)
    assert len(job["parameters"]) == training.network.n_parameters
    assert job["starts"][: job["steps"]] == batch_starts(N_TRAIN, training.batch_size, training.seed, 0).tolist()
    assert len(job["starts"]) >= job["steps"] * job["epochs"]
    assert N_VALIDATION % driver.SLICE == 0


def test_every_position_of_the_controls_can_be_trained(data):
    for section in SECTIONS:
        usual = USUAL[section.experiment]
        for control in section.controls:
            for value in control.values:
                chosen = [value] if isinstance(control.usual, tuple) else value
                if (control.name, value) not in {("low", 1.0), ("low", 2.0), ("low", 5.0), ("low", 10.0)} and not (
                    control.name == "high" and value <= 0.01
                ):
                    assert driver.trainings(section.experiment, usual | {control.name: chosen}, data)
            if isinstance(control.usual, tuple):
                assert set(control.usual) <= set(control.values)
            else:
                assert not control.values or control.usual in control.values


@pytest.mark.parametrize(
    ("experiment", "setting", "says"),
    [
        ("learning-rate", {"low": 1.0}, "got only 1; move the two ends"),
        ("learning-rate", {"low": 5.0}, "got 5 to 1; move the range"),
        ("learning-rate", {"hidden": "many"}, "got “many”"),
        ("batch-size", {"sizes": []}, "got none; choose some"),
        ("depth", {"own": "0"}, "expected 1 to 4,096, got 0"),
        ("depth", {"networks": [], "own": ""}, "got none; choose one"),
        ("depth", {"own": ";".join(map(str, range(1, 20)))}, "expected at most 16, got 21; remove some"),
    ],
)
def test_impossible_trainings_are_refused(data, experiment, setting, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        driver.begin(experiment, USUAL[experiment] | setting, data)


def test_the_archive_contains_all_imports_of_the_driver(tmp_path):
    """In a Python that has NumPy, and of this project only the archive."""
    zipfile.ZipFile(io.BytesIO(in_your_browser.code())).extractall(tmp_path / "lib")
    program = "import sys; sys.path.insert(0, 'lib'); import driver; print(*sys.modules)"
    words = [sys.executable, "-P", "-c", program]
    answer = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "lib.model.backends.with_numpy" in answer.stdout.split(), answer.stderr


@pytest.fixture
def one_file(monkeypatch, tmp_path):
    """A runtime of one small file, without a network: the test sets what the package contains."""
    monkeypatch.setenv("MNIST_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(in_your_browser, "DIGESTS", {"python": hashlib.sha256(b"sound").hexdigest()})

    def contains(content: bytes | None):
        def package():
            if content is None:
                raise OSError("no route")
            return {"python": content}

        monkeypatch.setattr(in_your_browser, "from_package", package)

    return contains


def test_the_runtime_is_fetched_once(one_file):
    one_file(b"sound")
    assert runtime_files()["python"].read_bytes() == b"sound"
    one_file(None)
    assert runtime_files()["python"].read_bytes() == b"sound"


@pytest.mark.parametrize(("content", "why"), [(None, "no route"), (b"something else", "python is not Pyodide's")])
def test_a_runtime_that_is_unreachable_or_has_another_digest_is_refused(one_file, content, why):
    one_file(content)
    for _ in range(2):
        with pytest.raises(NoRuntime, match=rf"could not be fetched from PyPI \({why}\); connect to the network once"):
            runtime_files()


def test_a_damaged_file_in_the_cache_is_fetched_again(one_file, tmp_path):
    one_file(b"sound")
    kept = runtime_files()["python"]
    kept.write_bytes(b"cut of")
    assert runtime_files()["python"].read_bytes() == b"sound"
    assert kept.is_relative_to(tmp_path)


def test_the_page_and_its_scripts_name_no_other_host():
    folder = in_your_browser._HERE
    for file in (*in_your_browser._SCRIPTS, folder / "worker.js", folder / "page.css"):
        assert "http" not in file.read_text()
