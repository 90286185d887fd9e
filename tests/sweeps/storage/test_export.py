"""Measurements survive their writers; exports are portable, stable, and refused by name where they are not ours."""

import errno
import json
from pathlib import Path

import numpy as np
import pytest

from lib.model.backends.base import Epoch, no_parameters
from lib.model.backends.registry import Runtime
from lib.model.spec import Training
from lib.sweeps.storage.records import ADDED, Curve, Key, Kind, Record
from lib.sweeps.storage.store import NoExport, Store, export_to, import_from
from lib.timing.measurement import Ended, Measurement

RACE = {"backend": "numpy", "device": "cpu", "batch_size": 32, "hidden": "128"}
MEASURED = Measurement((0.01, 0.012, 0.011), 100, Ended.SPREAD, warnings=("too few",))


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "results.sqlite")


def filled(store):
    store.add(Record.of(Kind.RACE, RACE, MEASURED, "numpy 2"))
    store.add(Record.of(Kind.ANATOMY, {"name": "product", "work": 1.0}, MEASURED))
    epoch = Epoch(0, 3, 0.5, 0.9, 0.1, 0.01, no_parameters)
    store.put(
        Key(Training(epochs=1), Runtime(), "data", "versions"), Curve(0.1, (epoch,), np.arange(3, dtype=np.float32))
    )
    return store


def test_an_export_that_breaks_off_leaves_the_one_before(store, tmp_path, monkeypatch):
    def full(path, text):
        path.write_bytes(text[: len(text) // 2].encode())
        raise OSError(errno.ENOSPC, "No space left on device")

    file = tmp_path / "a.json"
    export_to(file, filled(store))
    before = file.read_text()
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        export_to(file, filled(store))
    assert file.read_text() == before
    assert not list(tmp_path.glob("*.writing"))


def test_export_and_import_give_the_same_rows_once(store, tmp_path):
    first, second, other = tmp_path / "a.json", tmp_path / "b.json", Store(tmp_path / "other.sqlite")
    assert export_to(first, filled(store)) == 3
    assert import_from(first, other) == (3, 3)
    assert import_from(first, other) == (3, 0)
    export_to(second, other)
    assert first.read_text() == second.read_text(), "stable order, nothing lost"
    curve = other.get(Key(Training(epochs=1), Runtime(), "data", "versions"))
    assert curve is not None
    np.testing.assert_array_equal(curve.losses, [0, 1, 2])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be|can be read"),
        ('{"format": "less-overhead results", "vers', "cut off.*export it again"),
        ("[1, 2]", "another kind of file"),
        ('{"format": "something else"}', "another kind of file"),
        ('{"format": "less-overhead results", "version": 99}', "newer version.*update"),
        ('{"format": "less-overhead results", "version": 2, "measurements": [{"id": "x"}]}', "expected the columns"),
        ('{"format": "less-overhead results", "version": 2, "measurements": [7]}', "got int"),
    ],
)
def test_what_is_no_export_is_refused_and_changes_nothing(store, tmp_path, content, words):
    filled(store)
    path = tmp_path / "file.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(NoExport, match=words):
        import_from(path, store)
    assert len(store.records()) == 2


def test_a_damaged_row_is_refused_with_all_others(store, tmp_path):
    path = tmp_path / "a.json"
    export_to(path, filled(store))
    content = json.loads(path.read_text())
    content["curves"][0]["losses"] = "%%%"
    path.write_text(json.dumps(content))
    empty = Store(tmp_path / "empty.sqlite")
    with pytest.raises(NoExport, match=r"in curves, .* is damaged \(.*base64"):
        import_from(path, empty)
    assert empty.records() == []


def test_an_export_of_an_earlier_version_is_read(store, tmp_path):
    path = tmp_path / "a.json"
    export_to(path, filled(store))
    content = json.loads(path.read_text())
    for table, added in ADDED.items():
        for row in content[table]:
            for column in added:
                del row[column]
    path.write_text(json.dumps(content | {"version": 2}))
    empty = Store(tmp_path / "empty.sqlite")
    assert import_from(path, empty) == (3, 3)
    assert empty.rows("curves") == store.rows("curves")
