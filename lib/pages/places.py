"""How many may watch at once: a place for each WebSocket, and a line of those who wait for one, in order of arrival.

A browser is told by its card (`lib.pages.access`). Whoever reloads keeps the place: it is held for `RELOADING_S` after
the WebSocket has closed, and where all are taken, a browser's new WebSocket replaces its oldest.
"""

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lib.pages.notebooks import NOTEBOOKS
from lib.pages.plain_page import plain_page

MAX_VIEWERS = 120
LOADING_S = 30.0  # from a page's HTML to its WebSocket; a phone loads the scripts meanwhile
RELOADING_S = 8.0  # from a closed WebSocket to the next page's HTML
ASKED_EVERY_S = 2.0  # a page in the line asks so often whether it may come in
PRESENT_S = 10.0  # whoever has not asked for so long is passed over …
LEFT_S = 90.0  # … and after that has lost the place in the line: browsers ask once a minute for a hidden tab
ASK = "/place"
FOR_GOOD = "MARIMO_SHUTDOWN"  # the reason after which marimo's page does not try to connect again
_PAGES = {notebook.path for notebook in NOTEBOOKS}
_SOCKETS = {f"{notebook.path}ws" for notebook in NOTEBOOKS}


@dataclass(eq=False)
class Seat:
    """One open WebSocket; `left` is set when another one of the same browser takes its place."""

    viewer: str
    left: asyncio.Event = field(default_factory=asyncio.Event)


class Places:
    """Who has a place, and who waits for one. All in one thread, that of the server's event loop.

    Args:
        most: WebSockets at once.
        now: The clock, in seconds.
    """

    def __init__(self, most: int, now: Callable[[], float] = time.monotonic) -> None:
        self.most, self._now = most, now
        self._seats: list[Seat] = []  # the oldest first
        self._held: dict[str, float] = {}  # by viewer: until when a place is held that no WebSocket has
        self._line: dict[str, float] = {}  # by viewer, in order of arrival: when each asked last

    @property
    def viewers(self) -> int:
        """How many WebSockets are open."""
        return len(self._seats)

    def before(self, viewer: str) -> int | None:
        """Hold a place for this viewer: None, or how many come first where there is none; a place in the line is kept.

        Args:
            viewer: Empty for one that nobody can tell from others, who gets no place in the line.
        """
        self._tidy()
        if viewer in self._held:
            self._held[viewer] = self._now() + LOADING_S
        if viewer in self._held or self._oldest(viewer) is not None:
            return None
        if viewer:
            self._line[viewer] = self._now()
        there = [one for one, asked in self._line.items() if one == viewer or self._now() - asked < PRESENT_S]
        place = there.index(viewer) if viewer else len(there)
        if place >= self.most - self._taken:
            return place
        if viewer:
            del self._line[viewer]
            self._held[viewer] = self._now() + LOADING_S
        return None

    def sit(self, viewer: str) -> Seat | None:
        """A seat for a new WebSocket; None where it must wait. It must `leave` in the end."""
        if self.before(viewer) is not None:
            return None
        oldest = self._oldest(viewer)
        if self._held.pop(viewer, None) is None and oldest is not None and self._taken + len(self._line) >= self.most:
            self._seats.remove(oldest)
            oldest.left.set()
        seat = Seat(viewer)
        self._seats.append(seat)
        return seat

    def leave(self, seat: Seat) -> None:
        """The WebSocket has closed; its browser's last place is held for a while."""
        if seat in self._seats:
            self._seats.remove(seat)
            if seat.viewer and self._oldest(seat.viewer) is None:
                self._held[seat.viewer] = self._now() + RELOADING_S

    def _oldest(self, viewer: str) -> Seat | None:
        return next((seat for seat in self._seats if viewer and seat.viewer == viewer), None)

    @property
    def _taken(self) -> int:
        return len(self._seats) + len(self._held)

    def _tidy(self) -> None:
        now = self._now()
        self._held = {viewer: until for viewer, until in self._held.items() if until > now}
        self._line = {viewer: asked for viewer, asked in self._line.items() if now - asked < LEFT_S}


