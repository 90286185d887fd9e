"""Trainings under way: made by the first who wants them, followed by the others from their first event on."""

import threading

from lib.workers.cancel import Cancel
from lib.workers.flights import Flights


def test_the_first_makes_it_and_the_second_follows():
    flights: Flights[str] = Flights()
    (one,), own = flights.board(["a"])
    (same, other), others = flights.board(["a", "b"])
    assert (own, others) == ([True], [False, True])
    assert same is one is not other


def test_who_wants_it_anew_makes_it():
    flights: Flights[str] = Flights()
    (one,), _ = flights.board(["a"])
    (anew,), own = flights.board(["a"], anew=True)
    assert own == [True]
    assert anew is not one


def test_what_is_over_is_made_again():
    flights: Flights[str] = Flights()
    (one,), _ = flights.board(["a"])
    flights.tell([one], "came")
    flights.end([one])
    assert (one.events, one.over) == (["came"], True)
    assert flights.board(["a"])[1] == [True]


def test_who_follows_is_woken_by_news_and_by_a_cancel():
    flights: Flights[str] = Flights()
    (one,), _ = flights.board(["a"])
    for wake in (lambda cancel: flights.tell([one], "news"), lambda cancel: cancel.set()):
        cancel, seen = Cancel(), len(one.events)
        thread = threading.Thread(target=flights.wait_for, args=(lambda n=seen: len(one.events) > n, cancel))
        thread.start()
        wake(cancel)
        thread.join(5)
        assert not thread.is_alive()
