"""Request bodies: limits of length and of memory, and the answers beyond them; and the log, which is anonymous."""

import asyncio
import http.client
import json
import re
import threading
from contextlib import closing

import pytest
import uvicorn
from marimo._server.errors import handle_error
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse

from benchmarks.browser import free_port
from lib import ROOT
from lib.site import gate
from lib.site.gate import COPIES, LARGE_BYTES, MAX_BODY_BYTES, MAX_IGNORED_BYTES, MAX_MEMORY_BYTES, Journal, Uploads
from tests.site.test_server import wait_until_open

CHUNK = bytes(1 << 20)
FIT = MAX_MEMORY_BYTES // (COPIES * MAX_BODY_BYTES)  # bodies of the largest size, if the server holds nothing else


async def reading(scope, receive, send):
    """Read the whole body, whatever its length, and answer a failure as marimo does."""
    try:
        answer = PlainTextResponse(f"{len(await Request(scope, receive).body())} read")
    except HTTPException as error:
        answer = await handle_error(Request(scope), error)
    await answer(scope, receive, send)


class Sender:
    def __init__(self, n_bytes: int, declares: bool = True, stalls: bool = False) -> None:
        said = [(b"content-length", str(n_bytes).encode())] if declares else []
        self.scope = {"type": "http", "method": "POST", "path": "/", "headers": said}
        self._left_bytes, self._stalls, self.asked_bytes = n_bytes, stalls, 0
        self.sent: list[dict] = []

    async def receive(self):
        await asyncio.sleep(0)
        if self._stalls and self.asked_bytes:
            await asyncio.Event().wait()
        part = CHUNK[: self._left_bytes]
        self._left_bytes -= len(part)
        self.asked_bytes += len(part)
        return {"type": "http.request", "body": part, "more_body": self._left_bytes > 0}

    async def send(self, message):
        self.sent.append(message)

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def answer(self) -> tuple[int, str]:
        start, *bodies = self.sent
        return start["status"], b"".join(one["body"] for one in bodies).decode()


def together(*senders: Sender, app=reading, memory_bytes: int = 0) -> None:
    limited = Uploads(app, lambda: memory_bytes)

    async def play():
        await asyncio.gather(*(limited(one.scope, one.receive, one.send) for one in senders))

    asyncio.run(play())
    assert limited._under_way_bytes == 0, "what was reserved is free again"


