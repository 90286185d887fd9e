"""The queue: in the page's order for one viewer, in turns between viewers, and the moved control first."""

import threading

import pytest

from lib.workers.cancel import Cancel
from lib.workers.queue import Request, SharedRequest, Turns, Urgency


@pytest.fixture
def turns():
    return Turns()


def line(turns, tickets):
    return sorted(tickets, key=lambda name: turns.take(tickets[name]))


def test_one_viewers_runs_keep_the_order_of_the_page(turns):
    tickets = {name: turns.join(Request("me")) for name in ("first", "second", "third")}
    assert [turns.take(ticket) for ticket in tickets.values()] == [0, 1, 2]
    assert not turns.must_give_way(tickets["first"], quantum_s=0), "however long it takes"


def test_a_moved_control_goes_before_the_same_viewers_other_runs(turns):
    old = turns.join(Request("me"))
    assert turns.take(old) == 0
    turns.join(Request("me"))
    moved = turns.join(Request("me", Urgency.NOW))
    assert turns.must_give_way(old), "at once"
    turns.give_back(old)
    assert turns.take(moved) == 0
    newer = turns.join(Request("me", Urgency.NOW))
    assert turns.must_give_way(moved), "the control that was moved last goes first"
    turns.leave(moved)
    assert turns.take(newer) == 0
    turns.leave(newer)
    assert turns.take(old) == 0, "what gave way comes next"


def test_what_follows_from_a_result_comes_last(turns):
    follows = turns.join(Request("me", Urgency.LATER))
    opened = turns.join(Request("me"))
    assert line(turns, {"follows": follows, "opened": opened}) == ["opened", "follows"]


def test_viewers_take_turns(turns):
    mine = [turns.join(Request("me")) for _ in range(3)]
    assert turns.take(mine[0]) == 0
    theirs = turns.join(Request("them"))
    assert not turns.must_give_way(mine[0]), "a turn lasts a while"
    assert turns.must_give_way(mine[0], quantum_s=0)
    assert turns.take(theirs) == 1, "before my other two, though it came last"
    turns.give_back(mine[0])
    assert turns.take(theirs) == 0
    assert turns.take(mine[0]) == 1
    again = turns.join(Request("them", Urgency.NOW))
    turns.leave(theirs)
    assert turns.take(again) > 0, "their hurry is no reason to go before others twice"
    assert turns.take(mine[0]) == 0


def test_a_viewer_who_comes_back_has_no_advantage(turns):
    first = turns.join(Request("me"))
    assert turns.take(first) == 0
    theirs = turns.join(Request("them"))
    turns.leave(first)
    again = turns.join(Request("me", Urgency.NOW))
    assert turns.take(again) == 1
    assert turns.take(theirs) == 0


def test_claims_keep_their_order_when_a_later_one_is_ready_first(turns):
    first, second = Request("me"), Request("me")
    early = turns.join(second)
    assert turns.take(early) == 0
    late = turns.join(first)
    assert turns.must_give_way(early), "the page's first experiment begins, whoever was ready first"
    turns.give_back(early)
    assert turns.take(late) == 0


def test_a_shared_run_is_served_as_soon_as_any_of_its_viewers_would_be_and_counts_for_each(turns):
    first = turns.join(Request("somebody"))
    assert turns.take(first) == 0
    mine = turns.join(Request("me"))
    ours = SharedRequest(Request("you", Urgency.LATER))
    shared, yours = turns.join(ours), turns.join(Request("you"))
    tickets = {"mine": mine, "shared": shared, "yours": yours}
    assert line(turns, tickets) == ["mine", "yours", "shared"]
    ours.add(Request("me", Urgency.NOW))
    turns.give_back(first)
    turns.leave(first)
    assert line(turns, tickets)[0] == "shared", "the control that I moved goes before my other run"
    assert turns.take(mine) > 0
    assert turns.take(yours) > 0


def test_a_shared_run_gives_way_at_once_only_to_what_all_its_viewers_want_more(turns):
    shared = turns.join(SharedRequest(Request("me"), Request("you")))
    assert turns.take(shared) == 0
    turns.join(Request("me", Urgency.NOW))
    assert not turns.must_give_way(shared), "you wait for it still"
    assert turns.must_give_way(shared, quantum_s=0), "in time, as to anybody"
    turns.join(SharedRequest(Request("me", Urgency.NOW), Request("you", Urgency.NOW)))
    assert turns.must_give_way(shared)


def test_a_run_that_everybody_has_left_is_no_obstacle(turns):
    request = SharedRequest(left := Request("me"))
    ticket, other = turns.join(request), turns.join(Request("you"))
    request.discard(left)
    turns.give_back(ticket)
    assert {turns.take(ticket), turns.take(other)} == {0, 1}


def test_the_line_is_worked_out_when_it_changes_and_who_waits_sleeps(turns, monkeypatch):
    """Eighty that wait: nothing is computed for them until the turn is given back, and all learn their new place
    then."""
    holder, cancel = turns.join(Request("holder")), Cancel()
    assert turns.take(holder) == 0
    tickets = [turns.join(Request(number)) for number in range(80)]
    computed, looked, told = [], [], []
    work_out, take = turns._work_out, turns.take
    monkeypatch.setattr(turns, "_work_out", lambda: computed.append(1) or work_out())
    monkeypatch.setattr(turns, "take", lambda ticket: looked.append(1) or take(ticket))
    everyone_waits = threading.Barrier(81)

    def wait(ticket):
        place = turns.take(ticket)
        everyone_waits.wait()
        turns.wait(ticket, place, cancel)
        told.append(turns._places[ticket])

    threads = [threading.Thread(target=wait, args=(ticket,)) for ticket in tickets]
    for thread in threads:
        thread.start()
    everyone_waits.wait()
    for thread in threads:
        thread.join(0.01)
    assert (len(computed), len(looked), told) == (0, 80, []), "waiting costs nothing"
    turns.leave(holder)
    for thread in threads:
        thread.join(10)
    assert sorted(told) == list(range(80))
    assert len(computed) == 1


def test_who_waits_is_woken_by_a_cancel(turns):
    holder, mine, cancel = turns.join(Request("you")), turns.join(Request("me")), Cancel()
    assert turns.take(holder) == 0
    thread = threading.Thread(target=turns.wait, args=(mine, turns.take(mine), cancel))
    thread.start()
    assert thread.is_alive()
    cancel.set()
    thread.join(10)
    assert not thread.is_alive()