class Usher:
    """ASGI middleware: shows who comes to a full house the page that waits, and closes WebSockets that no notebook has.

    The teacher needs no place.

    Args:
        app: Gets the requests of those who have a place.
        places: Who has one.
    """

    def __init__(self, app: ASGIApp, places: Places) -> None:
        self._app, self._places = app, places

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
            return
        answer = self._answer(scope) if scope["type"] == "http" else None
        await (answer or self._app)(scope, receive, send)

    def _answer(self, scope: Scope) -> Response | None:
        if scope["path"].endswith("/sse"):  # marimo's other way to open a session, which nobody counts
            return PlainTextResponse("Expected a WebSocket, got a request for events; open the page itself.", 403)
        if scope["path"] != ASK and (scope["path"] not in _PAGES or scope["method"] != "GET"):
            return None
        before = None if _is_teacher(scope) else self._places.before(_viewer(scope))
        if scope["path"] == ASK:
            return JSONResponse({"before": before}, headers={"Cache-Control": "no-store"})
        return None if before is None else _full(before, self._places.most)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        known = scope["path"] in _SOCKETS
        if known and _is_teacher(scope):
            await self._app(scope, receive, send)
            return
        seat = self._places.sit(_viewer(scope)) if known else None
        if seat is None:
            await send({"type": "websocket.close", "code": 1013})  # not accepted: the browser gets status 403
            return
        try:
            await self._app(scope, *_until(seat.left, receive, send))
        finally:
            self._places.leave(seat)


def _viewer(scope: Scope) -> str:
    return scope.get("meta", {}).get("viewer", "")


def _is_teacher(scope: Scope) -> bool:
    return scope.get("meta", {}).get("role") == "teacher"


def _until(left: asyncio.Event, receive: Receive, send: Send) -> tuple[Receive, Send]:
    """Pass messages until `left` is set; then close the WebSocket, and say to the application that it is closed."""

    async def receiving() -> Message:
        message, leaving = asyncio.ensure_future(receive()), asyncio.ensure_future(left.wait())
        try:
            await asyncio.wait((message, leaving), return_when=asyncio.FIRST_COMPLETED)
            if message.done():
                return message.result()
            with suppress(Exception):  # it may have closed by itself meanwhile
                await send({"type": "websocket.close", "code": 1000, "reason": FOR_GOOD})
            return {"type": "websocket.disconnect", "code": 1000}
        finally:
            message.cancel()
            leaving.cancel()

    async def sending(message: Message) -> None:
        if not left.is_set():
            await send(message)

    return receiving, sending


def _full(before: int, most: int) -> Response:
    """The page of who waits: it asks for a place every `ASKED_EVERY_S`, and once there is one opens what was wanted."""
    said = {"none": "You are next.", "one": "One is before you.", "more": "{} are before you."}
    words = said["none"] if before == 0 else said["one"] if before == 1 else said["more"].format(before)
    script = f"""
        const said = {json.dumps(said)}, line = document.getElementById('line');
        const words = n => n === 0 ? said.none : n === 1 ? said.one : said.more.replace('{{}}', n);
        setInterval(async () => {{
          const answer = await fetch('{ASK}').catch(() => null);
          if (!answer?.ok) return;
          const {{before}} = await answer.json();
          if (before === null) location.reload();
          else if (line.innerText !== words(before)) line.innerText = words(before);
        }}, {1000 * ASKED_EVERY_S:.0f})"""
    return plain_page(
        "Full",
        f"<h1>Full, for the moment</h1><p>Places for viewers: {most}. All are taken."
        f' <b id="line" role="status">{words}</b></p><p>This page lets you in by itself, in the order of arrival. Leave'
        f' it open.</p><noscript><p><a href="">Ask again</a></p></noscript><script>{script}</script>',
        503,
    )
