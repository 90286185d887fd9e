"""Precomputing in a terminal: it stops in time, resumes, and says how much is stored."""

import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from itertools import pairwise

import pytest

from lib.cache_folder import cache_dir
from lib.cli import precompute as command
from lib.cli.precompute import EXPERIMENTS, POINTS, Position, groups, main, positions, train
from lib.model.backends.registry import DEFAULT, Runtime, versions
from lib.model.spec import BATCH_SIZES, Network, Training
from lib.sweeps.storage import store as store_module
from lib.sweeps.storage.records import Kind, Record
from lib.sweeps.storage.store import Store
from lib.sweeps.sweep import Finished
from lib.sweeps.workers import engine as engine_module
from lib.sweeps.workers.messages import Item, Note
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.measurement import Ended, Measurement
from lib.ui.controls import settings_of
from tests import made, stub_worker
from tests.conftest import ROOT
from tests.sweeps.storage.test_store import curve, key


@pytest.fixture(autouse=True)
def _own_folder_and_workers(tmp_path, monkeypatch):
    """Workers of this process train nothing."""
    monkeypatch.setattr(engine_module, "Process", stub_worker.start)
    monkeypatch.setenv("MNIST_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("MNIST_OFFLINE", "1")


FEW = {
    "rate.range": ([0.1, 1.0], (0.1, 1.0)),
    "rate.count": (2, (2, 3)),
    "rate.size": (4096, (4096,)),
    "rate.hidden": ("4", ()),
    "size.sizes": ((2048, 4096), (2048, 4096)),
    "size.rate": (0.1, (0.1,)),
    "size.hidden": ("4", ()),
    "depth.networks": (("4",), ("4", "4→4")),
    "depth.rate": (0.1, (0.1,)),
    "depth.size": (4096, (4096,)),
    "backend.rate": (0.1, ()),
} | {f"{panel}.epochs": (1, (1, 2)) for panel in EXPERIMENTS}


def only(monkeypatch, positions):
    every = settings_of(EXPERIMENTS)
    few = {name: replace(every[name], usual=usual, options=options) for name, (usual, options) in positions.items()}
    monkeypatch.setattr(command, "settings_of", lambda _: every | few)


@pytest.fixture
def few_positions(monkeypatch):
    monkeypatch.setattr(command, "_fastest_timed", lambda *_: Runtime())
    only(monkeypatch, FEW)


def trained(said):
    return int(re.findall(r": ([\d,]+) trainings", said)[0])


@pytest.mark.slow
def test_it_ends_when_time_is_up_shows_the_time_left_and_resumes(few_positions, capsys):
    assert main(["--minutes", "0.0001"]) == 3
    first = capsys.readouterr()
    assert first.err == ""
    assert "the time is up: " in first.out
    assert main(["--minutes", "30"]) == 0
    second = capsys.readouterr().out
    left = re.findall(r"at most (\d+):\d\d left", second)
    assert left
    assert all(20 <= int(minutes) < 30 for minutes in left)
    assert ", 5 of 5 stored" in second
    assert trained(first.out) + trained(second) == 5, "three rates, another batch size and another network, each once"
    assert main([]) == 0
    assert "complete: 0 trainings" in capsys.readouterr().out


@pytest.mark.release
def test_ctrl_c_keeps_what_is_trained(tmp_path):
    words = [sys.executable, "-m", "lib.cli.precompute", "--minutes", "5"]
    program = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert program.stdout is not None
    try:
        assert any("trainings; now" in line for line in program.stdout)
        program.send_signal(signal.SIGINT)
        said, errors = program.communicate(timeout=120)
    finally:
        program.kill()
    assert (program.returncode, errors) == (3, "")
    assert "stopped: " in said
    assert trained(said) > 0


@pytest.mark.slow
def test_a_full_disk_ends_it_and_keeps_what_was_stored(monkeypatch, capsys):
    only(monkeypatch, FEW | {"rate.count": (2, tuple(range(2, 13)))})
    prepare, limits = store_module._prepare, list[int]()
    Store().put(key(), curve())

    def with_little_room(database, path):
        prepare(database, path)
        if not limits:
            limits.append(database.execute("PRAGMA page_count").fetchone()[0] + 4)
        database.execute(f"PRAGMA max_page_count = {limits[0]}")  # causes SQLite's own “database or disk is full”

    monkeypatch.setattr(store_module, "_prepare", with_little_room)
    assert main(["--minutes", "5"]) == 1
    assert "the disk is full; free some disk space" in capsys.readouterr().err
    assert Store().get(key()) is not None
    with closing(sqlite3.connect(cache_dir() / "results.sqlite")) as database:
        assert database.execute("SELECT COUNT(*) FROM curves").fetchone()[0] > 1, "what was trained before it was full"
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "100000"])
def test_minutes_out_of_range_are_refused(minutes, capsys):
    assert main(["--minutes", minutes]) == 1
    assert "expected more than 0, up to 1440" in capsys.readouterr().err


