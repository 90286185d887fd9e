"""The class site's access check (passwords, links, cookies, roles) and places for viewers, which survive reloads."""

import asyncio
import html
import json
import re
import stat
import time
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import JSONResponse

from lib.site import access
from lib.site.access import AccessCheck, Capacity, Credentials, Keys, LimitViewers, kept_secret, password_of
from lib.site.gate import Gate

SECRET, PASSWORD = b"s" * 32, "correct horse"
OPEN, BY_LINK, BY_PASSWORD = Keys(SECRET), Keys(SECRET, class_link=True), Keys(SECRET, PASSWORD)


async def says_who(scope, receive, send):
    await JSONResponse(scope["meta"])(scope, receive, send)


def ask(keys, path="/", query="", **asked):
    return asyncio.run(asking(AccessCheck(says_who, keys, "class-1"), path, query, **asked))


async def asking(
    check, path="/", query="", method="GET", cookie="", body=b"", client="10.0.0.1", ends="http.request", **others
):
    """Send a request to `check`; `ends` is the message after the body, or replaces the body."""
    said = []
    given = {"host": "localhost", "accept": "text/html", "cookie": f"class-1={cookie}"} | others
    headers = [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items()]
    messages = [{"type": "http.request", "body": body, "more_body": ends == "hangs up"}]
    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "scheme": "http"}
    scope |= {"query_string": query.encode(), "headers": headers, "client": (client, 1), "server": ("localhost", 80)}

    async def receive():
        if messages:
            return messages.pop()
        if ends == "http.request":
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message):
        said.append(message)

    await check(scope, receive, send)
    if not said:
        return 0, {}, ""
    text = b"".join(message.get("body", b"") for message in said[1:]).decode()
    return said[0]["status"], {name.decode(): value.decode() for name, value in said[0]["headers"]}, text


def cookie_of(headers) -> str:
    return headers["set-cookie"].split("class-1=")[1].split(";")[0]


@pytest.mark.parametrize("keys", [OPEN, BY_LINK, BY_PASSWORD], ids=["open", "link", "password"])
@pytest.mark.parametrize(("link", "role"), [("teacher", "teacher"), ("class", "pupil")])
def test_a_link_sets_the_role_and_is_removed_from_the_address(keys, link, role):
    query = f"rate.epochs=4&{link}={keys.token(role)}&rate.count=2"
    status, headers, _ = ask(keys, "/mnist_training/", query)
    assert (status, headers["location"]) == (303, "/mnist_training/?rate.epochs=4&rate.count=2")
    assert "HttpOnly" in headers["set-cookie"]
    assert "SameSite=Lax" in headers["set-cookie"]
    status, _, text = ask(keys, "/", cookie=cookie_of(headers))
    assert (status, json.loads(text)["role"], bool(json.loads(text)["viewer"])) == (200, role, True)
    assert json.loads(ask(OPEN)[2]) == {"role": "pupil", "viewer": ""}, "whoever has no card, in an open server"


PUPILS, TEACHERS = (f"{name}={OPEN.token(role)}" for name, role in access.LINKS.items())


@pytest.mark.parametrize("query", [PUPILS, TEACHERS, f"a=1&{PUPILS}"])
@pytest.mark.parametrize("dest", ["image", "iframe"])
def test_links_are_refused_unless_the_reader_navigates(query, dest):
    status, headers, _ = ask(OPEN, "/claims/", query=query, sec_fetch_dest=dest)
    assert (status, "set-cookie" in headers) == (403, False)
    assert ask(OPEN, "/claims/", query=query, sec_fetch_dest="document")[0] == 303


