"""The server for a class or for one user, and its middleware."""

import ast
import asyncio
import ctypes
import gc
import html
import ipaddress
import json
import os
import sys
import threading
import time
import webbrowser
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial, reduce, wraps
from mimetypes import guess_type
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, urlsplit

import marimo
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lib import ROOT
from lib.cache_folder import cache_folder
from lib.site.access import HEALTH, ICON, MANIFEST, MAX_VIEWERS, AccessCheck, Capacity, Keys, LimitViewers, kept_secret
from lib.site.editor import PATH as EDIT
from lib.site.editor import SESSION_TTL_S, Editor
from lib.site.gate import CLASS_HEADERS, MAX_HEAD_BYTES, MAX_SETTINGS_BYTES, Gate, Journal, Uploads
from lib.site.pages import DESCRIPTION, ICON_SVG, front_page
from lib.sweeps.experiments.recorded_machines import recorded_here
from lib.sweeps.workers.engine import shared_engine
from lib.sweeps.workers.queue import ALLOWANCE, MAX_WAITING
from lib.ui.notebooks import FIRST, OF_A_CLASS_SITE, Notebook

if TYPE_CHECKING:
    import socket

# The pages go before the workers: trainings queue anyway, but a slow page delays its viewer and all others.
WORKERS_NICENESS = 10
# Collections of the second generation before a full one, which with a class's objects blocks the server for a second.
# With the default of 10, that happens every minute. `CollectGarbage` collects the garbage of closed tabs.
FULL_COLLECTION_AFTER = 200


@dataclass(frozen=True)
class ClassOptions:
    """The options of `make class`.

    Args:
        password: Empty for none.
        class_link: Whether pupils need a link with a token.
        public_host: Name of the TLS proxy on this machine; empty for none.
        viewers: Limit of WebSockets at the same time.
        runs: Limit of waiting runs per viewer.
        log: Whether to log to standard output.
        app: Whether this serves one user instead of a class; trainings then keep their priority.
    """

    password: str = field(default="", repr=False)
    class_link: bool = False
    public_host: str = ""
    viewers: int = MAX_VIEWERS
    runs: int = MAX_WAITING
    log: bool = False
    app: bool = False

    def check(self, host: str) -> None:
        """Raise ValueError, with a sentence for the user, if these options are invalid or unsafe on this host."""
        if self.app and not is_loopback(host):
            raise ValueError(
                f"host: expected an address that only this machine can reach, such as 127.0.0.1, got {host}; use an SSH"
                " tunnel from elsewhere, or `make class` for other people"
            )
        if not 1 <= self.viewers <= 10_000:
            raise ValueError(
                f"viewers: expected 1 to 10,000, got {self.viewers}; choose how many viewers may watch at once"
            )
        if not 1 <= self.runs <= 1_000:
            raise ValueError(f"runs: expected 1 to 1,000, got {self.runs}; choose how many runs may wait per viewer")
        if self.public_host and not urlsplit(f"//{self.public_host}").hostname == self.public_host.partition(":")[0]:
            raise ValueError(f"public host: expected a name such as class.example.org, got {self.public_host}")
        if not (self.password or self.class_link or (is_loopback(host) and not self.public_host)):
            raise ValueError(
                "host: expected --password-file or --class-link to serve other machines, got neither for"
                f" {self.public_host or host}; choose who may enter"
            )


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class CollectGarbage:
    """ASGI middleware that runs the garbage collector after tabs have closed.

    A session's objects form reference cycles, and on an idle server the collector may not run; until then, even the
    session's runs continue.

    Args:
        app: Gets all requests.
        after_s: Delay after a WebSocket closes; up to five times as long while others keep closing. A second collection
            follows after five times this delay.
    """

    def __init__(self, app: ASGIApp, after_s: float) -> None:
        self._app, self._after_s = app, after_s
        self._due: list[asyncio.TimerHandle] = []
        self._latest_s = 0.0  # on the loop's clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        finally:
            if scope["type"] == "websocket":
                for due in self._due:  # one collection for all tabs that close within the delay
                    due.cancel()
                loop, once_more_s = asyncio.get_running_loop(), 5 * self._after_s
                if (now_s := loop.time()) >= self._latest_s:
                    self._latest_s = now_s + once_more_s
                self._due = [
                    loop.call_at(at_s, loop.run_in_executor, None, _give_back_memory)
                    # The second collection is for threads that were still drawing.
                    for at_s in (min(now_s + self._after_s, self._latest_s), now_s + once_more_s)
                ]


