import json
import sqlite3
import time
from contextlib import closing

import numpy as np
import pytest

from lib.model.backends.base import Epoch, no_parameters
from lib.model.backends.registry import Runtime
from lib.model.spec import Network, Training
from lib.sweeps.storage import store as store_module
from lib.sweeps.storage.records import Curve, Key, Kind, Record
from lib.sweeps.storage.store import Store


def curve(n: int = 5) -> Curve:
    epochs = (Epoch(0, n, 0.5, 0.9, 0.1, 0.01, no_parameters), Epoch(1, n, 0.4, 0.91, 0.1, 0.01, no_parameters, 3))
    return Curve(0.25, epochs, np.linspace(2, 1, 2 * n, dtype=np.float32))


def lasting(n_epochs: int, train_s: float = 0.1) -> Curve:
    epochs = tuple(Epoch(e, 4, 0.5, 0.9, train_s, 0.01, no_parameters) for e in range(n_epochs))
    return Curve(0.25, epochs, np.arange(4 * n_epochs, dtype=np.float32))


def key(**changes) -> Key:
    return Key(Training(Network((7,)), **changes), Runtime("numpy"), "digest", "numpy 2")


def test_a_curve_reads_back_unchanged(tmp_path, store):
    assert store.get(key()) is None
    store.put(key(), curve())
    again = Store(tmp_path / "results.sqlite").get(key())
    assert again is not None
    np.testing.assert_array_equal(again.losses, curve().losses)
    assert again.epochs == curve().epochs
    assert again.first_call_s == 0.25
    assert again.measured_at
    assert again.machine
    assert store.trouble == ""


def test_several_curves_are_read_with_one_connection(store, monkeypatch):
    stored = [key(epochs=2, seed=seed) for seed in (1, 2)]
    for one in stored:
        store.put(one, lasting(2))
    keys = [*stored, key(epochs=2, seed=3), key(epochs=1, seed=1), key(epochs=3, seed=2)]
    opened, prepare = [], store_module._prepare
    monkeypatch.setattr(store_module, "_prepare", lambda *on: opened.append(on) or prepare(*on))
    found = store.get_all(keys)
    assert len(opened) == 1
    lengths = {one: len(there.epochs) for one, there in found.items()}
    assert lengths == {stored[0]: 2, stored[1]: 2, keys[3]: 1}
    assert [one in found for one in keys] == [store.get(one) is not None for one in keys]
    assert store.get_all([]) == {}


def weights(value: float) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(np.full(shape, value, np.float32), np.full(shape[1], value, np.float32)) for shape in ((784, 7), (7, 10))]


def kept_epochs(store: Store) -> list[int]:
    return sorted(len(json.loads(row["epochs"])) for row in store.rows("curves"))


def test_a_shorter_curve_is_stored_beside_a_longer_one(store):
    store.put(key(epochs=20), lasting(20), weights(20))
    store.put(key(epochs=3), lasting(3, 0.2), weights(3))
    whole, short = store.get(key(epochs=20)), store.get(key(epochs=3))
    assert whole is not None
    assert short is not None
    assert [epoch.train_s for epoch in whole.epochs] == [0.1] * 20
    assert [epoch.train_s for epoch in short.epochs] == [0.2] * 3, "the newest seconds"
    known = store.begun(key())
    assert known is not None
    assert (len(known[0].epochs), known[1][0][0][0, 0]) == (20, 20.0), "what a longer training continues from"
    store.put(key(epochs=3), lasting(3, 0.3))
    assert kept_epochs(store) == [3, 20], "a measurement replaces an older one of as many epochs"
    store.put(key(epochs=21), lasting(21, 0.4), weights(21))
    assert kept_epochs(store) == [21]
    assert [store.get(key(epochs=n)).epochs[0].train_s for n in (3, 20, 21)] == [0.4] * 3  # type: ignore[union-attr]
    assert len(store.begun(key())[0].epochs) == 21  # type: ignore[index]


def test_a_thinned_curve_does_not_replace_losses_of_each_step(store):
    store.put(key(epochs=4), lasting(4), weights(4))
    store.put(key(epochs=8), lasting(8).thinned(8))
    assert len(store.get(key(epochs=8)).epochs) == 8  # type: ignore[union-attr]
    begun = store.begun(key(epochs=9))
    assert begun is not None
    assert (len(begun[0].epochs), len(begun[0].losses)) == (4, 16), "it can be continued"
    store.put(key(epochs=8), lasting(8))
    assert kept_epochs(store) == [8]


