"""Which requests are let in at all, how long they may be, what a browser may do with a page, and the log of all that.

marimo checks neither the origin of a WebSocket nor the requested host, so a page of any web site could open one here
and train with it, in the name of whoever looks at that page. And it reads a request's body whole, however long it is.
"""

import asyncio
import html
import ipaddress
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from urllib.parse import parse_qsl, urlencode, urlsplit

import psutil
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lib.site.pages import plain_page
from lib.ui.controls import MAX_DROPPED_BYTES
from lib.ui.notebooks import AS_PAGE, present_file, present_path

# The WebSocket's first line holds the page's settings, written anew, and must be shorter than 8,192 bytes.
MAX_SETTINGS_BYTES = 8_000
# Of a request's address and headers together: settings, once more in the referrer, and other servers' cookies. What is
# longer is not even read, since reading can take a time that grows with the square of the length.
MAX_HEAD_BYTES = 32 << 10
# No other page may show one of ours in a frame, whose buttons it could cover.
NOT_FRAMED = "frame-ancestors 'self'"
# Everything comes from this server. marimo's page holds scripts and styles inline, Vega compiles its expressions, and
# widgets and workers come as data: and blob: addresses; to whom anything is sent is what the policy restricts.
CONTENT_POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self' data: blob:",
        "worker-src 'self' blob:",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
        NOT_FRAMED,
    )
)
# marimo names its scripts and styles by a digest of their content: what a browser has, it need not ask for again,
# which through a tunnel costs a round trip for each of some hundred files.
HASHED = re.compile(r"/assets/[\w.-]+-[\w-]{8}\.(css|js|wasm|woff2)")
FOREVER = "private, max-age=31536000, immutable"
# Of the class site alone: its pages ask for no device, tell other sites nothing, and share no window with them.
CLASS_HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), serial=(), usb=()",
    "Referrer-Policy": "same-origin",
}
# They come in base64, four letters for three bytes, and in JSON with their names. deploy/nginx.conf knows it, too.
MAX_BODY_BYTES = MAX_DROPPED_BYTES // 3 * 4 + (4 << 20)
# A shorter body is let in whatever else is under way, so that no file is in the way of somebody's slider.
LARGE_BYTES = 1 << 20
# What a body takes at most while it is read, in bodies: its parts and the whole, then what is read from it. 2.75 were
# measured with files of 16 and 64 MiB.
COPIES = 3
# Of the server's 1.5 GiB; what the pages make of a file when they have it comes on top.
MAX_MEMORY_BYTES = 1280 << 20
COMPLETE_S = 300.0  # a body that never ends would keep others from theirs
RETRY_S = 10
# Browsers and nginx read no answer before they have sent everything, and no browser's text is longer than this. Whoever
# sends more, or does not say how much, is hung up on.
MAX_IGNORED_BYTES = 512 << 20
MAX_LOGGED = 200  # characters of a path


