"""How much of what a page sends is let in: a dropped file, and of all viewers as many as the server has memory for.

marimo reads a request's body whole, however long it is; `max_size` of its field for files only the browser knows.
"""

import asyncio
import time
from collections.abc import Callable

import psutil
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Of the files that are dropped at once, which the page holds in memory; a larger one is named by its path.
MAX_DROPPED_BYTES = 96 << 20
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


def own_memory_bytes() -> int:
    """What this process holds of the machine's memory."""
    return psutil.Process().memory_info().rss


class Uploads:
    """ASGI middleware: refuses bodies that are too long, too slow, or for which there is no memory now.

    Args:
        app: Gets all requests, and of their bodies what is let in.
        memory_bytes: What the server's process holds.
    """

    def __init__(self, app: ASGIApp, memory_bytes: Callable[[], int] = own_memory_bytes) -> None:
        self._app, self._memory_bytes = app, memory_bytes
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
