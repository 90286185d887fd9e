"""Filters requests by origin, host and size, sets the pages' security headers, and logs.

marimo checks neither the origin of a WebSocket nor the requested host, so any web site's page could open one here and
train with it on its viewer's behalf. It also reads a request's whole body, whatever its length.
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
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lib.site.pages import plain_page
from lib.ui.controls import MAX_DROPPED_BYTES
from lib.ui.notebooks import AS_PAGE, present_file, present_path

# The WebSocket's request line contains the re-encoded settings, and must be shorter than 8,192 bytes.
MAX_SETTINGS_BYTES = 8_000
# Address and headers together: the settings, again in the referrer, and other servers' cookies. Longer ones are not
# parsed, because that can take quadratic time.
MAX_HEAD_BYTES = 32 << 10
# Prevents clickjacking: other sites' pages may not frame ours.
NOT_FRAMED = "frame-ancestors 'self'"
# Everything comes from this server. marimo's page has inline scripts and styles, Vega compiles its expressions, and
# widgets and workers load from data: and blob: addresses, so the policy mainly restricts where data can be sent.
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
# marimo's scripts and styles have a digest of their content in their names, so browsers can cache them forever. That
# saves a round trip, slow through a tunnel, for each of hundreds of files.
HASHED = re.compile(r"/assets/[\w.-]+-[\w-]{8}\.(css|js|wasm|woff2)")
FOREVER = "private, max-age=31536000, immutable"
# Class site only: its pages use no devices, send other sites no referrer, and share no window with them.
CLASS_HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), serial=(), usb=()",
    "Referrer-Policy": "same-origin",
}
# Files arrive as base64 (four letters for three bytes), in JSON with their names. deploy/nginx.conf has the same limit.
MAX_BODY_BYTES = MAX_DROPPED_BYTES // 3 * 4 + (4 << 20)
# Shorter bodies are always accepted, so that no upload delays another viewer's slider.
LARGE_BYTES = 1 << 20
# Peak memory of reading a body, as a multiple of its size: its parts and the whole, then the parsed content. 2.75 was
# measured with files of 16 and 64 MiB.
COPIES = 3
# Out of the server's 1.5 GiB; the pages need more once they have a file.
MAX_MEMORY_BYTES = 1280 << 20
COMPLETE_S = 300.0  # because a body that never ends would block other uploads
RETRY_S = 10
# Browsers and nginx read no response before they have sent everything, and no browser's text is longer than this. We
# close the connection if a body is longer, or its length undeclared.
MAX_IGNORED_BYTES = 512 << 20
HANGS_UP = {"Connection": "close"}
MAX_LOGGED = 200  # characters of a path


class Gate:
    """ASGI middleware: rejects cross-site and overlong requests, and sets the pages' headers.

    Args:
        app: Gets the accepted requests.
        headers: For each response, in addition to `nosniff`.
        hosts: This server's names besides localhost and IP addresses. Requests for other names are rejected, because
            a foreign domain may resolve to this server.
        first: The notebook that the editor opens, as a page, if a request names none; empty if this is not the editor.
    """

    def __init__(self, app: ASGIApp, headers: Mapping[str, str], hosts: Iterable[str] = (), first: str = "") -> None:
        self._app, self._headers, self._first = app, headers, first
        self._hosts = {"localhost", *hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._answer(scope) if scope["type"] in ("http", "websocket") else None
        if answer is None:
            with suppress(ClientDisconnect):
                await self._app(scope, receive, self._with_headers(scope, send))
        elif scope["type"] == "http":
            await answer(scope, receive, self._with_headers(scope, send))
        else:
            await send({"type": "websocket.close", "code": 1008})  # not accepted: the browser gets status 403

    def _answer(self, scope: Scope) -> Response | None:
        said = [scope["path"].encode(), *(part for header in scope["headers"] for part in header)]
        if (length := len(scope["query_string"])) > MAX_SETTINGS_BYTES:
            return _too_long(scope["path"][:MAX_HEAD_BYTES], length)
        # Include the four separators of each header, because many short ones take as long as a few long ones.
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
            return PlainTextResponse(
                f"Expected {names} or a numeric address, got {host}; open this server by one of these.", 403
            )
        if _comes_from_elsewhere(scope, headers):
            return PlainTextResponse(
                "Expected a request from this server's own pages, got one from another site; open the page itself.", 403
            )
        if _leaves_its_folder(scope["path"]):
            return PlainTextResponse("Expected a file name, got one that leads out of its folder.", 404)
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
    """Whether another site's page sent the request. Only browsers say so; other clients carry no viewer's cookie."""
    origin = headers.get("origin")
    if origin is not None:
        return origin.partition("://")[2].lower() != headers.get("host", "").lower()
    followed_a_link = scope.get("method") == "GET" and headers.get("sec-fetch-mode") == "navigate"
    return headers.get("sec-fetch-site") in ("cross-site", "same-site") and not followed_a_link


def _leaves_its_folder(path: str) -> bool:
    """Whether a requested file's name is invalid, which marimo detects only after starting its response."""
    _, asked, name = path.partition("/@file/")
    return bool(asked) and re.fullmatch(r"\d+-[\w.-]+|empty\.txt", name) is None


