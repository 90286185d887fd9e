"""Who has a place: nobody loses it by reloading, and there are never more viewers than places."""

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lib.site.places import FOR_GOOD, LOADING_S, REFRESH_S, RELOADING_S, Capacity, LimitViewers


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def limited_to(most: int) -> tuple[Capacity, Clock]:
    clock = Clock()
    return Capacity(most, clock), clock


def connected(capacity: Capacity, *viewers: str) -> list[asyncio.Event]:
    connections = [capacity.connect(viewer) for viewer in viewers]
    assert None not in connections
    return [connection for connection in connections if connection is not None]


def test_a_place_is_free_once_its_viewer_has_left_and_not_reloaded():
    capacity, clock = limited_to(2)
    first, _ = connected(capacity, "a", "b")
    assert [capacity.hold(viewer) for viewer in ("c", "")] == [False, False]
    assert capacity.connect("c") is None
    capacity.disconnect(first)
    assert not capacity.hold("c"), "the place is kept for who may only reload"
    clock.now_s += RELOADING_S + 0.1
    assert capacity.hold("c")
    assert not capacity.hold("a")
    assert capacity.connect("c") is not None


def test_a_page_that_was_shown_has_its_place_while_it_loads():
    capacity, clock = limited_to(1)
    assert capacity.hold("a")
    assert not capacity.hold("b")
    clock.now_s += LOADING_S - 1
    assert capacity.connect("a") is not None
    assert not capacity.hold("b")


def test_a_page_that_never_loads_gives_its_place_back():
    capacity, clock = limited_to(1)
    assert capacity.hold("a")
    clock.now_s += LOADING_S + 1
    assert capacity.hold("b")


def test_two_hundred_reloads_take_one_place():
    """In either order: the new WebSocket comes before or after the end of the old one."""
    capacity, clock = limited_to(3)
    *_, last = connected(capacity, "b", "c", "a")
    for number in range(200):
        if number % 2:
            capacity.disconnect(last)
            assert capacity.hold("a")
            (last,) = connected(capacity, "a")
        else:
            old, (last,) = last, connected(capacity, "a")
            assert old.is_set()
            capacity.disconnect(old)
        assert capacity.viewers == 3
        clock.now_s += 0.1
    assert not capacity.hold("d")
    capacity.disconnect(last)
    clock.now_s += RELOADING_S + 1
    assert capacity.hold("d")


def test_a_second_tab_is_welcome_as_long_as_there_is_room():
    capacity, _ = limited_to(3)
    first, _ = connected(capacity, "a", "a")
    assert not first.is_set()
    connected(capacity, "b", "a")
    assert first.is_set(), "the oldest of its own gives way"
    assert capacity.viewers == 3


def test_nobody_s_tabs_keep_others_out():
    capacity, _ = limited_to(6)
    tabs = connected(capacity, *"aaaabb")
    assert capacity.hold("c"), "while its page loads it has the place already"
    assert [tab.is_set() for tab in tabs] == [True, *[False] * 5]
    connected(capacity, "c", "d")
    assert [tab.is_set() for tab in tabs] == [True, True, *[False] * 4]
    assert capacity.hold(""), "who has no card yet is let in, but nobody leaves for who only asks"
    assert capacity.viewers == 6
    connected(capacity, "e", "f")
    assert not capacity.hold("g"), "each has one"
    assert not capacity.hold("")
    assert capacity.connect("") is None


moves = st.lists(
    st.tuples(st.sampled_from("abcde-"), st.sampled_from(["load", "connect", "disconnect", "wait"])), max_size=80
)


@given(st.integers(1, 3), moves)
def test_there_are_never_more_than_places(most, moves):
    capacity, clock = limited_to(most)
    connections: dict[str, list] = {}
    for who, move in moves:
        viewer = who.replace("-", "")
        if move == "load":
            capacity.hold(viewer)
        elif move == "connect" and (connection := capacity.connect(viewer)):
            connections.setdefault(viewer, []).append(connection)
        elif move == "disconnect" and connections.get(viewer):
            capacity.disconnect(connections[viewer].pop(0))
        elif move == "wait":
            clock.now_s += 4.0
        assert capacity.viewers + len(capacity._held_until) <= most


def answer(limit, path, viewer="a", kind="http", role="pupil") -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = []

    async def send(message):
        said.append(message)

    scope = {"type": kind, "path": path, "method": "GET", "headers": [], "meta": {"role": role, "viewer": viewer}}
    asyncio.run(limit(scope, None, send))
    return said


async def nothing(*_) -> None: ...


def test_the_full_page_says_how_many_places_there_are_and_reloads():
    capacity, _ = limited_to(1)
    connected(capacity, "a")
    limit = LimitViewers(nothing, capacity)
    start, body = answer(limit, "/claims/", "b")
    assert start["status"] == 503
    assert (b"refresh", str(REFRESH_S).encode()) in start["headers"]
    assert b"Places for viewers: 1. All are taken." in body["body"]
    assert answer(limit, "/claims/", "a") == [], "who has a place sees the page"
    assert answer(limit, "/", "b") == [], "the front page is for everybody"


def test_the_teacher_needs_no_place():
    capacity, clock = limited_to(1)
    (only,) = connected(capacity, "a")
    limit = LimitViewers(nothing, capacity)
    assert answer(limit, "/claims/", "t", role="teacher") == []
    assert answer(limit, "/claims/ws", "t", "websocket", "teacher") == []
    assert answer(limit, "/claims/ws_sync", "t", "websocket", "teacher") != []
    capacity.disconnect(only)
    clock.now_s += RELOADING_S + 1
    assert answer(limit, "/claims/", "t", role="teacher") == []
    assert capacity.hold("b"), "the teacher's page has taken none"


def test_other_ways_into_a_session_are_closed():
    limit = LimitViewers(nothing, limited_to(5)[0])
    for path in ("/claims/ws_sync", "/terminal/ws", "/claims/terminal/ws", "/ws", "/nowhere/ws"):
        assert answer(limit, path, kind="websocket") == [{"type": "websocket.close", "code": 1013}]
    assert answer(limit, "/claims/sse")[0]["status"] == 403
    assert answer(limit, "/claims/ws", kind="websocket") == [], "this one is let through"


def test_who_gives_way_is_told_once_and_nothing_more_is_sent():
    """As a page sees it: closed for good, so that two tabs do not take the place from each other for ever."""
    capacity, said = limited_to(1)[0], []

    async def session(scope, receive, send):
        await send({"type": "websocket.accept"})
        assert (await receive())["type"] == "websocket.disconnect"
        await send({"type": "websocket.send", "text": "too late"})

    async def never():
        await asyncio.Event().wait()

    async def send(message):
        said.append(message)

    async def play():
        limit = LimitViewers(session, capacity)
        scope = {"type": "websocket", "path": "/claims/ws", "meta": {"viewer": "a"}}
        first = asyncio.create_task(limit(scope, never, send))  # type: ignore[arg-type]
        while not said:
            await asyncio.sleep(0)
        assert capacity.connect("a") is not None
        await first

    asyncio.run(play())
    assert said == [
        {"type": "websocket.accept"},
        {"type": "websocket.close", "code": 1000, "reason": FOR_GOOD},
    ]