def test_a_file_of_the_largest_size_passes_in_base64():
    around = json.dumps({"objectIds": ["x"], "values": [[["x" * 1_000, ""]]]})
    n_bytes = len(around) + -(-gate.MAX_DROPPED_BYTES // 3) * 4
    assert n_bytes < MAX_BODY_BYTES
    for declares in (True, False):
        together(sender := Sender(n_bytes, declares))
        assert sender.answer == (200, f"{n_bytes} read")


@pytest.mark.parametrize(
    ("n_bytes", "says", "asked_bytes", "hangs_up"),
    [
        (2 << 30, 2 << 30, len(CHUNK), True),
        (2 << 30, None, MAX_BODY_BYTES + len(CHUNK), True),
        (2 << 30, 3, MAX_BODY_BYTES + len(CHUNK), False),
        (MAX_IGNORED_BYTES, MAX_IGNORED_BYTES, len(CHUNK), False),  # browsers read the reason after sending all
        (MAX_IGNORED_BYTES + 1, MAX_IGNORED_BYTES + 1, len(CHUNK), True),
    ],
)
def test_a_body_too_long_is_refused_whatever_length_it_declares(n_bytes, says, asked_bytes, hangs_up):
    sender = Sender(n_bytes)
    sender.scope["headers"] = [] if says is None else [(b"content-length", str(says).encode())]
    together(sender)
    status, said = sender.answer
    assert (status, "connection" in sender.headers) == (413, hangs_up)
    assert json.loads(said)["detail"].startswith("Expected files of at most 96 MiB together, got ")
    assert sender.asked_bytes <= asked_bytes


def test_bodies_beyond_the_memory_are_told_to_retry():
    many, sliders = [Sender(MAX_BODY_BYTES) for _ in range(FIT + 2)], [Sender(100) for _ in range(9)]
    together(*many, *sliders)
    assert [one.answer[0] for one in many] == [200] * FIT + [503] * 2
    assert all(one.answer == (200, "100 read") for one in sliders)
    assert many[-1].headers["retry-after"] == str(gate.RETRY_S)
    assert "the server's free memory, got one of 99 MiB" in json.loads(many[-1].answer[1])["detail"]


def test_bodies_of_undeclared_length_are_stopped_at_the_memory_limit():
    many = [Sender(MAX_BODY_BYTES, declares=False) for _ in range(FIT + 3)]
    together(*many)
    statuses = [one.answer[0] for one in many]
    assert set(statuses) == {200, 503}
    assert COPIES * sum(one.asked_bytes for one in many if one.answer[0] == 200) <= MAX_MEMORY_BYTES


def test_memory_held_by_pages_counts_towards_the_limit():
    held_bytes = MAX_MEMORY_BYTES - COPIES * 2 * LARGE_BYTES
    for n_bytes, status in ((LARGE_BYTES, 200), (2 * LARGE_BYTES, 200), (2 * LARGE_BYTES + 1, 503)):
        together(sender := Sender(n_bytes), memory_bytes=held_bytes)
        assert sender.answer[0] == status
    together(sender := Sender(LARGE_BYTES), memory_bytes=2 * MAX_MEMORY_BYTES)
    assert sender.answer[0] == 200, "a short one is let in always"


def test_an_incomplete_body_times_out(monkeypatch):
    monkeypatch.setattr(gate, "COMPLETE_S", 0.05)
    together(sender := Sender(MAX_BODY_BYTES, stalls=True))
    status, said = sender.answer
    assert (status, "got only part of it" in said) == (408, True)


def test_nginx_has_the_same_limit_and_message_as_the_server():
    written = (ROOT / "deploy/nginx.conf").read_text()
    (limit_mib,) = re.findall(r"client_max_body_size (\d+)m;", written)
    assert 0 <= int(limit_mib) * 2**20 - MAX_BODY_BYTES < 2**20
    assert f"Expected files of at most {gate.MAX_DROPPED_BYTES >> 20} MiB together" in written


async def refusing(scope, receive, send):
    await PlainTextResponse("who are you?", 401)(scope, receive, send)


def test_nothing_is_reserved_for_a_body_that_the_application_does_not_read():
    together(sender := Sender(MAX_BODY_BYTES), app=refusing, memory_bytes=2 * MAX_MEMORY_BYTES)
    assert (sender.answer, sender.asked_bytes) == ((401, "who are you?"), 0)


def test_an_upload_that_breaks_off_frees_its_memory():
    async def breaking_off(_scope, receive, _send):
        await receive()
        raise ClientDisconnect

    limited, sender = Uploads(breaking_off, lambda: 0), Sender(MAX_BODY_BYTES)
    with pytest.raises(ClientDisconnect):
        asyncio.run(limited(sender.scope, sender.receive, sender.send))
    assert limited._under_way_bytes == 0


def test_a_refused_upload_is_read_by_the_server_before_its_answer():
    """Browsers read no answer before they have sent everything."""
    port = free_port()
    config = uvicorn.Config(Uploads(reading), port=port, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_until_open(f"http://127.0.0.1:{port}")
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            connection.request("POST", "/", bytes(MAX_BODY_BYTES + 1))
            answer = connection.getresponse()
            assert (answer.status, "at most 96 MiB" in json.loads(answer.read())["detail"]) == (413, True)
    finally:
        server.should_exit = True
        thread.join(30)


def events(kind, *sent) -> list[tuple[str, int]]:
    written: list[str] = []

    async def app(scope, receive, send):
        for message in sent:
            await send(message)

    async def send(message): ...

    scope = {"type": kind, "path": "/\n{}" + "x" * 1_000, "query_string": b"class=SECRET", "client": ("SECRET", 1)}
    scope["headers"] = [(b"cookie", b"SECRET")]
    asyncio.run(Journal(app, written.append)(scope, send, send))  # type: ignore[arg-type]
    assert not [line for line in written if "SECRET" in line or "\n" in line]
    found = [json.loads(line) for line in written]
    assert all(list(one) == ["time", "event", "path", "status", "seconds"] for one in found)
    assert all(len(one["path"]) == gate.MAX_LOGGED for one in found)
    return [(one["event"], one["status"]) for one in found]


def test_log_lines_are_anonymous_and_cannot_be_forged_by_a_path():
    opened, closed = {"type": "websocket.accept"}, {"type": "websocket.close"}
    assert events("http", {"type": "http.response.start", "status": 404}) == [("request", 404)]
    assert events("websocket", opened, closed) == [("websocket closed", 101)]
    assert events("websocket", closed) == [("refused", 403)]
