"""The queue: in the page's order for one viewer, in turns between viewers, and the moved control first."""

import threading
from contextlib import suppress

import pytest

from lib.sweeps.workers.cancel import Cancel
from lib.sweeps.workers.messages import TrainingFailed
from lib.sweeps.workers.queue import Allowance, Queue, Request, SharedRequest, Urgency


@pytest.fixture
def queue():
    return Queue()


def line(queue, tickets):
    return sorted(tickets, key=lambda name: queue.take(tickets[name]))


def test_one_viewers_runs_keep_the_order_of_the_page(queue):
    tickets = {name: queue.join(Request("me")) for name in ("first", "second", "third")}
    assert [queue.take(ticket) for ticket in tickets.values()] == [0, 1, 2]
    assert not queue.must_give_way(tickets["first"], quantum_s=0), "however long it takes"


def test_a_moved_control_goes_before_the_same_viewers_other_runs(queue):
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


def test_what_follows_from_a_result_comes_last(queue):
    follows = queue.join(Request("me", Urgency.LATER))
    opened = queue.join(Request("me"))
    assert line(queue, {"follows": follows, "opened": opened}) == ["opened", "follows"]


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


def test_a_viewer_who_comes_back_has_no_advantage(queue):
    first = queue.join(Request("me"))
    assert queue.take(first) == 0
    theirs = queue.join(Request("them"))
    queue.leave(first)
    again = queue.join(Request("me", Urgency.NOW))
    assert queue.take(again) == 1
    assert queue.take(theirs) == 0


def test_claims_keep_their_order_when_a_later_one_is_ready_first(queue):
    first, second = Request("me"), Request("me")
    early = queue.join(second)
    assert queue.take(early) == 0
    late = queue.join(first)
    assert queue.must_give_way(early), "the page's first experiment begins, whoever was ready first"
    queue.give_back(early)
    assert queue.take(late) == 0


def test_a_shared_run_is_served_as_soon_as_any_of_its_viewers_would_be_and_counts_for_each(queue):
    first = queue.join(Request("somebody"))
    assert queue.take(first) == 0
    mine = queue.join(Request("me"))
    ours = SharedRequest(Request("you", Urgency.LATER))
    shared, yours = queue.join(ours), queue.join(Request("you"))
    tickets = {"mine": mine, "shared": shared, "yours": yours}
    assert line(queue, tickets) == ["mine", "yours", "shared"]
    ours.add(Request("me", Urgency.NOW))
    queue.give_back(first)
    queue.leave(first)
    assert line(queue, tickets)[0] == "shared", "the control that I moved goes before my other run"
    assert queue.take(mine) > 0
    assert queue.take(yours) > 0


def test_a_shared_run_gives_way_at_once_only_to_what_all_its_viewers_want_more(queue):
    shared = queue.join(SharedRequest(Request("me"), Request("you")))
    assert queue.take(shared) == 0
    queue.join(Request("me", Urgency.NOW))
    assert not queue.must_give_way(shared), "you wait for it still"
    assert queue.must_give_way(shared, quantum_s=0), "in time, as to anybody"
    queue.join(SharedRequest(Request("me", Urgency.NOW), Request("you", Urgency.NOW)))
    assert queue.must_give_way(shared)


def test_a_run_that_everybody_has_left_is_no_obstacle(queue):
    request = SharedRequest(left := Request("me"))
    ticket, other = queue.join(request), queue.join(Request("you"))
    request.discard(left)
    queue.give_back(ticket)
    assert {queue.take(ticket), queue.take(other)} == {0, 1}


@pytest.mark.slow
def test_the_line_is_worked_out_when_it_changes_and_who_waits_sleeps(queue, monkeypatch):
    """Eighty that wait: nothing is computed for them until the turn is given back, and all learn their new place
    then."""
    holder, cancel = queue.join(Request("holder")), Cancel()
    assert queue.take(holder) == 0
    tickets = [queue.join(Request(number)) for number in range(80)]
    computed, looked, told = [], [], []
    work_out, take = queue._work_out, queue.take
    monkeypatch.setattr(queue, "_work_out", lambda: computed.append(1) or work_out())
    monkeypatch.setattr(queue, "take", lambda ticket: looked.append(1) or take(ticket))
    everyone_waits = threading.Barrier(81)

    def wait(ticket):
        place = queue.take(ticket)
        everyone_waits.wait()
        queue.wait(ticket, place, cancel)
        told.append(queue._places[ticket])

    threads = [threading.Thread(target=wait, args=(ticket,)) for ticket in tickets]
    for thread in threads:
        thread.start()
    everyone_waits.wait()
    for thread in threads:
        thread.join(0.01)
    assert (len(computed), len(looked), told) == (0, 80, []), "waiting costs nothing"
    queue.leave(holder)
    for thread in threads:
        thread.join(10)
    assert sorted(told) == list(range(80))
    assert len(computed) == 1


def test_who_waits_is_woken_by_a_cancel(queue):
    holder, mine, cancel = queue.join(Request("you")), queue.join(Request("me")), Cancel()
    assert queue.take(holder) == 0
    thread = threading.Thread(target=queue.wait, args=(mine, queue.take(mine), cancel))
    thread.start()
    assert thread.is_alive()
    cancel.set()
    thread.join(10)
    assert not thread.is_alive()


def may(allowance: Allowance, request: Request, over: Cancel | None = None) -> bool:
    """Whether this run is admitted; it goes on until `over` is set."""
    with suppress(TrainingFailed):
        allowance.admit(request, (over or Cancel()).is_set)
        return True
    return False


def test_a_viewer_has_so_many_runs_and_no_more():
    allowance, viewer, over = Allowance(2), object(), Cancel()
    assert [may(allowance, Request(viewer, Urgency.NOW), over) for _ in range(4)] == [True, True, True, False], (
        "one that trains, and two that wait"
    )
    assert may(allowance, Request(urgency=Urgency.NOW)), "somebody else"
    assert may(allowance, Request(viewer, Urgency.IN_ORDER)), "with the page"
    with pytest.raises(TrainingFailed, match="Expected at most 2 of your runs to wait, got one more; stop one"):
        allowance.admit(Request(viewer, Urgency.NOW), over.is_set)
    over.set()
    assert may(allowance, Request(viewer, Urgency.NOW)), "the others are over"


def test_a_run_that_was_replaced_counts_no_more():
    """A slider that is dragged ends one run after another, and each takes a moment."""
    allowance, viewer = Allowance(0), object()
    for _ in range(10):
        over = Cancel()
        assert may(allowance, Request(viewer, Urgency.NOW), over)
        over.set()


def test_without_a_limit_everybody_may():
    allowance, request = Allowance(), Request(urgency=Urgency.NOW)
    assert all(may(allowance, request) for _ in range(50))
