"""Workers as real processes: streaming, cancelling, dying, taking turns. Most are stubs; some really train."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import Pipe
from types import SimpleNamespace

import psutil
import pytest

from lib.model.backends.base import Epoch, FirstCall, Steps
from lib.model.backends.registry import BACKENDS, Runtime
from lib.model.data.mnist import Facts
from lib.model.spec import Training
from lib.sweeps.experiments import mnist_training, recorded_machines, trace_of_a_step
from lib.sweeps.workers import engine as engine_module
from lib.sweeps.workers.engine import Process
from lib.sweeps.workers.messages import (
    End,
    Item,
    Job,
    Measured,
    Note,
    Progress,
    Ready,
    Restarted,
    State,
    Trained,
    TrainingFailed,
    Waiting,
    noted,
)
from lib.sweeps.workers.queue import Cancel, MachineLock, Queue, Request, Urgency, note_left
from lib.timing.profiling.request import Examination, OperationRequest
from tests.conftest import ROOT, where_installed
from tests.generators import collected
from tests.stub_worker import FAILS
from tests.timing.profiling.traces.test_reading import TORCH

JAX = Runtime("jax-epoch")
LONG = Training(batch_size=1, epochs=100, learning_rate=0.01)  # takes minutes; no test waits for its end
SHORT = Training(batch_size=4096, epochs=1)
SINE = Examination("operation", operation=OperationRequest("sine", 4))


def run(engine, runtime, trainings, request=None, **options):
    return list(engine.run([Job(runtime, tuple(trainings), **options)], Cancel(), request))


def events_of(messages, kind):
    return [message.event for message in messages if isinstance(message, Progress) and isinstance(message.event, kind)]


def epochs_of(messages, training):
    about = [message for message in messages if isinstance(message, Progress) and message.item.training == training]
    return [event.epoch for event in events_of(about, Epoch)]


def until_steps(messages):
    seen = []
    for message in messages:
        seen.append(message)
        if isinstance(message, Progress) and isinstance(message.event, Steps):
            return seen
    raise AssertionError("the run ended before it made a step")


def begun(engine, training=LONG):
    """Begin a run; return its messages after the first steps, its cancel, and its worker's process."""
    cancel = Cancel()
    messages = engine.run([Job(JAX, (training,))], cancel)
    until_steps(messages)
    return messages, cancel, psutil.Process(engine.pids()["jax/cpu"])


WHOLE = Training(batch_size=512, epochs=2)


@pytest.fixture(scope="module")
def expected(engine):
    return events_of(run(engine, Runtime("numpy"), [WHOLE]), Epoch)[-1]


@pytest.mark.release
@pytest.mark.parametrize("key", where_installed(BACKENDS))
def test_every_backend_trains_in_its_worker(engine, key, expected):
    messages = run(engine, Runtime(key), [WHOLE])
    assert len(events_of(messages, FirstCall)) == 1
    epochs = events_of(messages, Epoch)
    assert [epoch.epoch for epoch in epochs] == [0, 1]
    assert sum(len(event.losses) for event in events_of(messages, Steps)) == 2 * 93
    assert epochs[-1].validation_accuracy == pytest.approx(expected.validation_accuracy, abs=0.003)
    assert epochs[-1].validation_loss == pytest.approx(expected.validation_loss, rel=2e-3)


# One per kind of loop: compiled chunks, one call per step, and a library's own loop.
@pytest.mark.slow
@pytest.mark.parametrize("key", ["jax-epoch", "jax-step", "keras-jax"])
def test_a_cancel_takes_effect_after_a_few_reports(engine, monkeypatch, key):
    monkeypatch.setattr(engine_module, "CANCEL_ANSWER_S", 60.0)  # so that a slow worker is not replaced
    library = f"{BACKENDS[key].worker}/cpu"
    run(engine, Runtime(key), [SHORT])
    pid, answers, receive = engine.pids()[library], [], engine._receive
    monkeypatch.setattr(engine, "_receive", lambda worker: answers.append(receive(worker)) or answers[-1])
    cancel = Cancel()
    messages = engine.run([Job(Runtime(key), (LONG,))], cancel)
    until_steps(messages)
    answers.clear()
    cancel.set()
    assert not [m for m in messages if isinstance(m, Trained)]
    assert answers[-1][1] is End.STOPPED
    assert len(answers) < 20
    assert run(engine, Runtime(key), [SHORT])
    assert engine.pids()[library] == pid, "the worker is still there"