def _too_long(path: str, length: int) -> Response:
    return plain_page(
        "This address is too long",
        f"<h1>This address is too long</h1><p>Expected at most {MAX_SETTINGS_BYTES:,} bytes of settings, got"
        f' {length:,}. Ask for the link again, or <a href="{html.escape(path)}">open the page with its default'
        " settings</a>.</p>",
        414,
    )


class Uploads:
    """ASGI middleware: rejects bodies that are too long, too slow, or exceed the currently free memory.

    The application gets the refusal as an HTTPException while it reads the body, and sends it; uvicorn then discards
    the rest of the body. `memory_bytes` returns the memory in use by the server's process.
    """

    def __init__(self, app: ASGIApp, memory_bytes: Callable[[], int] | None = None) -> None:
        self._app = app
        self._memory_bytes = memory_bytes or (lambda: psutil.Process().memory_info().rss)
        self._under_way_bytes = 0  # large bodies that are being read

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "")
        declared_bytes, until_s = int(declared) if declared.isdecimal() else 0, time.monotonic() + COMPLETE_S
        came_bytes = reserved_bytes = 0
        is_complete = False

        async def receiving() -> Message:
            nonlocal came_bytes, reserved_bytes, is_complete
            if is_complete:
                return await receive()
            try:
                async with asyncio.timeout(until_s - time.monotonic()):
                    message = await receive()
            except TimeoutError as error:
                said = f"Expected a file within {COMPLETE_S:.0f} s, got only part of it; drop a smaller one."
                raise HTTPException(408, said, HANGS_UP) from error
            came_bytes += len(message.get("body", b""))
            is_complete = not message.get("more_body", False)
            reserved_bytes += self._reserve(declared_bytes, came_bytes, reserved_bytes)
            return message

        try:
            await self._app(scope, receiving, send)
        finally:
            self._under_way_bytes -= reserved_bytes

    def _reserve(self, declared_bytes: int, came_bytes: int, reserved_bytes: int) -> int:
        """Reserve memory for the rest of a body, and return how many bytes. Raises HTTPException."""
        n_bytes = max(declared_bytes, came_bytes)
        hangs_up = {} if 0 < declared_bytes <= MAX_IGNORED_BYTES else HANGS_UP
        if n_bytes > MAX_BODY_BYTES:
            raise HTTPException(
                413,
                f"Expected files of at most {MAX_DROPPED_BYTES >> 20} MiB together, got at least"
                f" {_file_mib(n_bytes):,.0f} MiB; use smaller files, or zip them.",
                hangs_up,
            )
        more_bytes = n_bytes - reserved_bytes if n_bytes > LARGE_BYTES else 0
        if more_bytes and self._memory_bytes() + COPIES * (self._under_way_bytes + more_bytes) > MAX_MEMORY_BYTES:
            raise HTTPException(
                503,
                f"Expected a file that fits into the server's free memory, got one of {_file_mib(n_bytes):,.0f} MiB"
                " while others upload theirs; drop it again later, or drop a smaller one.",
                {"Retry-After": str(RETRY_S), **hangs_up},
            )
        self._under_way_bytes += more_bytes
        return more_bytes


def _file_mib(body_bytes: int) -> float:
    return body_bytes * 3 / 4 / 2**20


class Journal:
    """ASGI middleware that logs a line of JSON when a request or a WebSocket ends.

    It holds the path, but no client address, cookies or settings.
    """

    def __init__(self, app: ASGIApp, write: Callable[[str], None]) -> None:
        self._app, self._write = app, write

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began, status = time.monotonic(), 0 if scope["type"] == "http" else 403

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "websocket.accept":
                status = 101
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            line = {
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "event": "request" if scope["type"] == "http" else "websocket closed" if status == 101 else "refused",
                "path": scope["path"][:MAX_LOGGED],
                "status": status,
                "seconds": round(time.monotonic() - began, 3),
            }
            self._write(json.dumps(line))
