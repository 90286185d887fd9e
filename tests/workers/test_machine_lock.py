"""The turn between the programs of a machine: one at a time, who holds it is named, and one that sleeps stops nobody
for ever."""

import json
import os
import signal
import stat
import subprocess
import sys

import pytest

from lib.experiments.results import Results
from lib.pages.layout import progress_text
from lib.workers import machine_lock
from lib.workers.machine_lock import MachineLock
from lib.workers.messages import Waiting
from lib.workers.notes import State, note_of
from tests.conftest import ROOT

HOLD = """
import sys, time
from lib.workers.machine_lock import MachineLock
with MachineLock() as turn:
    print("held", flush=True)
    while "listens" not in sys.argv or not turn.wanted():
        time.sleep(0.02)
"""


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def holding():
    """Another program that holds the turn, and listens to who asks for it or sleeps."""
    started = []

    def hold(*arguments):
        program = subprocess.Popen(
            [sys.executable, "-c", HOLD, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        started.append(program)
        assert program.stdout is not None
        assert program.stdout.readline() == "held\n"
        return program

    yield hold
    for program in started:
        program.kill()
        program.communicate()


def test_a_turn_that_is_taken_twice_is_given_back_by_one_release():
    ours, others = MachineLock(), MachineLock()
    assert ours.take()
    assert ours.take()
    assert not others.take()
    ours.release()
    assert others.take()
    others.release()


def test_the_lock_lies_in_a_folder_that_only_this_person_can_enter(own_folder, monkeypatch):
    with MachineLock():
        (lock,) = own_folder.rglob("*.lock")
        assert stat.S_IMODE(lock.parent.stat().st_mode) == 0o700
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert machine_lock.folder().is_relative_to(machine_lock.user_cache_dir("less-overhead"))


def test_who_holds_it_is_named_and_gives_way_to_who_asks(holding, own_folder):
    other, ours = holding("listens"), MachineLock()
    assert not ours.take()
    holder = ours.holder()
    assert holder is not None
    assert holder.pid == other.pid
    assert f"process {other.pid}" in str(holder)
    with ours:
        assert ours.beside is None
        (note,) = own_folder.rglob("holder.json")
        assert json.loads(note.read_text())["pid"] == os.getpid()


@pytest.mark.parametrize(
    ("served", "program", "words"),
    [
        ("edit", "mnist_training.py", "the page “mnist training” in another tab, since"),
        ("edit", "traps.py", "the page “traps” in another tab, since"),
        ("", "record.py", "record.py (process {pid}), since"),
    ],
)
def test_who_waits_reads_what_for_and_how_to_end_it(served, program, words, monkeypatch):
    monkeypatch.setenv(machine_lock.SERVED, served)
    monkeypatch.setattr(sys, "argv", [f"/somewhere/{program}"])
    with MachineLock():
        holder = MachineLock().holder()
    assert holder is not None
    note = note_of(Waiting(None, holder))
    results = Results((), ())
    results.state, results.place, results.holder = State.WAITING, None, holder
    for told in (note.text if note else "", progress_text(results)):
        assert told.startswith(words.format(pid=os.getpid()))
        assert ("is measuring; to end it, close that tab" if served else "to end it, end that program") in told


@pytest.mark.slow
def test_one_that_sleeps_is_overtaken_and_the_times_are_marked(holding):
    other, ours = holding(), MachineLock(patience_s=0.3)
    assert not ours.take()
    with ours:
        assert ours.beside is not None
        assert ours.beside.pid == other.pid
        assert f"process {other.pid}" in ours.beside.disturbs
    assert ours.take(), "patience is not lost twice with the same one"
    ours.release()
    other.send_signal(signal.SIGKILL)
    other.wait()
    with ours:
        assert ours.beside is None, "it is gone"


def test_patience_is_for_one_holder_and_for_one_wait(holding, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(machine_lock.time, "monotonic", lambda: now[0])
    holding()
    ours = MachineLock(patience_s=60)
    assert not ours.take()
    now[0] = 100.0
    assert not ours.take(), "it had not asked meanwhile"
    for _ in range(61):
        now[0] += 1.0
        ours.take()
    assert ours.beside is not None
    ours.release()
    note = next(ours._folder.glob("holder.json"))
    note.write_text(json.dumps({"program": "another", "pid": 1, "since": 5.0}))
    assert not ours.take(), "another holder is waited for anew"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}', '{"program": "x", "pid": 1, "since": 0, "more": 1}'])
def test_a_note_that_cannot_be_read_is_nobody(content):
    ours = MachineLock()
    with ours:
        ours._holder.write_text(content)
        assert MachineLock().holder() is None
        assert not MachineLock().take()


def test_where_no_lock_can_be_had_the_turn_is_free(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "file"))
    with MachineLock(), MachineLock():
        pass