def test_closing_the_generator_cancels(stub_engine, monkeypatch):
    monkeypatch.setattr(engine_module, "CANCEL_ANSWER_S", 20.0)  # a worker that did not stop by then would be replaced
    messages, _, worker = begun(stub_engine)
    messages.close()
    assert events_of(run(stub_engine, JAX, [SHORT]), Epoch)
    assert stub_engine.pids()["jax/cpu"] == worker.pid


@pytest.mark.parametrize(
    ("number", "words"),
    [(signal.SIGKILL, "killed, often .* memory ran out,"), (signal.SIGSEGV, r"crashed \(SIGSEGV\)")],
)
def test_a_lost_worker_is_replaced_once_and_the_next_run_works(stub_engine, number, words):
    messages, _, worker = begun(stub_engine)
    worker.send_signal(number)
    (restarted,) = [one for one in until_steps(messages) if isinstance(one, Restarted)]
    assert re.search(f"{words} during training; another one starts the run over", restarted.why)
    os.kill(stub_engine.pids()["jax/cpu"], number)
    with pytest.raises(TrainingFailed, match=rf"{words} during training.*start a new worker"):
        list(messages)
    assert events_of(run(stub_engine, JAX, [SHORT]), Epoch)


def test_a_worker_killed_while_idle_is_replaced_silently(stub_engine):
    messages, _, worker = begun(stub_engine, SHORT)
    list(messages)
    worker.kill()
    psutil.wait_procs([worker], timeout=5)
    time.sleep(0.2)
    assert events_of(run(stub_engine, JAX, [SHORT]), Epoch)
    assert stub_engine.pids()["jax/cpu"] != worker.pid


@pytest.mark.slow
def test_a_worker_that_does_not_answer_is_replaced(stub_engine):
    messages, cancel, hung = begun(stub_engine)
    hung.suspend()
    before = time.monotonic()
    cancel.set()
    list(messages)
    assert time.monotonic() - before >= engine_module.CANCEL_ANSWER_S, "it was given the time to answer"
    assert events_of(run(stub_engine, JAX, [SHORT]), Epoch)
    assert stub_engine.pids()["jax/cpu"] != hung.pid
    assert not psutil.wait_procs([hung], timeout=30)[1]


def test_examinations_of_one_turn_are_not_interrupted_by_a_later_run(stub_engine):
    numpy = Runtime("numpy")
    first, second = Request("me"), Request("me")

    def measured(request):
        return [one.name for one in stub_engine.examine(numpy, SINE, Cancel(), request) if isinstance(one, Measured)]

    with stub_engine.turn(first) as turn:
        for _ in range(2):
            assert measured(turn) == ["eager/waited"]
            later = stub_engine.examine(numpy, SINE, Cancel(), second)
            assert next(later) == Waiting(1), "the place is kept between two of them"
            later.close()
    assert measured(second) == ["eager/waited"]


def test_two_programs_do_not_measure_at_once(stub_engine, holding):
    run(stub_engine, JAX, [SHORT])
    other = holding("listens")
    messages = run(stub_engine, JAX, [SHORT])
    (who,) = [message.other for message in messages if isinstance(message, Waiting) and message.place is None]
    assert f"process {other.pid}" in who
    assert events_of(messages, Epoch)


