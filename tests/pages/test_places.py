"""Who has a place, and who waits: in order, without losing it by reloading, and never more than there are."""

import asyncio
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lib.pages import places as places_module
from lib.pages.places import ASK, LEFT_S, LOADING_S, PRESENT_S, RELOADING_S, Places, Seat, Usher


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def house(most=2) -> tuple[Places, Clock]:
    clock = Clock()
    return Places(most, clock), clock


def sit(places: Places, viewer: str) -> Seat:
    seat = places.sit(viewer)
    assert seat is not None
    return seat


def seated(places: Places, *viewers: str) -> list[Seat]:
    return [sit(places, viewer) for viewer in viewers]


def test_who_comes_to_a_full_house_waits_in_order():
    places, _ = house(2)
    first, _ = seated(places, "a", "b")
    assert [places.before(viewer) for viewer in ("c", "d", "c")] == [0, 1, 0]
    assert places.sit("d") is None
    places.leave(first)
    assert places.before("c") == 0, "the place is kept for who may only reload"
    assert places.before("") == 2, "a stranger is behind the line"


def test_a_place_that_is_free_goes_to_the_first_in_the_line():
    places, clock = house(1)
    (only,) = seated(places, "a")
    assert [places.before("b"), places.before("c")] == [0, 1]
    places.leave(only)
    clock.now_s += RELOADING_S + 0.1
    assert places.before("c") == 1
    assert places.before("b") is None
    assert places.before("c") == 0
    assert places.sit("c") is None
    assert places.sit("b") is not None


def test_who_does_not_ask_is_passed_over_and_in_the_end_forgotten():
    places, clock = house(1)
    (only,) = seated(places, "a")
    assert [places.before("b"), places.before("c")] == [0, 1]
    clock.now_s += PRESENT_S + 1
    assert places.before("c") == 0, "passed over"
    assert places.before("b") == 0, "but before the others again"
    clock.now_s += LEFT_S - 1
    assert places.before("c") == 0
    clock.now_s += 2
    assert places.before("b") == 1, "at the end now"
    places.leave(only)


def test_a_page_that_was_shown_has_its_place_while_it_loads():
    places, clock = house(1)
    assert places.before("a") is None
    assert places.before("b") == 0
    clock.now_s += LOADING_S - 1
    assert places.sit("a") is not None
    assert places.before("b") == 0


def test_a_page_that_never_loads_gives_its_place_back():
    places, clock = house(1)
    assert places.before("a") is None
    clock.now_s += LOADING_S + 1
    assert places.before("b") is None


def test_two_hundred_reloads_take_one_place():
    """In either order: the new WebSocket comes before or after the end of the old one."""
    places, clock = house(3)
    seated(places, "b", "c")
    seat = sit(places, "a")
    for number in range(200):
        if number % 2:
            places.leave(seat)
            assert places.before("a") is None
            seat = sit(places, "a")
        else:
            old, seat = seat, sit(places, "a")
            assert old.left.is_set()
            places.leave(old)
        assert places.viewers == 3
        clock.now_s += 0.1
    assert places.before("d") == 0
    places.leave(seat)
    clock.now_s += RELOADING_S + 1
    assert places.before("d") is None


def test_a_second_tab_is_welcome_as_long_as_nobody_waits():
    places, _ = house(3)
    first, _ = seated(places, "a", "a")
    assert not first.left.is_set()
    seated(places, "b")
    assert places.before("c") == 0
    assert places.sit("a") is not None
    assert first.left.is_set(), "the older of the two gives way"
    assert places.viewers == 3


moves = st.lists(st.tuples(st.sampled_from("abcde-"), st.sampled_from(["ask", "sit", "leave", "wait"])), max_size=80)


@given(st.integers(1, 3), moves)
def test_there_are_never_more_than_places(most, moves):
    places, clock = house(most)
    seats: dict[str, list] = {}
    for who, move in moves:
        viewer = who.replace("-", "")
        if move == "ask":
            places.before(viewer)
        elif move == "sit" and (seat := places.sit(viewer)):
            seats.setdefault(viewer, []).append(seat)
        elif move == "leave" and seats.get(viewer):
            places.leave(seats[viewer].pop(0))
        elif move == "wait":
            clock.now_s += 4.0
        assert places.viewers <= most
        assert places._taken <= most


def answer(usher, path, viewer="a", kind="http", role="pupil") -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = []

    async def send(message):
        said.append(message)

    scope = {"type": kind, "path": path, "method": "GET", "headers": [], "meta": {"role": role, "viewer": viewer}}
    asyncio.run(usher(scope, None, send))
    return said


async def nothing(*_) -> None: ...


def test_the_page_that_waits_says_how_many_are_before():
    places, _ = house(1)
    seated(places, "a")
    usher = Usher(nothing, places)
    said = answer(usher, "/traps/", "b")
    assert said[0]["status"] == 503
    assert b"Places for viewers: 1. All are taken." in said[1]["body"]
    assert b">You are next.</b>" in said[1]["body"]
    assert b">One is before you.</b>" in answer(usher, "/traps/", "c")[1]["body"]
    assert b">2 are before you.</b>" in answer(usher, "/claims/", "d")[1]["body"]
    assert json.loads(answer(usher, ASK, "c")[1]["body"]) == {"before": 1}
    assert answer(usher, "/traps/", "a") == [], "who has a place sees the page"
    assert answer(usher, "/", "d") == [], "the front page is for everybody"


def test_the_teacher_does_not_wait():
    places, _ = house(1)
    seated(places, "a")
    usher = Usher(nothing, places)
    assert answer(usher, "/traps/", "t", role="teacher") == []
    assert answer(usher, "/traps/ws", "t", "websocket", "teacher") == []
    assert answer(usher, "/traps/ws_sync", "t", "websocket", "teacher") != []
    assert places.before("b") == 0, "and takes no place"


def test_other_ways_into_a_session_are_closed():
    usher = Usher(nothing, house(5)[0])
    for path in ("/traps/ws_sync", "/terminal/ws", "/traps/terminal/ws", "/ws", "/nowhere/ws"):
        assert answer(usher, path, kind="websocket") == [{"type": "websocket.close", "code": 1013}]
    assert answer(usher, "/traps/sse")[0]["status"] == 403
    assert answer(usher, "/traps/ws", kind="websocket") == [], "this one is let through"


def test_who_gives_way_is_told_once_and_nothing_more_is_sent():
    """As a page sees it: closed for good, so that two tabs do not take the place from each other for ever."""
    places, said = house(1)[0], []

    async def session(scope, receive, send):
        await send({"type": "websocket.accept"})
        assert (await receive())["type"] == "websocket.disconnect"
        await send({"type": "websocket.send", "text": "too late"})

    async def never():
        await asyncio.Event().wait()

    async def send(message):
        said.append(message)

    async def play():
        usher = Usher(session, places)
        scope = {"type": "websocket", "path": "/traps/ws", "meta": {"viewer": "a"}}
        first = asyncio.create_task(usher(scope, never, send))  # type: ignore[arg-type]
        while not said:
            await asyncio.sleep(0)
        assert places.sit("a") is not None
        await first

    asyncio.run(play())
    assert said == [
        {"type": "websocket.accept"},
        {"type": "websocket.close", "code": 1000, "reason": places_module.FOR_GOOD},
    ]
