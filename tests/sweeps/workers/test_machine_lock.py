"""The turn between the programs of a machine: one at a time, who holds it is named, and one that sleeps stops nobody
for ever."""

import dataclasses
import json
import os
import signal
import stat
import subprocess
import sys
import time

import pytest

from lib.sweeps.experiments.results import Results
from lib.sweeps.workers import machine_lock
from lib.sweeps.workers.engine import ENDED
from lib.sweeps.workers.machine_lock import MachineLock
from lib.sweeps.workers.messages import Waiting
from lib.sweeps.workers.notes import State, note_of
from lib.ui.layout import progress_text, state_of
from lib.ui.widgets import WholePage
from tests.conftest import ROOT

HOLD = """
import sys, time
from lib.sweeps.workers.machine_lock import MachineLock
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
        assert ("is measuring; to end it, press “End it”" if served else "to end it, end that program") in told
    assert ('class="lab-button lab-end">End it</button>; this starts' in state_of(results)) is bool(served)
    results.holder = dataclasses.replace(holder, heeds=False)
    assert "lab-end" not in state_of(results), "a page of an older version is only explained"
    assert ("close that tab" in state_of(results)) is bool(served)
    monkeypatch.setenv(machine_lock.SERVED, "run")
    results.holder = holder
    assert "lab-end" not in state_of(results), "in front of a class nobody has the button"


RUN = """
import time
from lib.model.backends.registry import Runtime
from lib.sweeps.experiments.background import BackgroundTask
from lib.sweeps.experiments.runs import join
from lib.model.spec import Training
from lib.ui.views.mnist_training import run_sentence as sentence
from lib.sweeps.workers import engine
from lib.sweeps.workers.cancel import Cancel
from lib.sweeps.workers.queue import Request
from tests import made, stub_worker

engine.Process = stub_worker.start
page, cancel = engine.Engine(), Cancel()
long = [Training(batch_size=1, epochs=100, seed=seed) for seed in range(2)]
experiment = made.batch_size((1, 2), epochs=100, rate=0.01, hidden="8")
first = join(experiment, page, None, Request())
while not first.results.worth_showing:
    time.sleep(0.02)
second = BackgroundTask(lambda: page.run(Runtime("numpy"), long, cancel), cancel)
print("held", flush=True)
first.wait_for_end()
second.wait_for_end()
print(first.results.state, sentence(experiment, first.results), flush=True)
print(second.state, second.view().problem, flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_a_page_ends_all_its_runs_when_another_page_asks_for_it_and_says_so(monkeypatch, own_folder):
    monkeypatch.setenv(machine_lock.SERVED, "edit")
    other = subprocess.Popen([sys.executable, "-c", RUN], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        widget = WholePage()
        monkeypatch.setenv(machine_lock.SERVED, "run")
        widget._handle_custom_msg({"end": True}, [])
        assert not list(own_folder.rglob("end-*")), "a class ends nobody's run"
        monkeypatch.setenv(machine_lock.SERVED, "edit")
        began = time.monotonic()
        widget._handle_custom_msg({"end": True}, [])
        said = [other.stdout.readline() for _ in range(2)]
        assert time.monotonic() - began < 5
        assert all(line.startswith("Stopped ") and line.endswith(f" {ENDED}\n") for line in said), said
        assert MachineLock().take(), "it is free"
        assert not list(own_folder.rglob("end-*"))
    finally:
        other.kill()
        other.communicate()


def test_a_request_to_end_is_for_one_turn_and_one_that_is_dead_stops_nobody(holding, monkeypatch):
    monkeypatch.setenv(machine_lock.SERVED, "edit")
    other, ours = holding(), MachineLock()
    assert not ours.take()
    ours.end_holder()
    assert (ours._folder / f"end-{other.pid}").exists()
    other.kill()
    other.wait()
    assert ours.take(), "whether it has heeded or not"
    ours.end_holder()
    ours.release()
    assert ours.take()
    assert not ours.is_to_end(), "what was asked in an earlier turn"
    MachineLock().end_holder()
    assert (ours.is_to_end(), ours.is_to_end()) == (True, False)
    ours._holder.write_text(json.dumps({"program": "traps.py", "pid": other.pid, "since": 0.0, "is_page": True}))
    (ours._folder / f"end-{other.pid}").unlink()
    MachineLock().end_holder()
    assert not (ours._folder / f"end-{other.pid}").exists(), "one of an older version would not hear it"
    ours.release()


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
