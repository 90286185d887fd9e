"""The door of the class site: passwords, links, cards and roles; and that a page learns its role from marimo."""

import asyncio
import html
import json
import os
import re
import stat
import threading
import time
from contextlib import contextmanager
from typing import cast
from urllib.parse import urlencode

import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse

from benchmarks.browser import free_port
from benchmarks.client import Viewer
from lib.site import access
from lib.site.access import Credentials, Door, Keys, kept_secret, password_of
from lib.site.gate import Gate
from lib.site.server import _Server
from lib.ui.uploads import Uploads
from tests.site.test_server import wait_until_open

SECRET, PASSWORD = b"s" * 32, "correct horse"
OPEN, BY_LINK, BY_PASSWORD = Keys(SECRET), Keys(SECRET, class_link=True), Keys(SECRET, PASSWORD)


async def says_who(scope, receive, send):
    await JSONResponse(scope["meta"])(scope, receive, send)


def ask(keys, path="/", query="", **asked):
    """Status, headers and text of what the door, or who is behind it, answers."""
    return asyncio.run(asking(Door(says_who, keys, "class-1"), path, query, **asked))


async def asking(
    door,
    path="/",
    query="",
    method="GET",
    cookie="",
    body=b"",
    accept="text/html",
    client="10.0.0.1",
    ends="http.request",
    **others,
):
    """`ends` is what comes after the body, or in its place."""
    said = []
    headers = [(b"host", b"localhost"), (b"accept", accept.encode()), (b"cookie", f"class-1={cookie}".encode())]
    headers += [(name.replace("_", "-").encode(), value.encode()) for name, value in others.items()]
    messages = [{"type": "http.request", "body": body, "more_body": ends == "hangs up"}]
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": headers,
        "client": (client, 1),
        "server": ("localhost", 80),
        "scheme": "http",
    }

    async def receive():
        if messages:
            return messages.pop()
        if ends == "http.request":
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message):
        said.append(message)

    await door(scope, receive, send)
    if not said:
        return 0, {}, ""
    text = b"".join(message.get("body", b"") for message in said[1:]).decode()
    return said[0]["status"], {name.decode(): value.decode() for name, value in said[0]["headers"]}, text


def card_of(keys, cookie) -> Credentials:
    card = keys.card(cookie)
    assert card is not None
    return card


def cookie_of(headers) -> str:
    return headers["set-cookie"].split("class-1=")[1].split(";")[0]


def test_an_open_server_makes_everybody_a_pupil():
    status, _, text = ask(OPEN)
    assert (status, json.loads(text)) == (200, {"role": "pupil", "viewer": ""})


@pytest.mark.parametrize("keys", [OPEN, BY_LINK, BY_PASSWORD], ids=["open", "link", "password"])
@pytest.mark.parametrize(("link", "role"), [("teacher", "teacher"), ("class", "pupil")])
def test_a_link_gives_a_role_and_leaves_the_address(keys, link, role):
    query = f"rate.epochs=4&{link}={keys.token(role)}&rate.count=2"
    status, headers, _ = ask(keys, "/mnist_training/", query)
    assert (status, headers["location"]) == (303, "/mnist_training/?rate.epochs=4&rate.count=2")
    assert "HttpOnly" in headers["set-cookie"]
    assert "SameSite=Lax" in headers["set-cookie"]
    status, _, text = ask(keys, "/", cookie=cookie_of(headers))
    assert status == 200
    assert json.loads(text)["role"] == role
    assert json.loads(text)["viewer"]


def test_who_takes_another_role_stays_the_same_viewer():
    pupil = cookie_of(ask(OPEN, query=f"class={OPEN.token('pupil')}")[1])
    teacher = cookie_of(ask(OPEN, query=f"teacher={OPEN.token('teacher')}", cookie=pupil)[1])
    assert card_of(OPEN, pupil).viewer == card_of(OPEN, teacher).viewer
    assert card_of(OPEN, teacher).role == "teacher"


PUPILS, TEACHERS = (f"{name}={OPEN.token(role)}" for name, role in access.LINKS.items())


@pytest.mark.parametrize("query", [PUPILS, TEACHERS, f"a=1&{PUPILS}"])
@pytest.mark.parametrize("dest", ["image", "iframe", "empty", "script", "embed"])
def test_a_page_follows_no_link_for_its_reader(query, dest):
    status, headers, _ = ask(OPEN, "/claims/", query=query, sec_fetch_dest=dest)
    assert (status, "set-cookie" in headers) == (403, False)
    assert ask(OPEN, "/claims/", query=query, sec_fetch_dest="document")[0] == 303