def test_a_hidden_page_yields_its_turn_and_resumes_when_shown(stub_engine, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(stub_engine, "_machine", MachineLock())
    monkeypatch.setattr(stub_engine, "queue", Queue(stub_engine._machine.release))
    here, others = [os.getpid()], MachineLock()
    others._left = tmp_path / "of another page"
    messages, *_ = begun(stub_engine, Training(batch_size=1, epochs=1))
    assert not others.take()
    note_left(here, ())
    began = time.monotonic()
    assert any(isinstance(message, Waiting) and message.place is None for message in messages)
    assert time.monotonic() - began < 1.0
    assert others.take(), "the turn is free"
    others.release()
    note_left((), here)
    rest = list(messages)
    assert not [message for message in rest if isinstance(message, Restarted)], "it goes on where it stopped"
    assert events_of(rest, Epoch)
    with stub_engine.turn() as turn:  # one turn for several examinations
        assert list(stub_engine.take(turn, Cancel())) == []
        assert not stub_engine._must_give_way(turn)
        note_left(here, ())
        assert stub_engine._must_give_way(turn)
        stub_engine.queue.give_back(turn)
        assert next(stub_engine.take(turn, Cancel())).place is None
    os.utime(next(tmp_path.rglob("left-*")), (1.0, 1.0))
    assert events_of(run(stub_engine, JAX, [SHORT]), Epoch), "an old note is of another process that had this id"
    note_left((), here)
    assert not list(tmp_path.rglob("left-*"))


@pytest.mark.slow
def test_a_hung_worker_is_replaced_and_the_run_repeated(stub_engine, monkeypatch):
    monkeypatch.setattr(engine_module, "HUNG_S", 2.0)
    training = Training(batch_size=8, epochs=4)
    messages, _, hung = begun(stub_engine, training)
    hung.suspend()
    seen = list(messages)
    (restarted,) = [message for message in seen if isinstance(message, Restarted)]
    assert "did not respond" in restarted.why
    assert epochs_of(seen[seen.index(restarted) :], training) == [0, 1, 2, 3]
    assert not hung.is_running() or hung.status() == psutil.STATUS_ZOMBIE


def test_a_silent_busy_worker_does_not_count_as_hung(monkeypatch):
    now, cpu_s = [0.0], [0.0]
    monkeypatch.setattr(engine_module.time, "monotonic", lambda: now[0])
    busy = engine_module._Worker.__new__(engine_module._Worker)
    busy.process, busy._sign_of_life = SimpleNamespace(cpu_s=lambda: cpu_s[0]), (0.0, 0.0)
    for computed_s, hangs in [(1.0, False)] * 60 + [(0.001, False)] * 9 + [(0.001, True)]:
        now[0] += 1.1
        cpu_s[0] += computed_s
        assert busy.hangs() is hangs
    busy.alive()
    assert not busy.hangs()


def each(engine, trainings, cancel=None, request=None, n_workers=2):
    jobs = [Job(JAX, (training,)) for training in trainings]
    return engine.run(jobs, cancel or Cancel(), request, n_workers)


def of_several(engine):
    return [psutil.Process(pid) for name, pid in engine.pids().items() if name.startswith("jax/cpu ")]


FOUR = [Training(batch_size=64, epochs=2, seed=seed) for seed in range(4)]


def test_several_workers_train_concurrently_with_one_thread_each(stub_engine):
    messages = list(each(stub_engine, FOUR))
    assert {m.item.training for m in messages if isinstance(m, Trained)} == set(FOUR)
    first = [m.item.training for m in messages if isinstance(m, Progress)]
    assert first.index(FOUR[1]) < len(first) - first[::-1].index(FOUR[0]), "both at once, and told as they go"
    assert stub_engine.processes(JAX) == 2
    assert {process.environ()["OMP_NUM_THREADS"] for process in of_several(stub_engine)} == {"1"}


def test_a_death_among_several_workers_restarts_only_its_training(stub_engine):
    trainings = [replace(one, batch_size=8) for one in FOUR]
    seen, killed = [], None
    for message in each(stub_engine, trainings):
        seen.append(message)
        if killed is None and isinstance(message, Progress) and isinstance(message.event, Epoch):
            killed = of_several(stub_engine)[0]
            killed.kill()
    (restarted,) = [message for message in seen if isinstance(message, Restarted)]
    assert len(restarted.items) == 1
    for training in trainings:
        told = seen[seen.index(restarted) :] if Item(training, JAX) in restarted.items else seen
        assert epochs_of(told, training) == [0, 1], training
    assert stub_engine.processes(JAX) == 2


def test_a_training_that_kills_its_workers_is_given_up_and_the_rest_done(stub_engine):
    deadly, *others = [replace(one, batch_size=8) for one in FOUR]
    seen: list = []

    def watch_and_kill():
        for message in each(stub_engine, [deadly, *others], n_workers=1):
            seen.append(message)
            if isinstance(message, Progress) and message.item.training == deadly:
                stub_engine._workers["jax/cpu 1"].process.kill()

    with pytest.raises(TrainingFailed, match=r"killed, .* during training"):
        watch_and_kill()
    assert [message.items for message in seen if isinstance(message, Restarted)] == [(Item(deadly, JAX),)]
    assert {message.item.training for message in seen if isinstance(message, Trained)} == set(others)


def test_a_failure_is_raised_when_the_others_are_done(stub_engine, lone_engine, monkeypatch):
    monkeypatch.setenv(FAILS, "no such thing")
    with pytest.raises(TrainingFailed, match="no such thing"):
        list(each(lone_engine, FOUR))
    assert lone_engine.processes(JAX) == 2, "they are there for the next"


def test_several_cancelled_workers_are_reused(stub_engine):
    cancel = Cancel()
    messages = each(stub_engine, [LONG, replace(LONG, seed=1), replace(LONG, seed=2)], cancel)
    until_steps(messages)
    before = of_several(stub_engine)
    cancel.set()
    assert not [message for message in messages if isinstance(message, Trained)]
    assert {m.item.training for m in each(stub_engine, FOUR[:2]) if isinstance(m, Progress)} == set(FOUR[:2])
    assert of_several(stub_engine) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_workers", "long", "viewer"),
    [(0, [Training(batch_size=1, epochs=2)], "another"), (2, [replace(one, batch_size=4) for one in FOUR], "the same")],
    ids=["another viewer", "a moved slider"],
)
def test_a_long_run_gives_way_and_continues(stub_engine, n_workers, long, viewer):
    run(stub_engine, JAX, [SHORT])
    seen: list = []
    messages = each(stub_engine, long, request=Request("the same"), n_workers=n_workers)
    thread = threading.Thread(target=lambda: seen.extend(messages))
    thread.start()
    while not events_of(list(seen), Steps):
        time.sleep(0.02)
    short = run(stub_engine, JAX, [SHORT], request=Request(viewer, Urgency.NOW))
    assert Waiting(1) in short
    assert events_of(short, Epoch)
    assert not [message for message in list(seen) if isinstance(message, Trained)], "it did not wait for the end"
    thread.join(120)
    assert len([message for message in seen if isinstance(message, Ready)]) >= 2, "it had more than one turn"
    assert not [message for message in seen if isinstance(message, Restarted)]
    for training in long:
        assert epochs_of(seen, training) == [0, 1], "nothing was lost or repeated"


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["exit", "SIGKILL", "SIGINT"])
def test_no_worker_survives_its_parent(program, ending):
    code = """
import os, signal, sys, threading, time
from lib.sweeps.workers import engine as engine_module
from lib.sweeps.workers.queue import Cancel
from lib.sweeps.workers.messages import Job, Progress
from lib.model.backends.registry import Runtime
from lib.model.spec import Training
from tests import stub_worker
engine_module.Process = stub_worker.start
engine = engine_module.Engine()
for message in engine.run([Job(Runtime("numpy"), (Training(batch_size=1, epochs=100),))], Cancel()):
    if isinstance(message, Progress):
        print(engine.pids()["numpy/cpu"], flush=True)
        if "exit" in sys.argv:
            break
        time.sleep(60)
"""
    parent = program(code, ending)
    worker = psutil.Process(int(parent.stdout.readline()))
    if ending != "exit":
        parent.send_signal(getattr(signal, ending))
    parent.communicate(timeout=60)
    assert not psutil.wait_procs([worker], timeout=30)[1]