class HideFolder:
    """ASGI middleware that removes the project's folder from marimo's responses, including errors.

    Args:
        app: Sends each text response as one body message.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app, folder = app, str(ROOT)
        self._written = {one.encode() for one in (folder, json.dumps(folder)[1:-1], quote(folder), html.escape(folder))}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        text: Message | None = None  # the response's start, held back until its length is known

        async def sending(message: Message) -> None:
            nonlocal text
            if message["type"] == "http.response.start" and _is_text(message):
                text = message
                return
            if text is not None:
                if not message.get("more_body", False):
                    said = message.get("body", b"")
                    body = reduce(lambda body, one: body.replace(one, b""), self._written, said)
                    if body != said:  # else keep the length: a HEAD response declares one but has no body
                        MutableHeaders(scope=text)["Content-Length"] = str(len(body))
                    message = {**message, "body": body}
                await send(text)
                text = None
            await send(message)

        await self._app(scope, receive, sending)


def _is_text(start: Message) -> bool:
    return Headers(raw=start["headers"]).get("content-type", "").startswith(("text/", "application/json"))


def _give_back_memory() -> None:
    gc.collect()
    with suppress(AttributeError, OSError):  # glibc does not return freed memory to the system by itself
        ctypes.CDLL(None).malloc_trim(0)


class Notebooks:
    """ASGI application with marimo's for each notebook, created on first use, because creating all takes 0.3 s.

    Sessions begin after `preparing` has ended: at a session's start, marimo imports parts of each library whose import
    is in progress, and with IPython one of the two threads gets half a module (KeyError).
    """

    def __init__(self, preparing: threading.Thread) -> None:
        self.made: dict[str, Starlette] = {}  # by the first part of their paths
        self._preparing = preparing
        self._files = {one.path.strip("/"): one.file for one in OF_A_CLASS_SITE}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path"].split("/")[1]
        if name not in self._files:
            raise HTTPException(404)
        if scope["type"] == "websocket":
            await asyncio.to_thread(self._preparing.join)
        await self.make(name)(scope, receive, send)

    def make(self, name: str) -> Starlette:
        if name not in self.made:
            # All pages share the addresses of their scripts, so that a browser fetches each once.
            apps = marimo.create_asgi_app(
                quiet=True, skew_protection=True, session_ttl=SESSION_TTL_S, asset_url=""
            ).with_app(path=f"/{name}", root=str(ROOT / self._files[name]))
            self.made[name] = cast(Starlette, apps.build())
        return self.made[name]

    async def end(self) -> None:
        """End marimo's sessions, whose threads would keep the process alive."""
        for app in self.made.values():
            for route in app.routes:
                if isinstance(route, Mount) and isinstance(route.app, Starlette):
                    await route.app.state.session_manager.shutdown()


def notebook_site(capacity: Capacity, notebooks: ASGIApp, editor: Editor | None) -> Starlette:
    """Build the routes: the front page, the read-only notebooks, /healthz and, with an `editor`, the way to it."""
    began = time.monotonic()
    scripts = {file.name: file for file in (Path(marimo.__file__).parent / "_static" / "assets").iterdir()}

    async def health(_: Request) -> Response:
        n_queued, up_s = shared_engine().queue.lengths()[1], round(time.monotonic() - began, 1)
        return JSONResponse({"ok": True, "viewers": capacity.viewers, "queue": n_queued, "uptime_s": up_s})

    async def script(request: Request) -> Response:
        """Send one of marimo's scripts without a thread: a page's 300 scripts then take a quarter of the time."""
        file = scripts.get(request.path_params["name"])
        if file is None:
            raise HTTPException(404)
        return Response(file.read_bytes(), media_type=guess_type(file)[0])

    manifest = {"name": DESCRIPTION, "icons": [{"src": ICON, "sizes": "any"}], "start_url": "/"}
    return Starlette(
        routes=[
            Route("/", _front),
            Route(HEALTH, health),
            Route(ICON, Response(ICON_SVG, media_type="image/svg+xml")),
            Route(MANIFEST, JSONResponse(manifest)),
            *([Route(EDIT, editor.lead)] if editor is not None else []),
            Route("/assets/{name}", script),
            Mount("/", notebooks),  # last, because it matches all other paths
        ]
    )


def _front(request: Request) -> Response:  # not async, so that Starlette reads the store in a thread
    if query := request.url.query:  # an old link to the first notebook, which used to be here
        return RedirectResponse(f"{FIRST.path}?{query}", 307)
    return front_page(is_teacher=request.scope.get("meta", {}).get("role") == "teacher")


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, notebooks: Notebooks, addresses: Mapping[str, str], opened: str) -> None:
        super().__init__(config)
        self._notebooks, self._addresses, self._opened = notebooks, addresses, opened

    async def startup(self, sockets: "list[socket.socket] | None" = None) -> None:
        await super().startup(sockets)
        lines = "".join(f"    {who}: {address}\n" for who, address in self._addresses.items())
        print(f"\n{lines}    Ctrl-C ends it.\n", flush=True)
        if self._opened:  # in a thread, because finding a browser can take long
            threading.Thread(target=webbrowser.open, args=(self._opened,), daemon=True).start()

    async def shutdown(self, sockets: "list[socket.socket] | None" = None) -> None:
        await self._notebooks.end()
        await super().shutdown(sockets)