@pytest.mark.parametrize("path", ["/", "/claims/"])
def test_a_teacher_is_asked_before_becoming_a_pupil(path):
    """Also where no browser says what a link is followed for, as over http."""
    teacher = OPEN.cookie(Credentials("teacher", "abc"))
    for method in ("GET", "HEAD"):
        status, headers, text = ask(OPEN, path, query=f"a=1&{PUPILS}", cookie=teacher, method=method)
        assert (status, "set-cookie" in headers) == (200, False)
    assert f'<a href="{path}?a=1">Stay the teacher</a>' in text
    (action,) = re.findall('<form method="post" action="([^"]*)">', text)
    path, _, query = html.unescape(action).partition("?")
    agreed = ask(OPEN, path, query=query, cookie=teacher, method="POST")[1]
    assert card_of(OPEN, cookie_of(agreed)) == Credentials("pupil", "abc")


def test_a_teacher_who_enters_the_password_stays_one():
    teacher = BY_PASSWORD.cookie(Credentials("teacher", "abc"))
    headers = ask(BY_PASSWORD, "/enter", method="POST", body=b"password=correct+horse", cookie=teacher)[1]
    assert card_of(BY_PASSWORD, cookie_of(headers)).role == "teacher"


async def says_session(scope, receive, send):
    asked = Request({**scope, "type": "http"})
    found = [*asked.query_params.getlist("session_id"), *asked.headers.getlist("marimo-session-id")]
    found += [value for name, value in asked.headers.items() if name in ("cookie", "marimo-stable-session-id")]
    await JSONResponse(found)({**scope, "type": "http"}, receive, send)


@pytest.mark.parametrize(
    "card", [Credentials("pupil", "mallory"), Credentials("teacher", "mallory"), Credentials("pupil", "")]
)
def test_a_session_is_reached_by_the_browser_that_opened_it_alone(card):
    """By whatever of its names, in the address or in a header."""

    def found(of: Credentials, **asked) -> list[str]:
        door = Door(says_session, OPEN, "class-1")
        return json.loads(asyncio.run(asking(door, "/claims/", cookie=OPEN.cookie(of), **asked))[2])

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
def test_a_link_that_does_not_fit_is_refused_in_a_sentence(token):
    status, headers, text = ask(OPEN, query=f"teacher={token}")
    assert status == 403
    assert "Expected the teacher link as the server printed it" in text
    assert "set-cookie" not in headers


@pytest.mark.parametrize("keys", [BY_LINK, BY_PASSWORD], ids=["link", "password"])
def test_a_closed_server_lets_nobody_in_without(keys):
    status, headers, _ = ask(keys, "/claims/", "task.size=8")
    assert (status, headers["location"]) == (303, "/enter?next=/claims/%3Ftask.size%3D8")
    assert ask(keys, "/assets/x.js", accept="*/*")[0] == 401
    assert ask(keys, "/claims/api/kernel/instantiate", method="POST")[0] == 401
    asked = ask(keys, "/enter", "next=/claims/")[2]
    assert ('<input id="password"' in asked) == bool(keys.password)


def test_a_websocket_wants_a_card_where_the_door_is_closed():
    said = []

    async def send(message):
        said.append(message)

    scope = {"type": "websocket", "path": "/claims/ws", "headers": [], "query_string": b""}
    asyncio.run(Door(says_who, BY_LINK, "class-1")(scope, None, send))  # type: ignore[arg-type]
    assert said == [{"type": "websocket.close", "code": 1008}]


def test_the_password_opens_the_door_and_the_page_that_was_wanted():
    body = b"password=correct+horse&next=%2Fclaims%2F%3Ftask.size%3D8"
    status, headers, _ = ask(BY_PASSWORD, "/enter", method="POST", body=body)
    assert (status, headers["location"]) == (303, "/claims/?task.size=8")
    assert card_of(BY_PASSWORD, cookie_of(headers)).role == "pupil"


@pytest.mark.parametrize("aim", ["//evil.example", "/\\evil.example", "http://evil.example", "", "/\r\nx"])
def test_the_door_leads_nowhere_else(aim):
    body = f"password=correct+horse&next={aim}".encode()
    assert ask(BY_PASSWORD, "/enter", method="POST", body=body)[1]["location"] == "/"


def test_a_wrong_password_is_refused_in_a_sentence():
    status, headers, text = ask(BY_PASSWORD, "/enter", method="POST", body=b"password=wrong&next=/claims/")
    assert status == 403
    assert "This is not the password" in text
    assert 'value="/claims/"' in text
    assert "set-cookie" not in headers


def test_a_long_form_is_refused():
    assert ask(BY_PASSWORD, "/enter", method="POST", body=b"password=" + b"x" * 5_000)[0] == 413