ECHO = """
import os, sys
def main(connection, *arguments):
    connection.recv()
    connection.send((os.getpid(), arguments, os.environ["ONLY_THERE"], os.nice(0), sys.prefix, sys.path))
    connection.recv()
"""


def test_a_process_gets_its_own_environment_interpreter_and_niceness_until_it_is_killed(tmp_path):
    (tmp_path / "echo.py").write_text(ECHO)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "other"], check=True)
    environment = {"ONLY_THERE": "set", "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    other = str(tmp_path / "other" / "bin" / "python")
    process = Process("echo", ("one", "2"), environment, python=other, niceness=7)
    process.connection.send("who are you?")
    try:
        pid, arguments, value, niceness, prefix, folders = process.connection.recv()
        assert pid != os.getpid()
        assert (arguments, value) == (("one", "2"), "set")
        assert "ONLY_THERE" not in os.environ
        assert niceness == min(os.nice(0) + 7, 19)
        assert prefix == str(tmp_path / "other")
        own = [folder for folder in folders if "site-packages" in folder]
        assert own
        assert all(folder.startswith(prefix) for folder in own), "nothing of this environment is seen there"
        assert process.alive
        assert 0 < (process.cpu_s() or 0.0) < 30
    finally:
        process.kill(wait=True)
    assert not process.alive
    assert process.cpu_s() is None
    with pytest.raises((EOFError, OSError)):
        process.connection.recv()


TRACES = "lib.timing.profiling.traces.reading"


class StandIn:
    under_way: list["StandIn"]

    def __init__(self, _module, _arguments, _environment, niceness=0):
        self.connection, self.other = Pipe()
        self.niceness = niceness
        self.under_way.append(self)

    def kill(self, wait=False):
        assert wait, "the next begins when its memory is free"
        self.under_way.remove(self)


@pytest.fixture
def processes(monkeypatch):
    monkeypatch.setattr(engine_module, "Process", StandIn)
    monkeypatch.setattr(engine_module, "_queue", Queue())
    monkeypatch.setattr(StandIn, "under_way", [], raising=False)
    return StandIn.under_way


def test_files_are_read_one_at_a_time_and_others_see_their_place(processes):
    first, second, third, gives_up = (
        engine_module.read("m", n, cancel=Cancel(), niceness=7, doing=f"reading {n}") for n in range(4)
    )
    assert next(first) == Note("reading 0")
    said = [next(one) for one in (second, third, gives_up)]
    assert said == [Note(f"{n} ahead of this: files are read one at a time", State.WAITING) for n in (1, 2, 3)]
    gives_up.close()
    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(collected, one) for one in (first, second, third)]
        for number in range(3):
            while not processes:
                pass
            (process,) = processes
            assert process.niceness == 7
            assert process.other.recv() == (number,)
            process.other.send(("answer", number))
            assert answers[number].result(20)[1] == ("answer", number)
    assert processes == []