@pytest.mark.parametrize("path", ["/", "/claims/"])
def test_a_teacher_confirms_before_becoming_a_pupil(path):
    """Also if the browser does not say why it follows a link, as over http."""
    teacher = OPEN.cookie(Credentials("teacher", "abc"))
    for method in ("GET", "HEAD"):
        status, headers, text = ask(OPEN, path, query=f"a=1&{PUPILS}", cookie=teacher, method=method)
        assert (status, "set-cookie" in headers) == (200, False)
    assert f'<a href="{path}?a=1">Stay the teacher</a>' in text
    (action,) = re.findall('<form method="post" action="([^"]*)">', text)
    path, _, query = html.unescape(action).partition("?")
    agreed = cookie_of(ask(OPEN, path, query=query, cookie=teacher, method="POST")[1])
    assert OPEN.card(agreed) == Credentials("pupil", "abc")
    assert OPEN.card(cookie_of(ask(OPEN, path, query=TEACHERS, cookie=agreed)[1])) == Credentials("teacher", "abc")


async def says_session(scope, receive, send):
    asked = Request({**scope, "type": "http"})
    found = [*asked.query_params.getlist("session_id"), *asked.headers.getlist("marimo-session-id")]
    found += [value for name, value in asked.headers.items() if name in ("cookie", "marimo-stable-session-id")]
    await JSONResponse(found)({**scope, "type": "http"}, receive, send)


@pytest.mark.parametrize(
    "card", [Credentials("pupil", "mallory"), Credentials("teacher", "mallory"), Credentials("pupil", "")]
)
def test_only_the_browser_that_opened_a_session_reaches_it(card):
    """Whether its name comes in the address or in a header."""

    def found(of: Credentials, **asked) -> list[str]:
        check = AccessCheck(says_session, OPEN, "class-1")
        return json.loads(asyncio.run(asking(check, "/claims/", cookie=OPEN.cookie(of), **asked))[2])

    for said in ("s_abc123", "ü", ""):
        escaped = urlencode({"session_id": said})
        (own,) = found(Credentials("pupil", "alice"), query=escaped)
        assert found(Credentials("teacher", "alice"), query=f"a=1&{escaped}") == [own], "in whatever role"
        for query in (escaped, escaped.replace("_", "%5F"), f"session_id=x&{escaped}", f"session_id={own}"):
            assert own not in found(card, query=query)
    (own,) = found(Credentials("pupil", "alice"), query="session_id=s_abc123")
    assert found(Credentials("pupil", "alice"), marimo_session_id="s_abc123") == [own], "page and WebSocket agree"
    for said in ("s_abc123", own):
        assert own not in found(card, marimo_session_id=said, marimo_stable_session_id=own)


@pytest.mark.parametrize("token", ["", "x", "é", OPEN.token("pupil")])
def test_an_invalid_link_is_refused(token):
    status, headers, text = ask(OPEN, query=f"teacher={token}")
    assert status == 403
    assert "Expected the teacher link as the server printed it" in text
    assert "set-cookie" not in headers


@pytest.mark.parametrize("keys", [BY_LINK, BY_PASSWORD], ids=["link", "password"])
def test_a_closed_server_refuses_visitors_without_a_cookie(keys):
    status, headers, _ = ask(keys, "/claims/", "task.size=8")
    assert (status, headers["location"]) == (303, "/enter?next=/claims/%3Ftask.size%3D8")
    assert ask(keys, "/assets/x.js", accept="*/*")[0] == 401
    assert ask(keys, "/claims/api/kernel/instantiate", method="POST")[0] == 401
    asked = ask(keys, "/enter", "next=/claims/")[2]
    assert ('<input id="password"' in asked) == bool(keys.password)
    said = answer(AccessCheck(says_who, keys, "class-1"), "/claims/ws", kind="websocket")
    assert said == [{"type": "websocket.close", "code": 1008}]