@pytest.mark.parametrize("keys", [BY_PASSWORD, BY_LINK, OPEN], ids=["password", "link", "open"])
@pytest.mark.parametrize("declares", [access.MAX_FORM_BYTES + 1, 41_943_040, 80 << 20])
def test_no_memory_is_reserved_for_strangers_at_the_door(keys, declares):
    """By what a form says of its length; it is not even read."""
    reserved = []

    async def read(scope, receive, send):
        limited = Uploads(Door(says_who, keys, "class-1"), lambda: 0)
        limited.reserve = reserved.append  # type: ignore[assignment]
        await limited(scope, receive, send)

    status, headers, _ = asyncio.run(asking(read, "/enter", method="POST", content_length=str(declares)))
    assert (status, headers["connection"], reserved) == (413, "close", [])


@pytest.mark.parametrize("path", ["/enter", "/claims/api/kernel/set_ui_element_value"])
def test_who_hangs_up_while_sending_is_no_failure(path):
    async def reads(scope, receive, send):
        await Request(scope, receive).body()

    behind = Door(reads, BY_PASSWORD, "class-1")
    cookie = "" if path == "/enter" else BY_PASSWORD.cookie(Credentials("pupil", "abc"))
    asked = asking(Gate(behind, {}), path, method="POST", body=b"password=", cookie=cookie, ends="hangs up")
    assert asyncio.run(asked)[0] == 0


RIGHT, WRONG = b"password=correct+horse", b"password=wrong"


async def entering(door, body=RIGHT, client="10.6.6.6", **others):
    """Status, and seconds until the answer."""
    began = time.monotonic()
    status, *_ = await asking(door, "/enter", method="POST", body=body, client=client, **others)
    return status, time.monotonic() - began


@pytest.fixture
def quick_turns(monkeypatch):
    monkeypatch.setattr(access, "AFTER_WRONG_S", 0.02)


@pytest.mark.parametrize("client", ["10.6.6.6", "10.0.0.2"])
def test_the_right_password_is_let_in_while_others_guess(quick_turns, client):
    """At the same address after those that were sent before; at another one after the one that is looked at."""

    async def attack():
        door = Door(says_who, BY_PASSWORD, "class-1")

        async def guess():
            while True:
                assert (await entering(door, WRONG))[0] == 403

        guessers = [asyncio.create_task(guess()) for _ in range(10)]
        await asyncio.sleep(0.05)
        for _ in range(2):
            status, took_s = await entering(door, client=client)
            assert status == 303
            assert took_s < (1.0 if client == "10.6.6.6" else 5 * access.AFTER_WRONG_S)
        assert not any(one.done() for one in guessers)
        for one in guessers:
            one.cancel()
        await asyncio.gather(*guessers, return_exceptions=True)

    asyncio.run(attack())


@pytest.mark.parametrize("n_addresses", [1, 20])
def test_guesses_are_fewer_than_ten_a_second_in_all(quick_turns, n_addresses):
    async def attack():
        door, began = Door(says_who, BY_PASSWORD, "class-1"), time.monotonic()
        answers = [entering(door, WRONG, f"10.0.0.{number % n_addresses}") for number in range(20)]
        assert {status for status, _ in await asyncio.gather(*answers)} == {403}
        assert time.monotonic() - began > 19 * access.AFTER_WRONG_S

    asyncio.run(attack())


def test_less_than_ten_a_second_is_what_it_is():
    assert access.AFTER_WRONG_S > 0.1


def test_a_class_with_the_right_password_does_not_wait():
    async def enter():
        door = Door(says_who, BY_PASSWORD, "class-1")
        return await asyncio.gather(*(entering(door) for _ in range(30)))

    began = time.monotonic()
    assert {status for status, _ in asyncio.run(enter())} == {303}
    assert time.monotonic() - began < 1.0


def test_who_has_hung_up_takes_no_turn():
    """A guesser that waits for no answer would else fill all turns to come."""

    async def attack():
        door = Door(says_who, BY_PASSWORD, "class-1")
        await entering(door, WRONG)
        gone = [asyncio.create_task(entering(door, WRONG, ends="http.disconnect")) for _ in range(100)]
        await asyncio.sleep(0)
        status, took_s = await entering(door)
        assert (status, took_s < 5 * access.AFTER_WRONG_S) == (303, True)
        await asyncio.gather(*gone)

    asyncio.run(attack())


@given(st.text(), st.text())
def test_only_the_password_fits(password, said):
    assert Keys(SECRET, password).fits(said) == (password == said and password != "")


@given(st.text(max_size=200))
def test_no_invented_cookie_is_a_card(cookie):
    assert OPEN.card(cookie) is None


