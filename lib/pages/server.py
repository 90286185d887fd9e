"""What stands between the network and marimo.

Which requests are let in, what a browser may do with a page, and all notebooks below one address.

marimo checks neither the origin of a WebSocket nor the requested host, so a page of any web site could open one here
and train with it, in the name of whoever looks at that page.
"""

import asyncio
import ctypes
import gc
import html
import ipaddress
import runpy
import sys
import threading
import webbrowser
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode, urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lib import ROOT
from lib.pages.notebooks import FIRST, NOTEBOOKS, Notebook

if TYPE_CHECKING:
    import socket

# The WebSocket's first line holds the page's settings, written anew, and must be shorter than 8,192 bytes.
MAX_SETTINGS_BYTES = 8_000
# After a tab has closed: what it ran ends, and what it held is free; what it showed is in its address.
SESSION_TTL_S = 3
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


class Gate:
    """ASGI middleware: refuses requests of other sites and overlong ones, and sets the pages' content policy.

    Args:
        app: Gets the requests that are let in.
        policy: The `Content-Security-Policy` of each response.
        hosts: Names of this server, beside localhost and addresses in digits; a request for any other name is refused,
            because somebody else's name may lead here too.
        first: The notebook that a request for none is redirected to; empty for no redirection.
    """

    def __init__(self, app: ASGIApp, policy: str, hosts: Iterable[str] = (), first: str = "") -> None:
        self._app, self._policy, self._first = app, policy, first
        self._hosts = {"localhost", *hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        answer = self._answer(scope)
        if answer is None:
            await self._app(scope, receive, self._with_policy(send))
        elif scope["type"] == "http":
            await answer(scope, receive, self._with_policy(send))
        else:
            await send({"type": "websocket.close", "code": 1008})  # not accepted: the browser gets status 403

    def _answer(self, scope: Scope) -> Response | None:
        """What is answered in marimo's place."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._is_ours(host):
            return _refused(
                f"Expected localhost or an address in digits, got {host}; open this server by one of these."
            )
        if _comes_from_elsewhere(scope, headers):
            return _refused(
                "Expected a request of this server's own pages, got one of another site; open the page itself."
            )
        settings = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if (length := len(urlencode(settings))) > MAX_SETTINGS_BYTES:
            return _too_long(scope["path"], length)
        # marimo's own redirection forgets the settings.
        if any(notebook.path == f"{scope['path']}/" for notebook in NOTEBOOKS):
            return RedirectResponse(f"{scope['path']}/?{urlencode(settings)}", 307)
        if self._first and scope["path"] == "/" and "file" not in dict(settings):
            return RedirectResponse(f"/?{urlencode([*settings, ('file', self._first)], safe='/')}", 303)
        return None

    def _is_ours(self, host: str) -> bool:
        name = ""
        try:
            name = urlsplit(f"//{host}").hostname or ""
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._hosts
        return True

    def _with_policy(self, send: Send) -> Send:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Content-Security-Policy"] = self._policy
                headers["X-Content-Type-Options"] = "nosniff"
            await send(message)

        return sending


class Tidy:
    """ASGI middleware: frees what the sessions of closed tabs held, once they have ended.

    A session's objects refer to each other, and the garbage collector may not run for as long as nobody does anything;
    until then their runs go on, too.

    Args:
        app: Gets all requests.
        after_s: Seconds from the end of a WebSocket; five times as long after, memory is freed once more.
    """

    def __init__(self, app: ASGIApp, after_s: float) -> None:
        self._app, self._after_s = app, after_s
        self._due: list[asyncio.TimerHandle] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        finally:
            if scope["type"] == "websocket":
                for due in self._due:  # several that leave are cleared away together
                    due.cancel()
                loop = asyncio.get_running_loop()
                self._due = [
                    loop.call_later(wait_s, loop.run_in_executor, None, _give_back_memory)
                    # And once more, for threads that were still drawing.
                    for wait_s in (self._after_s, 5 * self._after_s)
                ]


def _give_back_memory() -> None:
    gc.collect()
    with suppress(AttributeError, OSError):  # what the collector frees, glibc keeps unless asked to return it
        ctypes.CDLL(None).malloc_trim(0)


def _comes_from_elsewhere(scope: Scope, headers: Headers) -> bool:
    """Whether a page of another site asks. Browsers say so; whoever is no browser asks in nobody's name."""
    origin = headers.get("origin")
    if origin is not None:
        return origin.partition("://")[2].lower() != headers.get("host", "").lower()
    followed_a_link = scope.get("method") == "GET" and headers.get("sec-fetch-mode") == "navigate"
    return headers.get("sec-fetch-site") in ("cross-site", "same-site") and not followed_a_link


def _refused(sentence: str) -> Response:
    return PlainTextResponse(sentence, 403)


def _too_long(path: str, length: int) -> Response:
    return HTMLResponse(
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>This address is too long</title>'
        '<body style="font: 1.1rem/1.5 system-ui; max-width: 40rem; margin: 3rem auto; padding: 0 1rem">'
        "<h1>This address is too long</h1>"
        f"<p>Expected at most {MAX_SETTINGS_BYTES:,} bytes of settings, got {length:,}. Ask for the link"
        f' once more, or <a href="{html.escape(path)}">open the page with its usual settings</a>.</p>',
        414,
    )


def notebook_site() -> Starlette:
    """All notebooks, read-only, as one ASGI application: the first at /, the others below their names."""
    import marimo

    # The scripts of all pages have one address, so that a browser fetches them once.
    builder = marimo.create_asgi_app(quiet=True, skew_protection=True, session_ttl=SESSION_TTL_S, asset_url="")
    for notebook in NOTEBOOKS:
        builder = builder.with_app(path=notebook.path.rstrip("/") or "/", root=str(ROOT / notebook.file))
    return builder.build()  # type: ignore[return-value]


class _Server(uvicorn.Server):
    """Prints its address once it serves, and opens a browser.

    At the end it ends marimo's sessions, whose threads would keep the process alive.
    """

    def __init__(self, config: uvicorn.Config, site: Starlette, address: str, opens_browser: bool) -> None:
        super().__init__(config)
        self._site, self._address, self._opens_browser = site, address, opens_browser

    async def startup(self, sockets: "list[socket.socket] | None" = None) -> None:
        await super().startup(sockets)
        print(f"\n    For a class, read-only: {self._address}\n    Ctrl-C ends it.\n", flush=True)
        if self._opens_browser:  # in a thread: finding a browser can take long
            threading.Thread(target=webbrowser.open, args=(self._address,), daemon=True).start()

    async def shutdown(self, sockets: "list[socket.socket] | None" = None) -> None:
        for route in self._site.routes:
            if isinstance(route, Mount):
                await route.app.state.session_manager.shutdown()  # type: ignore[attr-defined]
        await super().shutdown(sockets)


def serve_class(host: str, port: int, headless: bool, notebook: Notebook = FIRST) -> None:
    """Serve the class site until Ctrl-C.

    Args:
        host: Address to listen on.
        port: A free one.
        headless: Whether no browser is opened.
        notebook: Which one the browser opens.
    """
    site = notebook_site()
    config = uvicorn.Config(
        Gate(Tidy(site, SESSION_TTL_S + 1), CONTENT_POLICY, [host]),
        host=host,
        port=port,
        log_level="error",
        timeout_keep_alive=300,
        timeout_graceful_shutdown=1,
        ws_ping_interval=1,
        ws_ping_timeout=60,  # as marimo's own server; a longer address than h11's 64 KB gets an answer, too
        h11_max_incomplete_event_size=2**20,
    )
    with suppress(KeyboardInterrupt):  # that is how it is ended
        _Server(config, site, f"http://{host}:{port}{notebook.path}", not headless).run()


def serve_editor(host: str, port: int, headless: bool, notebook: str, further: Sequence[str]) -> None:
    """Run marimo's own server on the whole folder, behind the gate.

    It generates a random password, which is part of the address that it prints.

    Args:
        host: Address to listen on.
        port: A free one.
        headless: Whether no browser is opened.
        notebook: File of the one to open first.
        further: More words for marimo's command line.
    """
    from marimo._server.registry import MIDDLEWARE_REGISTRY  # the extension point `marimo.server.asgi.middleware`
    from starlette.middleware import Middleware

    MIDDLEWARE_REGISTRY.register("gate", Middleware(Gate, policy=NOT_FRAMED, hosts=(host,), first=notebook))
    sys.argv = editor_words(host, port, headless, further)
    runpy.run_module("marimo", run_name="__main__", alter_sys=True)


def editor_words(host: str, port: int, headless: bool, further: Sequence[str] = ()) -> list[str]:
    """The command line of marimo's editor on the whole folder, for `sys.argv`."""
    words = ["marimo", "edit", str(ROOT), "--host", host, "--port", str(port), "--skip-update-check", *further]
    return words + (["--headless"] if headless else [])
