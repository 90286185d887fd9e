"""A process for a worker: a pipe to it, an environment of its own, and an end at once."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe

import pytest

from lib.sweeps.experiments import own_data, recorded_machines, trace_of_a_step
from lib.sweeps.workers import engine as module
from lib.sweeps.workers.engine import Process
from lib.sweeps.workers.messages import Note, State
from lib.sweeps.workers.queue import Cancel, Queue, Request
from tests.conftest import ROOT
from tests.timing.profiling.traces.test_reading import TORCH

ECHO = """
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
def main(connection, *arguments):
    connection.send((os.getpid(), arguments, os.environ["ONLY_THERE"]))
    connection.recv()
"""


@pytest.fixture
def process(tmp_path):
    (tmp_path / "echo.py").write_text(ECHO)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    found = Process("echo", ("one", "2"), {"ONLY_THERE": "set", "PYTHONPATH": path})
    yield found
    found.kill(wait=True)


def test_it_is_told_its_arguments_in_an_environment_of_its_own(process):
    assert process.connection.poll(30)
    pid, arguments, value = process.connection.recv()
    assert pid != os.getpid()
    assert (arguments, value) == (("one", "2"), "set")
    assert "ONLY_THERE" not in os.environ
    assert process.alive
    assert 0 < process.cpu_s() < 30


@pytest.mark.parametrize("niceness", [0, 7])
def test_it_has_the_priority_that_it_is_given(tmp_path, niceness):
    (tmp_path / "says.py").write_text("import os\ndef main(asked): asked.recv(); asked.send(os.nice(0))\n")
    process = Process("says", (), {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}, niceness=niceness)
    try:
        process.connection.send("how nice?")
        assert process.connection.poll(30)
        assert process.connection.recv() == min(os.nice(0) + niceness, 19)
    finally:
        process.kill(wait=True)


def test_it_ends_at_once_and_then_tells_nothing(process):
    assert process.connection.poll(30)
    process.kill(wait=True)
    assert not process.alive
    assert process.cpu_s() is None
    process.connection.recv()  # what it had sent before
    with pytest.raises((EOFError, OSError)):
        process.connection.recv()


def test_it_runs_in_the_interpreter_that_is_named(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "other"], check=True)
    (tmp_path / "where.py").write_text("import sys\ndef main(connection): connection.send((sys.prefix, sys.path))\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    process = Process("where", (), {"PYTHONPATH": path}, str(tmp_path / "other" / "bin" / "python"))
    try:
        assert process.connection.poll(30)
        prefix, folders = process.connection.recv()
    finally:
        process.kill(wait=True)
    assert prefix == str(tmp_path / "other")
    own = [folder for folder in folders if "site-packages" in folder]
    assert own
    assert all(folder.startswith(prefix) for folder in own), "nothing of this environment is seen there"


TRACES = "lib.timing.profiling.traces.reading"


class StandIn:
    under_way: list["StandIn"]

    def __init__(self, _module, _arguments, _environment, niceness=0):
        self.connection, self.other = Pipe()
        self.niceness, self.killed = niceness, False
        self.under_way.append(self)

    def kill(self, wait=False):
        assert wait, "the next begins when its memory is free"
        self.killed = True
        self.under_way.remove(self)


@pytest.fixture
def processes(monkeypatch):
    monkeypatch.setattr(module, "Process", StandIn)
    monkeypatch.setattr(module, "_queue", Queue())
    monkeypatch.setattr(StandIn, "under_way", [], raising=False)
    return StandIn.under_way


def test_one_reads_at_a_time_and_the_others_see_their_place(processes):
    first, second, third, gives_up = (
        module.read("m", n, cancel=Cancel(), niceness=7, doing=f"reading {n}") for n in range(4)
    )
    assert next(first) == Note("reading 0")
    said = [next(one) for one in (second, third, gives_up)]
    assert said == [Note(f"{n} before this: files are read one at a time", State.WAITING) for n in (1, 2, 3)]
    gives_up.close()
    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(asked_for, one) for one in (first, second, third)]
        for number in range(3):
            while not processes:
                pass
            (process,) = processes
            assert process.niceness == 7
            assert process.other.recv() == (number,)
            process.other.send(("answer", number))
            assert answers[number].result(20) == ("answer", number)
    assert processes == []


@pytest.mark.parametrize("kind", ["data", "traces", "exports"])
def test_all_that_is_dropped_waits_in_one_queue_and_can_be_cancelled_there(processes, kind):
    before, cancel = module._queue.join(Request()), Cancel()
    module._queue.take(before)
    files = [("dropped", b"1,2")]
    brought = {
        "data": lambda: own_data.bring(files, "", "", cancel),
        "traces": lambda: trace_of_a_step.read_files(files, cancel),
        "exports": lambda: recorded_machines.read_exports(files, cancel),
    }[kind]()
    assert next(brought) == Note("1 before this: files are read one at a time", State.WAITING)
    cancel.set()
    assert list(brought) == []
    assert module._queue.lengths() == (1, 0)
    assert processes == []


@pytest.mark.slow
def test_a_process_reads_with_the_niceness_of_the_workers_and_one_that_is_killed_holds_up_nobody(tmp_path):
    def read(cancel=None):
        return module.read(TRACES, TORCH, "torch", cancel=cancel or Cancel(), niceness=3)

    ended, seen = read(), []
    next(ended)
    real = module.Process

    class Killed(real):
        def __init__(self, *arguments, **named):
            super().__init__(*arguments, **named)
            seen.append(os.getpriority(os.PRIO_PROCESS, self.pid) - os.getpriority(os.PRIO_PROCESS, 0))
            super().kill(wait=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "Process", Killed)
        with pytest.raises(module.TrainingFailed, match="its reader ended"):
            next(ended)
    assert seen == [3]
    cancelled = Cancel()
    cancelled.set()
    assert asked_for(read(cancelled)) is None
    assert asked_for(read()).n_rows > 50  # type: ignore[attr-defined]


def asked_for(generator):
    while True:
        try:
            next(generator)
        except StopIteration as end:
            return end.value