def serve_class(host: str, port: int, headless: bool, notebook: Notebook, options: ClassOptions) -> None:
    """Serve the class site until Ctrl-C.

    Args:
        host: Address to listen on.
        port: A free one.
        headless: Whether not to open a browser.
        notebook: The one that the browser opens; for the first one, the front page.
        options: See `ClassOptions`.
    """
    one_parses_at_a_time()
    # Otherwise a WebSocket upgrade with a long head gets no response; now the gate rejects it.
    os.environ |= dict.fromkeys(("WEBSOCKETS_MAX_LINE_LENGTH", "WEBSOCKETS_MAX_NUM_HEADERS"), str(2 * MAX_HEAD_BYTES))
    secret = kept_secret(cache_folder() / "class-secret")
    keys, capacity = Keys(secret, options.password, options.class_link), Capacity(options.viewers)
    ALLOWANCE.most = options.runs
    editor = Editor(host, port) if options.app else None
    if editor is None:
        shared_engine().niceness = WORKERS_NICENESS
    preparing = threading.Thread(target=_prepare, daemon=True)
    notebooks = Notebooks(preparing)
    notebooks.make(notebook.name)
    site = notebook_site(capacity, notebooks, editor)
    preparing.start()
    _open_many_files()
    gc.set_threshold(*gc.get_threshold()[:2], FULL_COLLECTION_AFTER)
    config = uvicorn.Config(
        _stacked(site, options, keys, capacity, host, port),
        host=host,
        port=port,
        log_level="error",
        lifespan="off",  # the site has nothing to do before its first request
        proxy_headers=bool(options.public_host),  # trusted only from the proxy on this machine
        timeout_keep_alive=300,
        timeout_graceful_shutdown=1,
        ws_per_message_deflate=False,  # zlib releases the GIL, and the event loop waits long to get it back
        ws_ping_interval=20,  # marimo's own server pings each page every second
        ws_ping_timeout=60,  # as in marimo's server
        h11_max_incomplete_event_size=MAX_SETTINGS_BYTES + MAX_HEAD_BYTES,
        ws_max_size=MAX_HEAD_BYTES,  # pages send almost nothing over the WebSocket
    )
    addresses = _addresses(options, keys, host, port, "/" if notebook is FIRST and not options.app else notebook.path)
    try:
        with suppress(KeyboardInterrupt):  # the usual way to end it
            _Server(config, notebooks, addresses, "" if headless else [*addresses.values()][-1]).run()
    finally:
        if editor is not None:
            editor.end()


def _prepare() -> None:
    """Import and read what most pages need while the browser loads marimo's scripts."""
    import lib.labs.mnist_training  # noqa: F401

    recorded_here()


def one_parses_at_a_time() -> None:
    """Serialize `ast.parse` and marimo's compilation of cells among the threads of this process.

    Before Python 3.11.8, all threads share the recursion depth of syntax trees under construction, and a garbage
    collection may let another thread build its own: “SystemError: AST constructor recursion depth mismatch”
    (python/cpython#106905). marimo parses the notebook for each page in the server's thread, and its cells in each
    viewer's thread, so that with a class, pages occasionally failed with status 500.
    """
    if sys.version_info >= (3, 11, 8):
        return
    from marimo._ast import compiler

    turn = threading.RLock()  # re-entrant, because a finalizer that parses may run during a parse

    def in_turn(build: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(build)
        def built(*arguments: Any, **options: Any) -> Any:
            with turn:
                return build(*arguments, **options)

        return built

    ast.parse, compiler.ast_compile = in_turn(ast.parse), in_turn(compiler.ast_compile)


_CLASS, _TEACHER, _OWN = "For a class, read-only", "For the teacher", "Your notebooks"


def _addresses(options: ClassOptions, keys: Keys, host: str, port: int, path: str) -> dict[str, str]:
    name = f"[{host}]" if ":" in host else host
    base = f"https://{options.public_host}" if options.public_host else f"http://{name}:{port}"
    link = f"?class={keys.token('pupil')}" if options.class_link else ""
    own = f"{base}{path}?teacher={keys.token('teacher')}"
    return {_OWN: own} if options.app else {_CLASS: f"{base}{path}{link}", _TEACHER: own}


def _stacked(site: ASGIApp, options: ClassOptions, keys: Keys, capacity: Capacity, host: str, port: int) -> ASGIApp:
    public = urlsplit(f"//{options.public_host}").hostname or ""
    app: ASGIApp = LimitViewers(CollectGarbage(HideFolder(site), SESSION_TTL_S + 1), capacity)
    app = AccessCheck(Uploads(app), keys, f"class-{port}", secure=bool(public))  # no memory is reserved for strangers
    app = Gate(app, CLASS_HEADERS, filter(None, (host, public)))
    return Journal(app, partial(print, flush=True)) if options.log else app


def _open_many_files() -> None:
    """Raise the limit of open files, usually 1,024, because each connection needs one."""
    with suppress(ImportError, OSError, ValueError):  # the limit does not exist, or is fixed
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = 2**16 if hard == resource.RLIM_INFINITY else min(hard, 2**16)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
