"""Trainings under way: made by the first who wants them, followed by the others from their first event on."""

import pytest

from lib.sweeps.events import ToTrain
from lib.sweeps.sweep import share, tell
from lib.sweeps.workers.queue import Request, Urgency

NEWS = ToTrain(())


@pytest.fixture
def key(request):
    return request.node.name, "a"


def test_the_first_makes_it_and_the_second_follows(key):
    ((one, mine),) = share([key], Request())
    (same, follows), (other, makes) = share([key, (*key, "b")], Request())
    assert (mine, follows, makes) == (True, False, True)
    assert same is one is not other
    tell([one, other], over=True)


def test_who_wants_it_anew_makes_it(key):
    ((one, _),) = share([key], Request())
    ((anew, mine),) = share([key], Request(), anew=True)
    assert mine
    assert anew is not one
    tell([one, anew], over=True)


def test_who_is_in_more_of_a_hurry_does_not_wait_for_the_same_viewers_that_waits_itself(key):
    keys, later, now = [key, (*key, "b")], Request("a viewer"), Request("a viewer", Urgency.NOW)
    (one, _), (other, _) = share(keys, later)
    tell([one, other], NEWS, at_work=True)
    tell([one], NEWS, at_work=False)
    assert [mine for _, mine in share(keys, Request("another", Urgency.NOW))] == [False, False]
    (mine, makes), (same, follows) = share(keys, now)
    assert (makes, follows, mine is not one, same is other) == (True, False, True, True)
    tell([one], over=True)
    assert share([key], later) == [(mine, False)], "the other's end is not its own"
    tell([mine, other], over=True)


def test_what_is_over_is_made_again(key):
    ((one, _),) = share([key], Request())
    tell([one], NEWS)
    tell([one], over=True)
    assert (one.events, one.over) == ([NEWS], True)
    ((again, mine),) = share([key], Request())
    assert mine
    tell([again], over=True)
