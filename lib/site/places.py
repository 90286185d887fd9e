"""Limits how many viewers watch at once: a WebSocket takes a place, and a page that finds none reloads until it does.

A browser is known by its card (`lib.site.access`). Its place is held while a page loads and while it reloads; where
all are taken, its new WebSocket replaces its oldest, and a new browser's the oldest of the one that has the most.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lib.site.plain_page import plain_page
from lib.ui.notebooks import OF_A_CLASS_SITE

MAX_VIEWERS = 120
LOADING_S = 30.0  # from a page's HTML to its WebSocket; a phone loads the scripts meanwhile
RELOADING_S = 8.0  # from a closed WebSocket to the next page's HTML
REFRESH_S = 5  # of the page that says “full”
FOR_GOOD = "MARIMO_SHUTDOWN"  # the reason after which marimo's page does not try to connect again
_PAGES = {notebook.path for notebook in OF_A_CLASS_SITE}
_SOCKETS = {f"{notebook.path}ws" for notebook in OF_A_CLASS_SITE}


class Capacity:
    """The places for viewers, and who has them. All in one thread, that of the server's event loop.

    Args:
        most: WebSockets at once.
        now: The clock, in seconds.
    """

    def __init__(self, most: int, now: Callable[[], float] = time.monotonic) -> None:
        self.most, self._now = most, now
        self._connections: dict[asyncio.Event, str] = {}  # the viewer of each open WebSocket, the oldest first
        self._held_until: dict[str, float] = {}  # of viewers without a WebSocket

    @property
    def viewers(self) -> int:
        """How many WebSockets are open."""
        return len(self._connections)

    def hold(self, viewer: str) -> bool:
        """Hold a place for this viewer's page while it loads; False where all are taken.

        Args:
            viewer: Empty for a browser without a card, for which no place is held.
        """
        now = self._now()
        self._held_until = {held: until for held, until in self._held_until.items() if until > now}
        if self._oldest(viewer) is None and viewer not in self._held_until and self._is_full:
            if (second := self._second_tab()) is None:
                return False
            if viewer:
                self._end(second)
        if viewer and self._oldest(viewer) is None:
            self._held_until[viewer] = now + LOADING_S
        return True

    def connect(self, viewer: str) -> asyncio.Event | None:
        """Take a place for a new WebSocket; None where all are taken.

        The event is set when a newer WebSocket takes the place. Pass it to `disconnect` in the end.
        """
        if not self.hold(viewer):
            return None
        self._held_until.pop(viewer, None)
        if self._is_full and (given_up := self._oldest(viewer) or self._second_tab()):
            self._end(given_up)
        replaced = asyncio.Event()
        self._connections[replaced] = viewer
        return replaced

    def disconnect(self, replaced: asyncio.Event) -> None:
        """The WebSocket has closed; if it was its viewer's last one, the place is held for a reload."""
        viewer = self._connections.pop(replaced, "")
        if viewer and self._oldest(viewer) is None:
            self._held_until[viewer] = self._now() + RELOADING_S

    def _end(self, connection: asyncio.Event) -> None:
        del self._connections[connection]
        connection.set()

    def _second_tab(self) -> asyncio.Event | None:
        """The oldest WebSocket of the viewer who has the most; None where nobody has two."""
        (most, n), *_ = [*Counter(filter(None, self._connections.values())).most_common(1), ("", 0)]
        return self._oldest(most) if n > 1 else None

    def _oldest(self, viewer: str) -> asyncio.Event | None:
        return next((one for one, other in self._connections.items() if viewer and other == viewer), None)

    @property
    def _is_full(self) -> bool:
        return len(self._connections) + len(self._held_until) >= self.most


class LimitViewers:
    """ASGI middleware: lets in as many viewers as there are places, and closes WebSockets that no notebook has.

    The teacher needs no place.

    Args:
        app: Gets the requests of those who have a place.
        capacity: Who has one.
    """

    def __init__(self, app: ASGIApp, capacity: Capacity) -> None:
        self._app, self._capacity = app, capacity

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, meta = scope.get("path", ""), scope.get("meta", {})
        viewer, is_teacher = meta.get("viewer", ""), meta.get("role") == "teacher"
        if scope["type"] == "websocket" and not (is_teacher and path in _SOCKETS):
            replaced = self._capacity.connect(viewer) if path in _SOCKETS else None
            if replaced is None:
                await send({"type": "websocket.close", "code": 1013})  # not accepted: the browser gets status 403
                return
            try:
                await self._app(scope, *_until(replaced, receive, send))
            finally:
                self._capacity.disconnect(replaced)
        elif path.endswith("/sse"):  # marimo's other way to open a session, which nobody counts
            refusal = "Expected a WebSocket, got a request for events; open the page itself."
            await PlainTextResponse(refusal, 403)(scope, receive, send)
        elif path in _PAGES and scope["method"] == "GET" and not (is_teacher or self._capacity.hold(viewer)):
            await _full(self._capacity.most)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _until(replaced: asyncio.Event, receive: Receive, send: Send) -> tuple[Receive, Send]:
    """Pass messages until `replaced` is set; then close the WebSocket, and tell the application that it is closed."""

    async def receiving() -> Message:
        message, closing = asyncio.ensure_future(receive()), asyncio.ensure_future(replaced.wait())
        try:
            await asyncio.wait((message, closing), return_when=asyncio.FIRST_COMPLETED)
            if message.done():
                return message.result()
            with suppress(Exception):  # it may have closed by itself meanwhile
                await send({"type": "websocket.close", "code": 1000, "reason": FOR_GOOD})
            return {"type": "websocket.disconnect", "code": 1000}
        finally:
            message.cancel()
            closing.cancel()

    async def sending(message: Message) -> None:
        if not replaced.is_set():
            await send(message)

    return receiving, sending


def _full(most: int) -> Response:
    page = plain_page(
        "Full",
        f"<h1>Full, for the moment</h1><p>Places for viewers: {most}. All are taken.</p><p>This page reloads every"
        f" {REFRESH_S} seconds, and opens the notebook as soon as there is room.</p>",
        503,
    )
    page.headers["Refresh"] = str(REFRESH_S)  # in <meta> it would fail axe's rule `meta-refresh`
    return page