def test_only_the_password_gives_access_and_leads_to_the_wanted_page():
    body = b"password=correct+horse&next=%2Fclaims%2F%3Ftask.size%3D8"
    for cookie, role in (("", "pupil"), (BY_PASSWORD.cookie(Credentials("teacher", "abc")), "teacher")):
        status, headers, _ = ask(BY_PASSWORD, "/enter", method="POST", body=body, cookie=cookie)
        assert (status, headers["location"]) == (303, "/claims/?task.size=8")
        card = BY_PASSWORD.card(cookie_of(headers))
        assert card is not None
        assert card.role == role
    status, headers, text = ask(BY_PASSWORD, "/enter", method="POST", body=b"password=wrong&next=/claims/")
    assert (status, "set-cookie" in headers) == (403, False)
    assert "Wrong password" in text
    assert 'value="/claims/"' in text
    for keys in (BY_PASSWORD, BY_LINK, OPEN):
        status, headers, _ = ask(keys, "/enter", method="POST", body=b"password=" + b"x" * 5_000)
        assert (status, headers["connection"]) == (413, "close")


@pytest.mark.parametrize("aim", ["//evil.example", "/\\evil.example", "http://evil.example", "", "/\r\nx"])
def test_the_entrance_redirects_to_this_site_only(aim):
    body = f"password=correct+horse&next={aim}".encode()
    assert ask(BY_PASSWORD, "/enter", method="POST", body=body)[1]["location"] == "/"


@pytest.mark.parametrize("path", ["/enter", "/claims/api/kernel/set_ui_element_value"])
def test_a_client_that_disconnects_while_sending_is_not_a_failure(path):
    async def reads(scope, receive, send):
        await Request(scope, receive).body()

    behind = AccessCheck(reads, BY_PASSWORD, "class-1")
    cookie = "" if path == "/enter" else BY_PASSWORD.cookie(Credentials("pupil", "abc"))
    asked = asking(Gate(behind, {}), path, method="POST", body=b"password=", cookie=cookie, ends="hangs up")
    assert asyncio.run(asked)[0] == 0


RIGHT, WRONG = b"password=correct+horse", b"password=wrong"


async def entering(check, body=RIGHT, client="10.6.6.6", **others):
    """Return the status, and the seconds until the answer."""
    began = time.monotonic()
    status, *_ = await asking(check, "/enter", method="POST", body=body, client=client, **others)
    return status, time.monotonic() - began


@pytest.mark.parametrize("client", ["10.6.6.6", "10.0.0.2"])
def test_the_right_password_works_while_others_guess(monkeypatch, client):
    """From the guessers' address it waits for earlier requests, from another address only for the current one."""
    monkeypatch.setattr(access, "AFTER_WRONG_S", 0.02)

    async def attack():
        check = AccessCheck(says_who, BY_PASSWORD, "class-1")

        async def guess():
            while True:
                assert (await entering(check, WRONG))[0] == 403

        guessers = [asyncio.create_task(guess()) for _ in range(10)]
        await asyncio.sleep(0.05)
        for _ in range(2):
            status, took_s = await entering(check, client=client)
            assert status == 303
            assert took_s < (1.0 if client == "10.6.6.6" else 5 * access.AFTER_WRONG_S)
        assert not any(one.done() for one in guessers)
        for one in guessers:
            one.cancel()
        await asyncio.gather(*guessers, return_exceptions=True)

    asyncio.run(attack())


@pytest.mark.parametrize("n_addresses", [1, 20])
def test_password_guesses_are_limited_to_ten_a_second(monkeypatch, n_addresses):
    assert access.AFTER_WRONG_S > 0.1
    monkeypatch.setattr(access, "AFTER_WRONG_S", 0.02)

    async def attack():
        check, began = AccessCheck(says_who, BY_PASSWORD, "class-1"), time.monotonic()
        answers = [entering(check, WRONG, f"10.0.0.{number % n_addresses}") for number in range(20)]
        assert {status for status, _ in await asyncio.gather(*answers)} == {403}
        assert time.monotonic() - began > 19 * access.AFTER_WRONG_S

    asyncio.run(attack())


def test_a_class_with_the_right_password_does_not_wait():
    async def enter():
        check = AccessCheck(says_who, BY_PASSWORD, "class-1")
        return await asyncio.gather(*(entering(check) for _ in range(30)))

    began = time.monotonic()
    assert {status for status, _ in asyncio.run(enter())} == {303}
    assert time.monotonic() - began < 1.0