def test_a_diverged_curve_does_not_replace_one_that_lasted(store):
    store.put(key(epochs=5), lasting(5))
    store.put(key(epochs=5), curve())  # diverged in its second epoch
    assert [len(store.get(key(epochs=n)).epochs) for n in (2, 5, 9)] == [2, 5, 2]  # type: ignore[union-attr]


def test_parameters_without_their_curve_are_replaced(tmp_path, store):
    store.put(key(epochs=20), lasting(20), weights(20))
    with closing(sqlite3.connect(tmp_path / "results.sqlite")) as database, database:
        database.execute("DELETE FROM curves")
    store.put(key(epochs=3), lasting(3), weights(3))
    assert len(store.begun(key())[0].epochs) == 3  # type: ignore[index]


def test_a_full_disk_is_reported_without_failing(store, monkeypatch):
    store.put(key(), curve())
    prepare = store_module._prepare

    def full(database, path):
        prepare(database, path)
        pages = database.execute("PRAGMA page_count").fetchone()[0]
        database.execute(f"PRAGMA max_page_count = {pages}")  # makes SQLite report “database or disk is full”

    monkeypatch.setattr(store_module, "_prepare", full)
    big = curve(200_000)
    assert store.put(key(seed=1), big).losses is big.losses
    assert "full" in store.trouble
    assert "free some disk space" in store.trouble
    assert store.get(key()) is not None, "what was kept is still there"


def kept(path, n: int) -> bytes:
    store = Store(path)
    for seed in range(n):
        store.put(key(seed=seed), curve(50))
        store.add(measured(seed))
    assert store.trouble == ""
    return path.read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
    return kept(tmp_path_factory.mktemp("whole") / "results.sqlite", 200)


def measured(number: int) -> Record:
    return Record(Kind.RACE, {"number": number}, (0.1,), 1, "SPREAD")


def all_of(store: Store, n: int = 200) -> tuple[int, int]:
    return sum(store.get(key(seed=seed)) is not None for seed in range(n)), len(store.records())


NOISE = np.random.default_rng(0).bytes(2**16)
VERSION_AT = 60  # offset of `user_version` in SQLite's file format
UNREADABLE = {
    "cut by 1 byte": lambda content: content[:-1],
    "no database": lambda content: b"this is no database" * 100,
    "cut in the middle": lambda content: content[: len(content) // 2],
    "64 KB of noise": lambda content: content[: len(content) // 2] + NOISE + content[len(content) // 2 + len(NOISE) :],
    "an older version": lambda content: content[:VERSION_AT] + (6).to_bytes(4) + content[VERSION_AT + 4 :],
}


def renamed(folder):
    return [file for file in folder.glob("*.old-*") if not file.name.endswith(("-wal", "-shm"))]


@pytest.mark.parametrize("fault", UNREADABLE)
def test_an_unreadable_file_is_renamed_and_a_new_one_begun(tmp_path, whole, fault):
    path = tmp_path / "results.sqlite"
    content = UNREADABLE[fault](whole)
    path.write_bytes(content)
    store = Store(path)
    all_of(store)  # reads as far as the fault
    store.put(key(seed=0), curve())
    assert all_of(store) == (1, 0), "nothing is read from the renamed file"
    (aside,) = renamed(tmp_path)
    assert store.trouble.startswith("The stored results cannot be read (")
    assert store.trouble.endswith(f"); their file was renamed to {aside}, and a new one was started.")
    assert ("they are from an older version, with schema 6" in store.trouble) == (fault == "an older version")
    assert aside.read_bytes() == content
    again = Store(path)
    assert all_of(again) == (1, 0)
    assert again.trouble == ""


@pytest.mark.slow
def test_concurrent_programs_replace_an_unreadable_file_once(program, tmp_path, whole):
    path = tmp_path / "results.sqlite"
    path.write_bytes(UNREADABLE["an older version"](whole))
    code = """
import sys
from pathlib import Path
from tests.sweeps.storage.test_store import all_of, curve, key
from lib.sweeps.storage.store import Store
store, number = Store(Path(sys.argv[1])), int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
all_of(store)
store.put(key(seed=number), curve())
told = "their file was renamed to" in store.trouble
print(store.get(key(seed=number)) is not None, "told" if told else store.trouble)
"""
    programs = [program(code, str(path), str(number)) for number in range(1000, 1004)]
    for one in programs:
        one.stdout.readline()
    for one in programs:
        print("go", file=one.stdin, flush=True)
    said = [one.communicate(timeout=120)[0].strip() for one in programs]
    store = Store(path)
    assert said.count("True told") == 1, said
    assert said.count("True") == 3, said
    assert all(store.get(key(seed=number)) is not None for number in range(1000, 1004))
    assert len(renamed(tmp_path)) == 1


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("curves", "epochs", "[{"),
        ("curves", "losses", b"abc"),
        ("curves", "measured_at", b"\xff\xfe"),
        ("measurements", "subject", "[1]"),
        ("measurements", "block_s", '["fast"]'),
    ],
)
def test_a_damaged_row_is_skipped_and_replaced_by_the_next_write(tmp_path, table, column, value):
    path = tmp_path / "results.sqlite"
    kept(path, 3)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = 2", (value,))
    store = Store(path)
    assert len(store.rows(table)) == 2, "nor is it exported"
    assert sorted(all_of(store, 3)) == [2, 3]
    store.put(key(seed=1), curve())
    assert store.get(key(seed=1)) is not None
    assert store.trouble == ""
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT COUNT(*) FROM curves").fetchone() == (3,), "it replaces the damaged one"


