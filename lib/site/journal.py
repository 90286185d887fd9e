"""A line of JSON for each thing that happens at the class site, where `--log` asks for it.

No addresses, no cookies, and no settings: a path says which page was asked for, and by nobody.
"""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime

from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_PATH = 200


class Journal:
    """ASGI middleware: writes what was answered, and how long it took.

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
            "path": path[:MAX_PATH],
            "status": status,
            "seconds": round(spent_s, 3),
        }
        self._write(json.dumps(line))
