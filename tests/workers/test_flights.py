"""Trainings under way: made by the first who wants them, followed by the others from their first event on."""

import threading

from lib.workers.cancel import Cancel
from lib.workers.flights import Flights
from lib.workers.queue import Request, Urgency


def test_the_first_makes_it_and_the_second_follows():
    flights: Flights[str] = Flights()
    (one,), own = flights.board(["a"], Request())
    (same, other), others = flights.board(["a", "b"], Request())
    assert (own, others) == ([True], [False, True])
    assert same is one is not other


def test_who_wants_it_anew_makes_it():
    flights: Flights[str] = Flights()
    (one,), _ = flights.board(["a"], Request())
    (anew,), own = flights.board(["a"], Request(), anew=True)
    assert own == [True]
    assert anew is not one


def test_who_is_in_more_of_a_hurry_does_not_wait_for_the_same_viewers_that_waits_itself():
    flights: Flights[str] = Flights()
    later, now = Request("a viewer"), Request("a viewer", Urgency.NOW)
    (one, other), _ = flights.board(["a", "b"], later)
    flights.tell([one, other], "trains", at_work=True)
    flights.tell([one], "waits", at_work=False)
    assert flights.board(["a", "b"], Request("another", Urgency.NOW))[1] == [False, False]
    (mine, same), own = flights.board(["a", "b"], now)
    assert own == [True, False]
    assert (mine is not one, same is other) == (True, True)
    flights.end([one])
    assert flights.board(["a"], later)[0] == [mine], "the other's end is not its own"


def test_what_is_over_is_made_again():
    flights: Flights[str] = Flights()
    (one,), _ = flights.board(["a"], Request())
    flights.tell([one], "came")
    flights.end([one])
    assert (one.events, one.over) == (["came"], True)
    assert flights.board(["a"], Request())[1] == [True]


def test_who_follows_is_woken_by_news_and_by_a_cancel():
    flights: Flights[str] = Flights()
    (one,), _ = flights.board(["a"], Request())
    for wake in (lambda cancel: flights.tell([one], "news"), lambda cancel: cancel.set()):
        cancel, seen = Cancel(), len(one.events)
        thread = threading.Thread(target=flights.wait_for, args=(lambda n=seen: len(one.events) > n, cancel))
        thread.start()
        wake(cancel)
        thread.join(5)
        assert not thread.is_alive()
