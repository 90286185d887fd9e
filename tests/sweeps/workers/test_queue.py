import json
import os
import signal
import stat
import sys
import threading
import time

import pytest

from lib.sweeps.experiments.results import Results
from lib.sweeps.workers import queue as turns
from lib.sweeps.workers.engine import ENDED
from lib.sweeps.workers.messages import State, TrainingFailed, Waiting, note_of
from lib.sweeps.workers.queue import Allowance, Cancel, MachineLock, Queue, Request, Urgency
from lib.ui.views.mnist_training import progress_text, state_of
from lib.ui.widgets import WholePage


@pytest.fixture
def queue():
    return Queue()


def test_one_viewers_runs_keep_the_order_of_the_page_and_what_follows_from_a_result_comes_last(queue):
    follows = queue.join(Request("me", Urgency.LATER))
    tickets = [queue.join(Request("me")) for _ in range(3)]
    assert [queue.take(ticket) for ticket in (*tickets, follows)] == [0, 1, 2, 3]
    assert not queue.must_give_way(tickets[0], quantum_s=0), "however long it takes"


def test_a_moved_control_goes_before_the_viewers_other_runs(queue):
    old = queue.join(Request("me"))
    assert queue.take(old) == 0
    queue.join(Request("me"))
    moved = queue.join(Request("me", Urgency.NOW))
    assert queue.must_give_way(old), "at once"
    queue.give_back(old)
    assert queue.take(moved) == 0
    newer = queue.join(Request("me", Urgency.NOW))
    assert queue.must_give_way(moved), "the control that was moved last goes first"
    queue.leave(moved)
    assert queue.take(newer) == 0
    queue.leave(newer)
    assert queue.take(old) == 0, "what gave way comes next"


def test_viewers_take_turns(queue):
    mine = [queue.join(Request("me")) for _ in range(3)]
    assert queue.take(mine[0]) == 0
    theirs = queue.join(Request("them"))
    assert not queue.must_give_way(mine[0]), "a turn lasts a while"
    assert queue.must_give_way(mine[0], quantum_s=0)
    assert queue.take(theirs) == 1, "before my other two, though it came last"
    queue.give_back(mine[0])
    assert queue.take(theirs) == 0
    assert queue.take(mine[0]) == 1
    again = queue.join(Request("them", Urgency.NOW))
    queue.leave(theirs)
    assert queue.take(again) > 0, "their hurry is no reason to go before others twice"
    assert queue.take(mine[0]) == 0


def test_rejoining_the_queue_gives_no_advantage(queue):
    first = queue.join(Request("me"))
    assert queue.take(first) == 0
    theirs = queue.join(Request("them"))
    queue.leave(first)
    again = queue.join(Request("me", Urgency.NOW))
    assert queue.take(again) == 1
    assert queue.take(theirs) == 0


def test_a_shared_run_is_served_when_any_of_its_viewers_is_due(queue):
    first = queue.join(Request("somebody"))
    assert queue.take(first) == 0
    mine = queue.join(Request("me"))
    ours = [Request("you", Urgency.LATER)]
    shared, yours = queue.join(ours), queue.join(Request("you"))
    assert [queue.take(ticket) for ticket in (mine, yours, shared)] == [1, 2, 3]
    ours.append(Request("me", Urgency.NOW))
    queue.give_back(first)
    queue.leave(first)
    assert queue.take(shared) == 0, "the control that I moved goes before my other run"
    assert queue.take(mine) > 0
    assert queue.take(yours) > 0


def test_a_shared_run_yields_at_once_only_if_all_its_viewers_are_urgent(queue):
    shared = queue.join([Request("me"), Request("you")])
    assert queue.take(shared) == 0
    queue.join(Request("me", Urgency.NOW))
    assert not queue.must_give_way(shared), "you wait for it still"
    assert queue.must_give_way(shared, quantum_s=0), "in time, as to anybody"
    queue.join([Request("me", Urgency.NOW), Request("you", Urgency.NOW)])
    assert queue.must_give_way(shared)


def test_a_run_without_viewers_does_not_block_the_queue(queue):
    request = [left := Request("me")]
    ticket, other = queue.join(request), queue.join(Request("you"))
    request.remove(left)
    queue.give_back(ticket)
    assert {queue.take(ticket), queue.take(other)} == {0, 1}


def test_a_cancel_wakes_a_waiting_run(queue):
    holder, mine, cancel = queue.join(Request("you")), queue.join(Request("me")), Cancel()
    assert queue.take(holder) == 0
    thread = threading.Thread(target=queue.wait, args=(mine, queue.take(mine), cancel))
    thread.start()
    assert thread.is_alive()
    cancel.set()
    thread.join(10)
    assert not thread.is_alive()


def test_the_runs_of_a_viewer_are_limited():
    allowance, viewer, over = Allowance(2), object(), Cancel()

    def asks(request):
        allowance.admit(request, over.is_set)

    for _ in range(3):  # one that trains, and two that wait
        asks(Request(viewer, Urgency.NOW))
    asks(Request(urgency=Urgency.NOW))  # another viewer
    asks(Request(viewer, Urgency.IN_ORDER))  # with the page
    with pytest.raises(TrainingFailed, match="Expected at most 2 of your runs to wait, got one more; stop one"):
        asks(Request(viewer, Urgency.NOW))
    over.set()
    asks(Request(viewer, Urgency.NOW))


def test_callbacks_run_on_cancel_or_at_once_if_already_cancelled():
    cancel, called = Cancel(), []
    with cancel.calling(lambda: called.append("inside")):
        assert called == []
        cancel.set()
    cancel.set()
    assert called == ["inside"]
    with cancel.calling(lambda: called.append("late")):
        assert called == ["inside", "late"]


