"""Measurements survive their writers; exports are portable, stable, and refused by name where they are not ours."""

import errno
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from lib.model.backends.base import Epoch, no_parameters
from lib.model.backends.registry import Runtime
from lib.model.spec import Training
from lib.sweeps.storage.export import NoExport, export_to, import_from
from lib.sweeps.storage.records import ADDED, Curve, Key, Kind, Record
from lib.sweeps.storage.store import Store
from lib.timing.measurement import Ended, Measurement
from tests.conftest import ROOT

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


# Imports once and becomes a writer, a process of its own, for every name that it reads; what that one has committed it
# says in a file of its name, which is whole whenever it is killed: there is no buffer between a line and the file.
WRITERS = """
import os, signal, sys
from pathlib import Path
from lib.sweeps.storage.records import Record
from lib.sweeps.storage.store import Store
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
path = Path(sys.argv[1])
for line in sys.stdin:
    name = line.strip()
    parent = os.getpid()
    if pid := os.fork():
        print(pid, flush=True)
        continue
    said = os.open(path.parent / name, os.O_WRONLY | os.O_CREAT)
    store = Store(path)
    for number in range(100_000):
        store.add(Record("kill", {"writer": name, "number": number}, (0.1,), 1, "SPREAD"))
        os.write(said, f"{number}\\n".encode())
        if os.getppid() != parent:
            os._exit(0)
"""


@pytest.fixture
def begin_writer(tmp_path):
    """Begin a writer by its name; its process. All end with the test."""
    command = [sys.executable, "-c", WRITERS, str(tmp_path / "results.sqlite")]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        names, pids = parent.stdin, parent.stdout
        assert names is not None
        assert pids is not None

        def begin(name: str) -> psutil.Process:
            print(name, file=names, flush=True)
            return psutil.Process(int(pids.readline()))

        yield begin
        names.close()


@pytest.mark.slow
@pytest.mark.parametrize("pairs", [4, pytest.param(25, marks=pytest.mark.release)])
def test_killed_writers_lose_no_committed_row(tmp_path, begin_writer, pairs):
    """Two write at once, each is killed at some moment; what a writer said it had committed is there."""
    path = tmp_path / "results.sqlite"
    rng = np.random.default_rng(0)
    committed: dict[str, int] = {}
    for pair in range(pairs):
        both = {f"{pair}{side}": begin_writer(f"{pair}{side}") for side in "ab"}
        while not all((tmp_path / name).exists() and (tmp_path / name).read_text() for name in both):
            time.sleep(0.001)
        time.sleep(float(rng.uniform(0, 0.05)))
        for process in both.values():
            process.kill()
        _, alive = psutil.wait_procs(list(both.values()), timeout=10)
        assert not alive
        for name in both:
            said = (tmp_path / name).read_text().split("\n")
            committed[name] = max([0, *(int(line) for line in said[:-1] if line)])  # the last line may be half
    store = Store(path)
    found: dict[str, set[int]] = {}
    for record in store.records("kill"):
        found.setdefault(str(record.subject["writer"]), set()).add(int(record.subject["number"]))
    assert len(committed) == 2 * pairs
    for name, last in committed.items():
        assert set(range(last + 1)) <= found[name]
        assert len(found[name]) <= last + 3, "at most the row being written is more than was said"
    assert store.trouble == ""
