import json
import os
from dataclasses import asdict, replace

import numpy as np
import pytest
from msgspec import convert

from lib.cache_folder import cache_dir
from lib.model.data import prepared
from lib.model.data.mnist import DataError
from lib.model.data.prepared import DataSummary
from lib.model.spec import Training

ABOUT = DataSummary("a table", 3, ("no", "yes"), 6, 2, 2, 0.5, "by a test")


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MNIST_CACHE_DIR", str(tmp_path))
    prepared.load.cache_clear()


def saved(name="a table", dtype=np.float32):
    rng = np.random.default_rng(0)
    x = rng.random((10, 3), np.float32) if dtype == np.float32 else rng.integers(0, 256, (10, 3), np.uint8)
    y = np.arange(10, dtype=np.int32) % 2
    return prepared.save(replace(ABOUT, name=name), x, y), x, y


def file_of(made):
    return cache_dir() / "own-data" / f"{made.digest}.npz"


@pytest.mark.parametrize("dtype", [np.float32, np.uint8], ids=["float32", "uint8"])
def test_saved_data_load_in_the_same_parts(dtype):
    made, x, y = saved(dtype=dtype)
    assert prepared.known(made.digest) == made
    data = prepared.load(made.digest)
    assert (data.source, data.digest) == ("a table", made.digest)
    expected = x if dtype == np.float32 else x * np.float32(1 / 255)
    for part, rows in (("train", slice(6)), ("validation", slice(6, 8)), ("test", slice(8, 10))):
        found_x, found_y = getattr(data, f"x_{part}"), getattr(data, f"y_{part}")
        np.testing.assert_array_equal(found_x, expected[rows], strict=True)
        np.testing.assert_array_equal(found_y, y[rows], strict=True)
    rows, labels, about = prepared.load_test(made.digest)
    np.testing.assert_array_equal(rows, data.x_test)
    np.testing.assert_array_equal(labels, data.y_test)
    assert about == made.about


def test_an_older_file_has_no_count_of_zeros():
    made, _, _ = saved()
    said = {name: value for name, value in asdict(made.about).items() if name != "zeros"}
    assert convert(json.loads(json.dumps(said)), DataSummary) == replace(made.about, zeros=None)


def test_the_name_changes_the_digest():
    assert saved("one")[0].digest != saved("other")[0].digest
    assert saved("one")[0].digest == saved("one")[0].digest


def test_a_training_takes_its_sizes_from_the_data():
    made, _, _ = saved()
    training = Training(made.network((4,)), batch_size=6, data=made.data_set)
    assert training.network.widths == (3, 4, 2)
    assert training.steps_per_epoch() == 1
    assert 0.5 < made.data_set.chance < 1
    with pytest.raises(ValueError, match=r"batch size: expected 1 to 6 \(the number of training rows\), got 7"):
        replace(training, batch_size=7)


@pytest.mark.parametrize("spoil", ["remove", "cut"])
def test_missing_or_damaged_data_are_reported(spoil):
    made, _, _ = saved()
    path = file_of(made)
    if spoil == "remove":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match="no longer in the cache folder; load them again"):
        prepared.load(made.digest)


@pytest.mark.parametrize("digest", ["", "../results", "f" * 31, "F" * 32, "f" * 33])
def test_a_digest_is_no_path(digest):
    with pytest.raises(DataError, match="load them again"):
        prepared.known(digest)


def test_the_least_recently_used_data_are_removed_first(monkeypatch):
    first, second = file_of(saved("first")[0]), file_of(saved("second")[0])
    for age, path in enumerate([first, second]):
        os.utime(path, (age, age))
    prepared.load(first.stem)
    monkeypatch.setattr(prepared, "MAX_BYTES", 2.5 * first.stat().st_size)
    third = file_of(saved("third")[0])
    assert {*first.parent.iterdir()} == {first, third}
    monkeypatch.setattr(prepared, "MAX_BYTES", 1)
    last = file_of(saved("last")[0])
    assert [*first.parent.iterdir()] == [last], "the newest stays, however large"
