"""The queue: in the page's order for one viewer, in turns between viewers, and the moved control first."""

import pytest

from lib.turns import Claim, MachineTurn, Turns, Urgency


@pytest.fixture
def turns():
    return Turns()


def line(turns, tickets):
    return sorted(tickets, key=lambda name: turns.take(tickets[name], 0))


def test_one_viewers_runs_keep_the_order_of_the_page(turns):
    tickets = {name: turns.join(Claim("me")) for name in ("first", "second", "third")}
    assert [turns.take(ticket, 0) for ticket in tickets.values()] == [0, 1, 2]
    assert not turns.must_give_way(tickets["first"], quantum_s=0), "however long it takes"


def test_a_moved_control_goes_before_the_same_viewers_other_runs(turns):
    old = turns.join(Claim("me"))
    assert turns.take(old, 0) == 0
    turns.join(Claim("me"))
    moved = turns.join(Claim("me", Urgency.NOW))
    assert turns.must_give_way(old), "at once"
    turns.give_back(old)
    assert turns.take(moved, 0) == 0
    newer = turns.join(Claim("me", Urgency.NOW))
    assert turns.must_give_way(moved), "the control that was moved last goes first"
    turns.leave(moved)
    assert turns.take(newer, 0) == 0
    turns.leave(newer)
    assert turns.take(old, 0) == 0, "what gave way comes next"


def test_what_follows_from_a_result_comes_last(turns):
    follows = turns.join(Claim("me", Urgency.LATER))
    opened = turns.join(Claim("me"))
    assert line(turns, {"follows": follows, "opened": opened}) == ["opened", "follows"]


def test_viewers_take_turns(turns):
    mine = [turns.join(Claim("me")) for _ in range(3)]
    assert turns.take(mine[0], 0) == 0
    theirs = turns.join(Claim("them"))
    assert not turns.must_give_way(mine[0]), "a turn lasts a while"
    assert turns.must_give_way(mine[0], quantum_s=0)
    assert turns.take(theirs, 0) == 1, "before my other two, though it came last"
    turns.give_back(mine[0])
    assert turns.take(theirs, 0) == 0
    assert turns.take(mine[0], 0) == 1
    again = turns.join(Claim("them", Urgency.NOW))
    turns.leave(theirs)
    assert turns.take(again, 0) > 0, "their hurry is no reason to go before others twice"
    assert turns.take(mine[0], 0) == 0


def test_a_viewer_who_comes_back_has_no_advantage(turns):
    first = turns.join(Claim("me"))
    assert turns.take(first, 0) == 0
    theirs = turns.join(Claim("them"))
    turns.leave(first)
    again = turns.join(Claim("me", Urgency.NOW))
    assert turns.take(again, 0) == 1
    assert turns.take(theirs, 0) == 0


def test_claims_keep_their_order_when_a_later_one_is_ready_first(turns):
    first, second = Claim("me"), Claim("me")
    early = turns.join(second)
    assert turns.take(early, 0) == 0
    late = turns.join(first)
    assert turns.must_give_way(early), "the page's first experiment begins, whoever was ready first"
    turns.give_back(early)
    assert turns.take(late, 0) == 0


def test_a_machines_turn_that_is_taken_twice_is_given_back_by_one_release():
    ours, others = MachineTurn(), MachineTurn()
    assert ours.take()
    assert ours.take()
    assert not others.take()
    ours.release()
    assert others.take()
    others.release()