def test_disconnected_clients_do_not_occupy_the_queue():
    """Otherwise a guesser who ignores the answers could fill the queue."""

    async def attack():
        check = AccessCheck(says_who, BY_PASSWORD, "class-1")
        await entering(check, WRONG)
        gone = [asyncio.create_task(entering(check, WRONG, ends="http.disconnect")) for _ in range(100)]
        await asyncio.sleep(0)
        status, took_s = await entering(check)
        assert (status, took_s < 5 * access.AFTER_WRONG_S) == (303, True)
        await asyncio.gather(*gone)

    asyncio.run(attack())


@given(st.text(), st.text())
def test_only_the_exact_password_is_accepted(password, said):
    assert Keys(SECRET, password).fits(said) == (password == said and password != "")


@given(st.text(max_size=200))
def test_invented_cookies_are_rejected(cookie):
    assert OPEN.card(cookie) is None


def test_a_cookie_is_invalid_on_other_servers_and_after_it_expires(monkeypatch):
    cookie = OPEN.cookie(Credentials("teacher", "abc"))
    assert OPEN.card(cookie) == Credentials("teacher", "abc")
    assert Keys(b"t" * 32).card(cookie) is None
    assert BY_LINK.card(cookie) is None
    assert Keys(SECRET, "another password").card(BY_PASSWORD.cookie(Credentials("teacher", "abc"))) is None
    assert OPEN.card(("A" if cookie[0] != "A" else "B") + cookie[1:]) is None
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + access.CARD_S + 2)
    assert OPEN.card(cookie) is None


@pytest.mark.parametrize("damaged", [None, b"", b"short", b"long" * 32])
def test_the_secret_is_private_persistent_and_replaced_if_damaged(tmp_path, damaged):
    file = tmp_path / "secret"
    if damaged is not None:
        file.write_bytes(damaged)
    first = kept_secret(file)
    assert kept_secret(file) == first == file.read_bytes()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    keys = Keys(first, PASSWORD)
    assert "secret" not in repr(keys)
    assert PASSWORD not in repr(keys)


