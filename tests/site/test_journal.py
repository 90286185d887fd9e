"""The log: a line of JSON an event, which says nothing about who it was."""

import asyncio
import json

from lib.site.journal import MAX_PATH, Journal


def lines(scope, *sent) -> list[dict]:
    written: list[str] = []

    async def app(scope, receive, send):
        for message in sent:
            await send(message)

    async def send(message): ...

    asyncio.run(Journal(app, written.append)(scope, send, send))  # type: ignore[arg-type]
    assert all("\n" not in line for line in written)
    return [json.loads(line) for line in written]


def test_a_request_is_a_line_without_settings_cookies_and_address():
    scope = {
        "type": "http",
        "path": "/claims/",
        "query_string": b"class=SECRET",
        "headers": [(b"cookie", b"SECRET")],
        "client": ("10.0.0.99", 1),
    }
    (line,) = lines(scope, {"type": "http.response.start", "status": 200})
    assert list(line) == ["time", "event", "path", "status", "seconds"]
    assert (line["event"], line["path"], line["status"]) == ("request", "/claims/", 200)
    assert "SECRET" not in json.dumps(line)
    assert "10.0.0.99" not in json.dumps(line)


def test_a_websocket_is_noted_when_it_opens_and_when_it_closes():
    scope = {"type": "websocket", "path": "/claims/ws"}
    opened, closed = lines(scope, {"type": "websocket.accept"}, {"type": "websocket.close"})
    assert (opened["event"], opened["status"]) == ("websocket opened", 101)
    assert closed["event"] == "websocket closed"


def test_a_websocket_that_is_refused_is_one_line():
    (line,) = lines({"type": "websocket", "path": "/x"}, {"type": "websocket.close"})
    assert (line["event"], line["status"]) == ("refused", 403)


def test_a_path_cannot_forge_a_line():
    (line,) = lines({"type": "http", "path": "/\n{}" + "x" * 1_000}, {"type": "http.response.start", "status": 404})
    assert len(line["path"]) == MAX_PATH
