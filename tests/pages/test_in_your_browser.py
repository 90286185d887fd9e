"""What the page that trains in a browser is made of, without one: its files, the code in them, and where Python comes
from."""

import hashlib
import io
import json
import subprocess
import sys
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from lib.pages import in_your_browser
from lib.pages.in_your_browser import N_TRAIN, N_VALIDATION, OFFERED, USUAL, code, driver, images_kept, runtime
from lib.pages.in_your_browser.runtime import DIGESTS, NoRuntime, members, runtime_files


@pytest.fixture(scope="module")
def data():
    content, source = images_kept()
    return driver.read_images(content, source)


def test_the_images_are_the_project_s_own(data):
    assert data.x_train.shape == (N_TRAIN, 784)
    assert data.x_validation.shape == (N_VALIDATION, 784)
    assert (data.x_train.dtype, data.y_train.dtype) == (np.float32, np.int32)
    assert 0 <= data.x_train.min() < data.x_train.max() <= 1
    assert data.source


def test_a_training_is_told_step_by_step_and_epoch_by_epoch(data):
    told = list(driver.events(USUAL | {"epochs": 12}, data))
    json.dumps(told, allow_nan=False)
    epochs = [event for event in told if "epoch" in event]
    assert [event["epoch"] for event in epochs] == list(range(1, 13))
    assert epochs[-1]["accuracy"] > 0.8
    assert epochs[-1]["train_s"] > epochs[0]["train_s"] > 0
    losses = [event for event in told if "losses" in event]
    assert sum(len(event["losses"]) for event in losses) == losses[0]["steps"] == 12 * (N_TRAIN // 32)
    assert [event["first_step"] for event in losses] == sorted(event["first_step"] for event in losses)


def test_what_diverges_says_in_which_step_and_has_no_number(data):
    told = list(driver.events(USUAL, replace(data, x_train=data.x_train * np.float32(1e30))))
    json.dumps(told, allow_nan=False)
    *_, last, end = told
    step = end["diverged_step"]
    assert step is not None
    assert last["losses"][step - last["first_step"]] is None


def test_every_position_of_the_sliders_can_be_trained(data):
    for name, values in OFFERED.items():
        assert USUAL[name] in values
        for value in values:
            driver.described(USUAL | {name: value}, data)


def test_the_archive_has_all_that_the_driver_imports(tmp_path):
    """In a Python that has NumPy, and of this project only the archive."""
    (tmp_path / "lib.zip").write_bytes(code())
    words = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'lib.zip')!r}); import driver; print(driver.train.__module__)"
    )
    answer = subprocess.run(
        [sys.executable, "-P", "-c", words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert answer.stdout == "lib.backends.with_numpy\n", answer.stderr


def archive(**files):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as opened:
        for name, text in files.items():
            opened.writestr(f"some/where/{name}", text)
    return content.getvalue()


@pytest.fixture
def one_file(monkeypatch, tmp_path):
    """A runtime of one small file, and no network: each source is set by the test."""
    monkeypatch.setenv("MNIST_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(runtime, "DIGESTS", {"python": hashlib.sha256(b"sound").hexdigest()})

    def sources(host: bytes | OSError, package: bytes | OSError):
        def gives(content):
            def give(_names):
                if isinstance(content, OSError):
                    raise content
                return {"python": content}

            return give

        monkeypatch.setattr(runtime, "_from_host", gives(host))
        monkeypatch.setattr(runtime, "_from_package", gives(package))

    return sources


def test_where_pyodide_s_host_is_out_of_reach_the_package_stands_in_and_is_kept(one_file):
    one_file(OSError("no route"), b"sound")
    assert runtime_files()["python"].read_bytes() == b"sound"
    one_file(OSError("no route"), OSError("no route"))
    assert runtime_files()["python"].read_bytes() == b"sound"


def test_other_files_of_the_same_name_are_refused(one_file, tmp_path):
    one_file(b"something else", OSError("no route"))
    with pytest.raises(NoRuntime, match=r"python could not be fetched .*another digest than Pyodide's; PyPI: no route"):
        runtime_files()
    assert not list(tmp_path.rglob("python*"))


def test_a_damaged_file_in_the_cache_is_fetched_again(one_file, tmp_path):
    one_file(b"sound", OSError("no route"))
    kept = runtime_files()["python"]
    kept.write_bytes(b"cut of")
    assert runtime_files()["python"].read_bytes() == b"sound"
    assert kept.is_relative_to(tmp_path)


def test_only_what_is_asked_for_is_taken_from_an_archive():
    assert members(archive(python="sound", other="x"), ["python", "missing"]) == {"python": b"sound"}


def test_the_page_and_its_scripts_name_no_other_host():
    folder = in_your_browser._HERE
    for file in (folder / "page.js", folder / "worker.js", folder / "page.css"):
        assert "http" not in file.read_text()
    assert len(DIGESTS) == 6
