"""Files are read one at a time for all who bring some, whatever kind they are of."""

import os
import threading
from multiprocessing import Pipe
from queue import SimpleQueue

import pytest

from lib.sweeps.experiments import own_data, recorded_machines, trace_of_a_step
from lib.sweeps.workers import reader
from lib.sweeps.workers.cancel import Cancel
from lib.sweeps.workers.notes import Note, State
from lib.sweeps.workers.queue import Queue, Request
from tests.timing.profiling.traces.test_reading import TORCH

TRACES = "lib.timing.profiling.traces.reading"


class StandIn:
    """In place of a reader's process: it answers when the test says so."""

    under_way: list["StandIn"]
    begun: SimpleQueue

    def __init__(self, _module, _arguments, _environment, niceness=0):
        self.connection, self.other = Pipe()
        self.niceness, self.killed = niceness, False
        self.under_way.append(self)
        self.begun.put(self)

    def kill(self, wait=False):
        assert wait, "the next begins when its memory is free"
        self.killed = True
        self.under_way.remove(self)


@pytest.fixture
def processes(monkeypatch):
    monkeypatch.setattr(reader, "Process", StandIn)
    monkeypatch.setattr(reader, "_queue", Queue())
    monkeypatch.setattr(StandIn, "under_way", [], raising=False)
    monkeypatch.setattr(StandIn, "begun", SimpleQueue(), raising=False)
    return StandIn.under_way


def asked(generator, answers):
    """Run it in a thread; its notes and then what it returned are added to a list."""

    def run():
        try:
            while True:
                answers.append(next(generator))
        except StopIteration as end:
            answers.append(end.value)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_one_reads_at_a_time_and_the_others_see_their_place(processes):
    first, second, third, gives_up = (
        reader.read("m", n, cancel=Cancel(), niceness=7, doing=f"reading {n}") for n in range(4)
    )
    assert next(first) == Note("reading 0")
    said = [next(one) for one in (second, third, gives_up)]
    assert said == [Note(f"{n} before this: files are read one at a time", State.WAITING) for n in (1, 2, 3)]
    gives_up.close()
    answers: list[list[object]] = [[], [], []]
    threads = [asked(first, answers[0])]
    for number, waits in ((1, second), (2, third)):
        threads.append(asked(waits, answers[number]))
    for number in range(3):
        while not processes:
            pass
        (process,) = processes
        assert process.niceness == 7
        assert process.other.recv() == (number,)
        process.other.send(("answer", number))
        threads[number].join(20)
    assert [one[-1] for one in answers] == [("answer", n) for n in range(3)]
    assert processes == []


@pytest.mark.parametrize("kind", ["data", "traces", "exports"])
def test_all_that_is_dropped_waits_in_one_queue_and_can_be_cancelled_there(processes, kind):
    before, cancel = reader._queue.join(Request()), Cancel()
    reader._queue.take(before)
    files = [("dropped", b"1,2")]
    brought = {
        "data": lambda: own_data.bring(files, "", "", cancel),
        "traces": lambda: trace_of_a_step.read_files(files, cancel),
        "exports": lambda: recorded_machines.read_exports(files, cancel),
    }[kind]()
    assert next(brought) == Note("1 before this: files are read one at a time", State.WAITING)
    cancel.set()
    assert list(brought) == []
    assert reader._queue.lengths() == (1, 0)
    assert processes == []


@pytest.mark.slow
def test_a_process_reads_with_the_niceness_of_the_workers_and_one_that_is_killed_holds_up_nobody(tmp_path):
    def read(cancel=None):
        return reader.read(TRACES, TORCH, "torch", cancel=cancel or Cancel(), niceness=3)

    ended, seen = read(), []
    next(ended)
    real = reader.Process

    class Killed(real):
        def __init__(self, *arguments, **named):
            super().__init__(*arguments, **named)
            seen.append(os.getpriority(os.PRIO_PROCESS, self.pid) - os.getpriority(os.PRIO_PROCESS, 0))
            super().kill(wait=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "Process", Killed)
        with pytest.raises(reader.Unreadable, match="its reader ended"):
            next(ended)
    assert seen == [3]
    cancelled = Cancel()
    cancelled.set()
    assert asked_for(read(cancelled)) is None
    assert asked_for(read()).n_rows > 50  # type: ignore[attr-defined]


def asked_for(generator):
    """What it returns."""
    while True:
        try:
            next(generator)
        except StopIteration as end:
            return end.value