def test_a_secret_that_cannot_be_stored_is_made_anew(tmp_path):
    assert len(kept_secret(tmp_path)) == 32
    assert kept_secret(tmp_path) != kept_secret(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_bad_password_file_is_reported(tmp_path):
    file = tmp_path / "password"
    with pytest.raises(ValueError, match="cannot be read"):
        password_of(file)
    file.write_text("short\n")
    with pytest.raises(ValueError, match=r"expected at least 8 characters in the first line of .*, got 5"):
        password_of(file)
    file.write_text("correct horse\nanother line\n")
    assert password_of(file) == "correct horse"


@pytest.mark.parametrize(
    "aim", ['/"><script>alert(1)</script>', "/?a='><img src=x onerror=alert(1)>", '/" autofocus x="']
)
def test_the_address_is_escaped_on_the_entrance_page(aim):
    for asked in (
        ask(BY_PASSWORD, "/enter", urlencode({"next": aim}))[2],
        ask(BY_PASSWORD, "/enter", method="POST", body=urlencode({"password": "wrong", "next": aim}).encode())[2],
    ):
        (hidden,) = re.findall(r'<input type="hidden" name="next" value=("[^"]*")>', asked)
        assert html.unescape(hidden[1:-1]) == aim
        assert "<script" not in asked
        assert "<img" not in asked


def limited_to(most: int) -> tuple[Capacity, SimpleNamespace]:
    clock = SimpleNamespace(now_s=0.0)
    return Capacity(most, lambda: clock.now_s), clock


def connected(capacity: Capacity, *viewers: str) -> list[asyncio.Event]:
    connections = [capacity.connect(viewer) for viewer in viewers]
    assert None not in connections
    return [connection for connection in connections if connection is not None]


def test_a_place_is_free_once_its_viewer_left_without_reloading():
    capacity, clock = limited_to(2)
    first, _ = connected(capacity, "a", "b")
    assert [capacity.hold(viewer) for viewer in ("c", "")] == [False, False]
    assert capacity.connect("c") is None
    capacity.disconnect(first)
    assert not capacity.hold("c"), "the place is kept for who may only reload"
    clock.now_s += access.RELOADING_S + 0.1
    assert capacity.hold("c")
    assert not capacity.hold("a")
    assert capacity.connect("c") is not None


def test_a_loading_page_holds_its_place_for_a_limited_time():
    capacity, clock = limited_to(1)
    assert capacity.hold("a")
    clock.now_s += access.LOADING_S - 1
    assert not capacity.hold("b")
    clock.now_s += 2
    assert capacity.hold("b")
    assert not capacity.hold("a")
    assert capacity.connect("b") is not None


def test_reloads_take_one_place():
    """The new WebSocket opens before or after the old one closes."""
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
    clock.now_s += access.RELOADING_S + 1
    assert capacity.hold("d")


def test_a_second_tab_is_allowed_while_there_is_room():
    capacity, _ = limited_to(3)
    first, _ = connected(capacity, "a", "a")
    assert not first.is_set()
    connected(capacity, "b", "a")
    assert first.is_set(), "the oldest of its own gives way"
    assert capacity.viewers == 3


def test_extra_tabs_give_way_to_new_viewers():
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
def test_viewers_never_exceed_the_places(most, moves):
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
    assert (b"refresh", str(access.REFRESH_S).encode()) in start["headers"]
    assert b"Places for viewers: 1. All are taken." in body["body"]
    assert answer(limit, "/claims/", "a") == [], "who has a place sees the page"
    assert answer(limit, "/", "b") == [], "the front page is for everybody"


def test_the_teacher_takes_no_place():
    capacity, clock = limited_to(1)
    (only,) = connected(capacity, "a")
    limit = LimitViewers(nothing, capacity)
    assert answer(limit, "/claims/", "t", role="teacher") == []
    assert answer(limit, "/claims/ws", "t", "websocket", "teacher") == []
    assert answer(limit, "/claims/ws_sync", "t", "websocket", "teacher") != []
    capacity.disconnect(only)
    clock.now_s += access.RELOADING_S + 1
    assert answer(limit, "/claims/", "t", role="teacher") == []
    assert capacity.hold("b"), "the teacher's page has taken none"


def test_other_endpoints_of_a_session_are_refused():
    limit = LimitViewers(nothing, limited_to(5)[0])
    for path in ("/claims/ws_sync", "/terminal/ws", "/claims/terminal/ws", "/ws", "/nowhere/ws"):
        assert answer(limit, path, kind="websocket") == [{"type": "websocket.close", "code": 1013}]
    assert answer(limit, "/claims/sse")[0]["status"] == 403
    assert answer(limit, "/claims/ws", kind="websocket") == [], "this one is let through"


def test_a_displaced_page_is_closed_once_and_sent_nothing_more():
    """The page is closed for good, so that two tabs do not take the place from each other forever."""
    capacity, said = limited_to(1)[0], []

    async def session(scope, receive, send):
        await send({"type": "websocket.accept"})
        assert (await receive())["type"] == "websocket.disconnect"
        await send({"type": "websocket.send", "text": "too late"})

    async def receive():
        """As in uvicorn, a close that the server sends also ends its own session."""
        while said[-1]["type"] != "websocket.close":
            await asyncio.sleep(0)
        return {"type": "websocket.disconnect", "code": 1000}

    async def send(message):
        said.append(message)

    async def play():
        limit = LimitViewers(session, capacity)
        scope = {"type": "websocket", "path": "/claims/ws", "meta": {"viewer": "a"}}
        first = asyncio.create_task(limit(scope, receive, send))
        while not said:
            await asyncio.sleep(0)
        assert capacity.connect("a") is not None
        await first

    asyncio.run(play())
    assert said == [{"type": "websocket.accept"}, {"type": "websocket.close", "code": 1000, "reason": access.FOR_GOOD}]