def test_a_card_is_void_elsewhere():
    """With another secret, once the server is closed, under another password, or changed by a letter."""
    cookie = OPEN.cookie(Credentials("teacher", "abc"))
    assert OPEN.card(cookie) == Credentials("teacher", "abc")
    assert Keys(b"t" * 32).card(cookie) is None
    assert BY_LINK.card(cookie) is None
    assert Keys(SECRET, "another password").card(BY_PASSWORD.cookie(Credentials("teacher", "abc"))) is None
    assert OPEN.card(("A" if cookie[0] != "A" else "B") + cookie[1:]) is None


def test_a_card_is_void_the_next_day(monkeypatch):
    cookie, now = OPEN.cookie(Credentials("pupil", "abc")), time.time()
    monkeypatch.setattr(time, "time", lambda: now + access.CARD_S + 2)
    assert OPEN.card(cookie) is None


def test_the_secret_is_the_owner_s_and_survives_a_restart(tmp_path):
    first = kept_secret(tmp_path / "secret")
    assert kept_secret(tmp_path / "secret") == first
    assert stat.S_IMODE(os.stat(tmp_path / "secret").st_mode) == 0o600
    assert "secret" not in repr(Keys(first, PASSWORD))
    assert PASSWORD not in repr(Keys(first, PASSWORD))


def test_a_secret_that_cannot_be_kept_is_made_anew(tmp_path):
    file = tmp_path / "secret"
    file.mkdir()
    assert len(kept_secret(file)) == 32
    assert kept_secret(file) != kept_secret(file)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("damaged", [b"", b"short", b"long" * 32])
def test_a_damaged_secret_is_replaced(tmp_path, damaged):
    file = tmp_path / "secret"
    file.write_bytes(damaged)
    assert kept_secret(file) == kept_secret(file) == file.read_bytes()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_password_file_says_what_is_wrong_with_it(tmp_path):
    file = tmp_path / "password"
    with pytest.raises(ValueError, match="cannot be read"):
        password_of(file)
    file.write_text("short\n")
    with pytest.raises(ValueError, match=r"expected at least 8 characters in the first line of .*, got 5"):
        password_of(file)
    file.write_text("correct horse\nanother line\n")
    assert password_of(file) == "correct horse"


NOTEBOOK = """
import marimo
app = marimo.App()

@app.cell
def who_experiment():
    import marimo as mo
    mo.Html(f"<p>role: {mo.app_meta().request.meta['role']}</p>")
    return
"""


@contextmanager
def serving_a_notebook(folder, keys):
    import marimo

    file = folder / "who.py"
    file.write_text(NOTEBOOK)
    site = marimo.create_asgi_app(quiet=True, skew_protection=True).with_app(path="/who", root=str(file)).build()
    port = free_port()
    config = uvicorn.Config(Door(site, keys, "class-1"), port=port, log_level="error")
    server = _Server(
        config, cast(Starlette, site), {}, ""
    )  # it ends marimo's sessions, which else would keep this process alive
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_until_open(f"http://127.0.0.1:{port}")
        yield f"http://127.0.0.1:{port}/who"
    finally:
        server.should_exit = server.force_exit = True
        thread.join(20)


@pytest.mark.slow
def test_a_page_learns_the_role_from_marimo(tmp_path):
    with serving_a_notebook(tmp_path, OPEN) as address:
        for cookie, role in (("", "pupil"), (OPEN.cookie(Credentials("teacher", "abc")), "teacher")):
            with Viewer(address, cookie=f"class-1={cookie}") as viewer:
                shown = viewer.wait(lambda viewer: viewer.frames.get("who_experiment"), 60, "the role")
                assert f"role: {role}" in shown.html


def test_it_is_a_request_of_starlette_that_the_form_is_read_from():
    """A body in many parts, as a slow connection sends it."""
    parts = [b"password=correct", b"+horse&ne", b"xt=/claims/"]

    async def receive():
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    scope = {"type": "http", "method": "POST", "path": "/enter", "headers": [], "query_string": b""}
    form = asyncio.run(access._form(Request(scope, receive)))
    assert form == {"password": "correct horse", "next": "/claims/"}


@pytest.mark.parametrize(
    "aim", ['/"><script>alert(1)</script>', "/?a='><img src=x onerror=alert(1)>", '/" autofocus x="']
)
def test_the_door_s_address_is_text_in_its_page(aim):
    for asked in (
        ask(BY_PASSWORD, "/enter", urlencode({"next": aim}))[2],
        ask(BY_PASSWORD, "/enter", method="POST", body=urlencode({"password": "wrong", "next": aim}).encode())[2],
    ):
        (hidden,) = re.findall(r'<input type="hidden" name="next" value=("[^"]*")>', asked)
        assert html.unescape(hidden[1:-1]) == aim
        assert "<script" not in asked
        assert "<img" not in asked