def test_a_newer_file_is_left_alone(tmp_path):
    path = tmp_path / "results.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    store = Store(path)
    assert store.get(key()) is None
    assert "was written by a newer version (schema 99, this one knows" in store.trouble
    assert store.trouble.endswith("; update this program, or set MNIST_CACHE_DIR to another folder.")
    assert "disk" not in store.trouble
    assert not list(tmp_path.glob("*.old-*"))


def test_a_locked_file_is_reported_and_used_again_once_free(tmp_path, monkeypatch):
    path = tmp_path / "results.sqlite"
    kept(path, 2)
    monkeypatch.setattr(store_module, "BUSY_S", 0.2)
    store = Store(path)
    other = sqlite3.connect(path)
    other.execute("BEGIN IMMEDIATE")
    store.put(key(seed=7), curve())
    assert "another program has kept it locked" in store.trouble
    assert "disk" not in store.trouble
    assert store.get(key(seed=1)) is not None
    other.close()
    store.put(key(seed=7), curve())
    assert store.get(key(seed=7)) is not None
    assert store.trouble == ""


def test_the_oldest_curves_are_removed_first_and_thinned_ones_last(store, monkeypatch):
    monkeypatch.setattr(store_module, "MAX_BYTES", 3 * curve(100).losses.nbytes)

    def kept_after(new) -> set[int]:
        for seed in new:
            time.sleep(0.002)
            store.put(key(seed=seed), curve(100))
        return {seed for seed in range(9) if store.get(key(seed=seed)) is not None}

    assert kept_after(range(5)) == {2, 3, 4}
    store.put(key(seed=0), curve(100).thinned(10))
    assert kept_after(range(5, 9)) == {0, 7, 8}


def test_an_inaccessible_folder_is_reported(store, monkeypatch):
    def refuse(path, **_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("pathlib.Path.stat", refuse)
    assert store.records() == []
    assert "Permission denied" in store.trouble
    assert "set MNIST_CACHE_DIR" in store.trouble


def test_records_are_filtered_and_writes_change_the_stamp(tmp_path):
    store, other = (Store(tmp_path / "results.sqlite") for _ in range(2))
    before = other.stamp()
    for kind, subject in ((Kind.RACE, {"browser": "Safari 26"}), (Kind.RACE, {"name": "a browser"}), (Kind.SWEEP, {})):
        store.add(Record(kind, subject, (0.1,), 1, "CAP"))
        assert other.stamp() != before
        before = other.stamp()
    assert other.stamp() == before
    found = [len(other.records(*asked)) for asked in ((), (Kind.RACE,), (Kind.RACE, "browser"), (None, "_"))]
    assert found == [3, 2, 1, 0]
    assert Store(tmp_path / "nowhere" / "results.sqlite").stamp() == ()


@pytest.mark.parametrize(
    ("table", "order"), [("curves", "every > 1 DESC, used_at DESC"), ("parameters", "used_at DESC")]
)
def test_making_room_uses_a_covering_index(tmp_path, store, table, order):
    store.put(key(), curve())
    with closing(sqlite3.connect(tmp_path / "results.sqlite")) as database:
        plan = database.execute(f"EXPLAIN QUERY PLAN {store_module.beyond_room(table, order)}", (1,)).fetchall()
    (scan,) = (said for *_, said in plan if table in said)
    assert f"USING COVERING INDEX room_of_{table}" in scan