@pytest.mark.parametrize("kind", ["data", "traces", "exports"])
def test_all_dropped_files_share_one_queue_and_can_be_cancelled(processes, kind):
    before, cancel = engine_module._queue.join(Request()), Cancel()
    engine_module._queue.take(before)
    files = [("dropped", b"1,2")]
    brought = {
        "data": lambda: mnist_training.bring(files, "", "", cancel),
        "traces": lambda: trace_of_a_step.read_files(files, cancel),
        "exports": lambda: recorded_machines.read_exports(files, cancel),
    }[kind]()
    assert next(brought) == Note("1 ahead of this: files are read one at a time", State.WAITING)
    cancel.set()
    assert list(brought) == []
    assert engine_module._queue.lengths() == (1, 0)
    assert processes == []


@pytest.mark.slow
def test_a_killed_reader_blocks_nobody(monkeypatch):
    def read(cancel):
        return engine_module.read(TRACES, TORCH, "torch", cancel=cancel)

    class Killed(Process):
        def __init__(self, *arguments, **named):
            super().__init__(*arguments, **named)
            self.kill(wait=True)

    with monkeypatch.context() as patch:
        patch.setattr(engine_module, "Process", Killed)
        with pytest.raises(TrainingFailed, match="reading it failed"):
            list(read(Cancel()))
    cancelled = Cancel()
    cancelled.set()
    assert collected(read(cancelled))[1] is None
    assert collected(read(Cancel()))[1].n_rows > 50  # type: ignore[union-attr]


def test_messages_become_notes_with_the_matching_state():
    def measuring():
        yield Ready(Facts("MNIST", ""))
        yield "of no interest to who waits"
        yield Waiting(2)
        yield Waiting(None, "another program measures")
        yield Note("its worker starts", State.STARTING)
        return 7

    notes = [
        Note("32 networks", State.MEASURING),
        Note("2 ahead of this", State.WAITING),
        Note("another program measures", State.WAITING),
        Note("its worker starts", State.STARTING),
    ]
    assert collected(noted(measuring(), "32 networks")) == (notes, 7)