def test_the_default_and_the_fastest_are_timed_once_before_training(monkeypatch, tmp_path, engine):
    raced, store = [], Store(tmp_path / "results.sqlite")

    def fake_race(cells, *_):
        raced.extend(cells)
        for cell, block_s in zip(cells, (0.2, 0.1), strict=False):
            measured = Measurement((block_s,) * 2, 1, Ended.CAP)
            store.add(Record.of(Kind.RACE, cell.subject, measured, versions(cell.runtime)))
            yield cell

    monkeypatch.setattr(command, "race", fake_race)
    first, second = (command._fastest_timed(engine, store, Cancel()) for _ in range(2))
    assert {cell.runtime for cell in raced} == {Runtime(), Runtime("numba")}
    assert len(raced) == 2, "the second time both are known"
    assert first == second == raced[-1].runtime


@pytest.fixture(scope="module")
def every():
    return list(positions(settings_of(EXPERIMENTS), Runtime()))


@pytest.mark.parametrize(
    ("panel", "moved"),
    [
        ("rate", {"range": (0.01, 10.0), "count": 7, "size": 256, "epochs": 11}),
        ("size", {"sizes": [8, 4096], "rate": 0.5}),
        ("depth", {"networks": ["256→128→64"], "rate": 0.2, "size": 8}),
        ("backend", {"size": 512, "rate": 0.01}),
        ("rate", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_moved_control_is_among_the_positions(every, panel, moved):
    controls = EXPERIMENTS[panel]
    usual = {name: one.setting.usual for name, one in controls.declared(panel).items()}
    shown = made.jobs(panel)(controls(usual | {"backend": DEFAULT} | moved))
    longest = {Item(replace(one.training, epochs=20), one.runtime) for one in shown.items}
    assert longest in [set(one.items) for one in every if one.experiment == panel]


@pytest.mark.slow
def test_the_nearest_positions_come_first_and_each_training_once(every):
    found = groups(every)
    trained = [item for group in found for item in group.items]
    assert len(trained) == len(set(trained)) == len({item for one in every for item in one.items})
    others = [group for group in found if group.experiment != "backend"]
    assert found[: len(others)] == others, "every runtime comes last"
    assert all(before.moved <= after.moved for before, after in pairwise(others))
    opens_with = {item for one in every if one.moved == 0 and one.experiment != "backend" for item in one.items}
    assert {item for group in others if group.moved == 0 for item in group.items} == opens_with


def test_every_position_of_the_sliders_is_trained(every):
    of_rates = [one for one in every if one.experiment == "rate"]
    assert len(of_rates) == 120 * 15 * len(BATCH_SIZES), "ends of the range, how many rates, batch sizes"


@pytest.mark.slow
def test_trained_curves_are_thinned_and_served_for_fewer_epochs(engine, store):
    item = Item(Training(Network((4,)), 0.1, 32, 3))
    first = list(train(Position("rate", 0, (item,)), engine, store, Cancel(), Request()))
    (finished,) = [one for one in first if isinstance(one, Finished)]
    assert not finished.cached
    assert len(finished.curve.losses) <= POINTS
    assert store.rows("parameters") == [], "thousands of networks are not kept"
    shorter = made.learning_rate((0.1, 1.0), epochs=2, batch_size=32, hidden="4").items[0]
    (again,) = train(Position("rate", 0, (shorter,)), engine, store, Cancel(), Request())
    assert isinstance(again, Finished)
    assert again.cached
    assert len(again.curve.epochs) == 2


def test_a_failing_group_becomes_a_note(engine, tmp_path, monkeypatch):
    def too_much(*_):
        raise MemoryError("expected 1 GB of free memory, got 0.1; train fewer networks")
        yield

    monkeypatch.setattr("lib.cli.precompute.updates", too_much)
    group = Position("rate", 0, (Item(Training()),))
    (note,) = train(group, engine, Store(tmp_path / "results.sqlite"), Cancel(), Request())
    assert isinstance(note, Note)
    assert "1 GB" in note.text