def test_a_signal_handler_can_cancel_while_the_guard_is_held():
    cancel = Cancel()
    before = signal.signal(signal.SIGUSR1, lambda *_: cancel.set())
    try:
        with cancel._guard:
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert cancel.is_set()


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def test_a_lock_taken_twice_is_freed_by_one_release():
    ours, others = MachineLock(), MachineLock()
    assert ours.take()
    assert ours.take()
    assert not others.take()
    ours.release()
    assert others.take()
    others.release()


def test_the_lock_is_in_a_private_folder(own_folder, monkeypatch):
    with MachineLock():
        (lock,) = own_folder.rglob("*.lock")
        assert stat.S_IMODE(lock.parent.stat().st_mode) == 0o700
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert turns.folder().is_relative_to(turns.user_cache_dir("less-overhead"))


@pytest.mark.parametrize(
    ("served", "program", "words"),
    [
        ("edit", "mnist_training.py", "the page “mnist training” in another tab, since"),
        ("", "record.py", "record.py (process {pid}), since"),
    ],
)
def test_a_waiting_page_names_the_holder_and_how_to_end_it(served, program, words, monkeypatch):
    monkeypatch.setenv(turns.SERVED, served)
    monkeypatch.setattr(sys, "argv", [f"/somewhere/{program}"])
    with MachineLock():
        holder = MachineLock().holder()
    assert holder is not None
    note = note_of(Waiting(None, holder.waited_for))
    results = Results((), ())
    results.state, results.place, results.other = State.WAITING, None, holder.waited_for
    for told in (note.text if note else "", progress_text(results)):
        assert told.startswith(words.format(pid=os.getpid()))
        assert ("is measuring; to end it, press “End it”" if served else "to end it, end that program") in told
    assert ('class="lab-button lab-end">End it</button>; this starts' in state_of(results)) is bool(served)
    monkeypatch.setenv(turns.SERVED, "run")
    results.other = holder.waited_for
    assert "lab-end" not in state_of(results), "in front of a class nobody has the button"
    assert ("close that tab" in state_of(results)) is bool(served)


RUN = """
import time
from lib.model.backends.registry import Runtime
from lib.sweeps.experiments.results import BackgroundTask, join
from lib.model.spec import Training
from lib.ui.views.mnist_training import run_sentence
from lib.sweeps.workers import engine
from lib.sweeps.workers.messages import Job
from lib.sweeps.workers.queue import Cancel, Request
from tests import made, stub_worker

engine.Process = stub_worker.start
page, cancel = engine.Engine(), Cancel()
long = tuple(Training(batch_size=1, epochs=100, seed=seed) for seed in range(2))
experiment = made.batch_size((1, 2), epochs=100, rate=0.01, hidden="8")
first = join(experiment, page, None, Request())
while not first.results.worth_showing:
    time.sleep(0.02)
second = BackgroundTask(lambda: page.run([Job(Runtime("numpy"), long)], cancel), cancel)
print("held", flush=True)
first.wait_for_end()
second.wait_for_end()
print(first.results.state, run_sentence(experiment, first.results), flush=True)
print(second.state, second.view().problem, flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_a_page_ends_all_its_runs_on_request_of_another_page(program, monkeypatch, own_folder):
    monkeypatch.setenv(turns.SERVED, "edit")
    other, widget = program(RUN), WholePage()
    assert other.stdout.readline() == "held\n"
    monkeypatch.setenv(turns.SERVED, "run")
    widget._handle_custom_msg({"end": True}, [])
    assert not list(own_folder.rglob("end-*")), "a class ends nobody's run"
    monkeypatch.setenv(turns.SERVED, "edit")
    began = time.monotonic()
    widget._handle_custom_msg({"end": True}, [])
    said = [other.stdout.readline() for _ in range(2)]
    assert time.monotonic() - began < 5
    assert all(line.startswith("Stopped ") and line.endswith(f" {ENDED}\n") for line in said), said
    assert MachineLock().take(), "it is free"
    assert not list(own_folder.rglob("end-*"))


def test_a_request_to_end_applies_to_one_turn_of_one_process(holding, monkeypatch):
    monkeypatch.setenv(turns.SERVED, "edit")
    other, ours = holding(), MachineLock()
    assert not ours.take()
    ours.end_holder()
    assert (ours._folder / f"end-{other.pid}").exists()
    other.kill()
    other.wait()
    assert ours.take(), "whether it has heeded or not"
    ours.end_holder()
    ours.release()
    assert not ours.take(), "who asked may take it first"
    ours.__enter__()
    assert not ours.is_to_end(), "what was asked in an earlier turn"
    MachineLock().end_holder()
    assert (ours.is_to_end(), ours.is_to_end()) == (True, False)
    ours._holder.write_text(json.dumps({"program": "record.py", "pid": other.pid, "since": 0.0}))
    (ours._folder / f"end-{other.pid}").unlink()
    MachineLock().end_holder()
    assert not (ours._folder / f"end-{other.pid}").exists(), "a program that is no page would not hear it"
    ours.release()


@pytest.mark.parametrize("content", ["", "[]", '{"pid": 1}'])
def test_an_unreadable_note_names_no_holder(content):
    ours = MachineLock()
    with ours:
        ours._holder.write_text(content)
        assert MachineLock().holder() is None
        assert not MachineLock().take()


def test_without_a_usable_lock_the_turn_is_free(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "file"))
    with MachineLock(), MachineLock():
        pass