class Gate:
    """ASGI middleware: refuses requests of other sites and overlong ones, and sets the pages' headers.

    Args:
        app: Gets the requests that are let in.
        headers: Of each response, beside the one that forbids guessing types.
        hosts: Names of this server, beside localhost and addresses in digits; a request for any other name is refused,
            because somebody else's name may lead here too.
        first: The notebook that the editor opens, as a page, for a request that names none; empty for no editor.
    """

    def __init__(self, app: ASGIApp, headers: Mapping[str, str], hosts: Iterable[str] = (), first: str = "") -> None:
        self._app, self._headers, self._first = Uploads(app), headers, first
        self._hosts = {"localhost", *hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        answer = self._answer(scope)
        if answer is None:
            with suppress(ClientDisconnect):  # whoever hangs up while sending is told nothing
                await self._app(scope, receive, self._with_headers(scope, send))
        elif scope["type"] == "http":
            await answer(scope, receive, self._with_headers(scope, send))
        else:
            await send({"type": "websocket.close", "code": 1008})  # not accepted: the browser gets status 403

    def _answer(self, scope: Scope) -> Response | None:
        said = [scope["path"].encode(), *(part for header in scope["headers"] for part in header)]
        if (length := len(scope["query_string"])) > MAX_SETTINGS_BYTES:
            return _too_long(scope["path"][:MAX_HEAD_BYTES], length)
        # With the four signs around each header: many short ones take as long as a few long ones.
        if (length := sum(map(len, said)) + 4 * len(scope["headers"])) > MAX_HEAD_BYTES:
            return PlainTextResponse(
                f"Expected a path and headers of at most {MAX_HEAD_BYTES:,} bytes, got {length:,}; delete this site's"
                " cookies.",
                431,
            )
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._is_ours(host):
            names = ", ".join(sorted(self._hosts))
            return _refused(f"Expected {names} or an address in digits, got {host}; open this server by one of these.")
        if _comes_from_elsewhere(scope, headers):
            return _refused(
                "Expected a request of this server's own pages, got one of another site; open the page itself."
            )
        if _leaves_its_folder(scope["path"]):
            return PlainTextResponse("Expected the name of a file, got one that leads out of its folder.", 404)
        settings = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if (length := len(urlencode(settings))) > MAX_SETTINGS_BYTES:
            return _too_long(scope["path"], length)
        if (path := present_path(scope["path"])) != scope["path"]:  # marimo's own redirection forgets the settings
            return RedirectResponse(f"{path}?{urlencode(settings)}", 308)
        if self._first and path == "/":
            said = dict(settings)
            wanted = {**said, "file": present_file(said.get("file", self._first))}
            if "file" not in said:
                wanted.setdefault(*AS_PAGE)
            if wanted != said:
                return RedirectResponse(f"/?{urlencode(wanted, safe='/')}", 303)
        return None

    def _is_ours(self, host: str) -> bool:
        name = ""
        try:
            name = urlsplit(f"//{host}").hostname or ""
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._hosts
        return True

    def _with_headers(self, scope: Scope, send: Send) -> Send:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update({**self._headers, "X-Content-Type-Options": "nosniff"})
                if message["status"] == 200 and HASHED.search(scope["path"]):
                    headers["Cache-Control"] = FOREVER
            await send(message)

        return sending


def _comes_from_elsewhere(scope: Scope, headers: Headers) -> bool:
    """Whether a page of another site asks. Browsers say so; whoever is no browser asks in nobody's name."""
    origin = headers.get("origin")
    if origin is not None:
        return origin.partition("://")[2].lower() != headers.get("host", "").lower()
    followed_a_link = scope.get("method") == "GET" and headers.get("sec-fetch-mode") == "navigate"
    return headers.get("sec-fetch-site") in ("cross-site", "same-site") and not followed_a_link


def _leaves_its_folder(path: str) -> bool:
    """Whether a file is asked for by what is no name, which marimo notices only after it has begun to answer."""
    _, asked, name = path.partition("/@file/")
    return bool(asked) and re.fullmatch(r"\d+-[\w.-]+|empty\.txt", name) is None


def _refused(sentence: str) -> Response:
    return PlainTextResponse(sentence, 403)


def _too_long(path: str, length: int) -> Response:
    return plain_page(
        "This address is too long",
        f"<h1>This address is too long</h1><p>Expected at most {MAX_SETTINGS_BYTES:,} bytes of settings, got"
        f' {length:,}. Ask for the link once more, or <a href="{html.escape(path)}">open the page with its usual'
        " settings</a>.</p>",
        414,
    )


class Uploads:
    """ASGI middleware: refuses bodies that are too long, too slow, or for which there is no memory now.

    Args:
        app: Gets all requests, and of their bodies what is let in.
        memory_bytes: What the server's process holds.
    """

    def __init__(self, app: ASGIApp, memory_bytes: Callable[[], int] | None = None) -> None:
        self._app = app
        self._memory_bytes = memory_bytes or (lambda: psutil.Process().memory_info().rss)
        self._under_way_bytes = 0  # large bodies that are being read

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _Body(declared_bytes(scope), receive, send, self.reserve)
        try:
            if body.refusal is None:
                await self._app(scope, body.receive, body.send)
        except Exception:
            if body.refusal is None:  # else it is told that the viewer has gone
                raise
        finally:
            self._under_way_bytes -= body.reserved_bytes
        if body.refusal is not None and not body.answered:
            await body.ignore_rest()
            await body.refusal(scope, receive, send)

    def reserve(self, more_bytes: int) -> bool:
        """Reserve memory for so much more of a body; whether there was any."""
        wanted = self._memory_bytes() + COPIES * (self._under_way_bytes + more_bytes)
        if wanted > MAX_MEMORY_BYTES:
            return False
        self._under_way_bytes += more_bytes
        return True


class _Body:
    """The body of one request, as far as it has come; `refusal` is what is answered in the application's place."""

    def __init__(self, declared_bytes: int, receive: Receive, send: Send, reserve: Callable[[int], bool]) -> None:
        self._declared_bytes, self._receive, self._send, self._reserve = declared_bytes, receive, send, reserve
        self._came_bytes, self._is_complete, self._until_s = 0, False, time.monotonic() + COMPLETE_S
        self.reserved_bytes, self.answered = 0, False
        self.refusal: Response | None = self._too_long()

    async def receive(self) -> Message:
        """The next part; for the application the viewer has gone where nothing more is let in."""
        if self._is_complete:
            return await self._receive()
        # Asked for only here, when whoever sends it has been let in by all who come first.
        self.refusal = self._without_room()
        if self.refusal is None:
            message = await self._next()
            self.refusal = self.refusal or self._too_long() or self._without_room()
            if self.refusal is None:
                return message
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Send what the application answers, unless it was told that the viewer has gone."""
        if self.refusal is None:
            self.answered = True
            await self._send(message)

    async def ignore_rest(self) -> None:
        """Read what is still to come, and keep none of it, where that lets whoever sends it hear the answer."""
        while self._is_heard_out and not self._is_complete:
            await self._next()

    @property
    def _is_heard_out(self) -> bool:
        return 0 < self._declared_bytes <= MAX_IGNORED_BYTES

    async def _next(self) -> Message:
        message: Message = {"type": "http.disconnect"}
        try:
            async with asyncio.timeout(self._until_s - time.monotonic()):
                message = await self._receive()
        except TimeoutError:
            self.refusal = self._answer(
                408,
                f"Expected a file within {COMPLETE_S:.0f} s, got a part of it; drop a smaller one.",
                {"Connection": "close"},
            )
        self._is_complete = not message.get("more_body", False)
        self._came_bytes += len(message.get("body", b""))
        return message

    @property
    def _known_bytes(self) -> int:
        return max(self._declared_bytes, self._came_bytes)

    def _too_long(self) -> Response | None:
        if self._known_bytes <= MAX_BODY_BYTES:
            return None
        return self._answer(
            413,
            f"Expected files of at most {MAX_DROPPED_BYTES >> 20} MiB together, got"
            f" {'' if self._declared_bytes else 'more than '}{_file_mib(self._known_bytes):,.0f} MiB; bring less, or"
            " pack it.",
        )

    def _without_room(self) -> Response | None:
        more_bytes = self._known_bytes - self.reserved_bytes
        if self._known_bytes <= LARGE_BYTES or more_bytes == 0:
            return None
        if self._reserve(more_bytes):
            self.reserved_bytes += more_bytes
            return None
        return self._answer(
            503,
            f"Expected a file for which the server has memory now, got one of {_file_mib(self._known_bytes):,.0f} MiB"
            " beside those of others; drop it again in a while, or a smaller one.",
            {"Retry-After": str(RETRY_S)},
        )

    def _answer(self, status: int, sentence: str, headers: dict[str, str] | None = None) -> Response:
        hangs_up = {} if self._is_heard_out else {"Connection": "close"}
        # marimo's page shows what is called `detail`.
        return JSONResponse({"detail": sentence}, status, {**(headers or {}), **hangs_up})


def declared_bytes(scope: Scope) -> int:
    """How long a request says that its body is; 0 where it does not say."""
    said = Headers(scope=scope).get("content-length", "")
    return int(said) if said.isdecimal() else 0


def _file_mib(body_bytes: int) -> float:
    return body_bytes * 3 / 4 / 2**20


class Journal:
    """ASGI middleware: a line of JSON for each thing that happens. No addresses, cookies or settings: a path says which
    page was asked for, and by nobody.

    Args:
        app: Gets all requests.
        write: Gets a line, without its end.
    """

    def __init__(self, app: ASGIApp, write: Callable[[str], None]) -> None:
        self._app, self._write = app, write

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        began, status = time.monotonic(), 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "websocket.accept":
                status = 101
                self._note("websocket opened", scope["path"], status, time.monotonic() - began)
            elif message["type"] == "websocket.close" and not status:
                status = 403
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            event = "request" if scope["type"] == "http" else "websocket closed" if status == 101 else "refused"
            self._note(event, scope["path"], status, time.monotonic() - began)

    def _note(self, event: str, path: str, status: int, spent_s: float) -> None:
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "event": event,
            "path": path[:MAX_LOGGED],
            "status": status,
            "seconds": round(spent_s, 3),
        }
        self._write(json.dumps(line))
