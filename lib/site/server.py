"""The site for a class, and for one person: what a request passes, and the server."""

import ast
import asyncio
import ctypes
import gc
import html
import ipaddress
import json
import os
import secrets
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
from lib.cache_folder import CacheUnwritable, cache_dir
from lib.site.access import HEALTH, ICON, MANIFEST, MAX_VIEWERS, Capacity, Door, Keys, LimitViewers, kept_secret
from lib.site.editor import PATH as EDIT
from lib.site.editor import SESSION_TTL_S, Editor
from lib.site.gate import CLASS_HEADERS, MAX_HEAD_BYTES, MAX_SETTINGS_BYTES, Gate, Journal
from lib.site.pages import DESCRIPTION, ICON_SVG, front_page
from lib.sweeps.experiments.recorded_machines import recorded_here
from lib.sweeps.workers.engine import shared_engine
from lib.sweeps.workers.queue import ALLOWANCE, MAX_WAITING
from lib.ui import figures
from lib.ui.notebooks import FIRST, OF_A_CLASS_SITE, Notebook

if TYPE_CHECKING:
    import socket

# Trainings wait for each other; a page that answers late keeps its viewer, and everybody behind, from all of it.
WORKERS_NICENESS = 10
# Of the collector's second generation, until it looks at all objects: a class's take it a second in which nobody is
# answered. At the usual 10 that is every minute; what closed tabs leave behind is looked for when they close.
FULL_COLLECTION_AFTER = 200


@dataclass(frozen=True)
class ClassOptions:
    """What `make class` can be asked for.

    Args:
        password: Wanted of everybody; empty for none.
        class_link: Whether pupils come in by a link with a token.
        public_host: The name by which a TLS proxy on this machine is reached; empty for none.
        viewers: WebSockets at once, at most.
        runs: Waiting runs of a viewer, at most.
        log: Whether what happens is written to standard output.
        app: Whether it is no class but one person's own pages: nothing is taken from trainings.
    """

    password: str = field(default="", repr=False)
    class_link: bool = False
    public_host: str = ""
    viewers: int = MAX_VIEWERS
    runs: int = MAX_WAITING
    log: bool = False
    app: bool = False

    def check(self, host: str) -> None:
        """Raise a ValueError, with a sentence, where the site must not be served like this on this host."""
        if self.app and not is_loopback(host):
            raise ValueError(
                f"host: expected an address that only this machine reaches, such as 127.0.0.1, got {host}; from"
                " elsewhere use an SSH tunnel, and for others `make class`"
            )
        if not 1 <= self.viewers <= 10_000:
            raise ValueError(f"viewers: expected 1 to 10,000, got {self.viewers}; choose how many may watch at once")
        if not 1 <= self.runs <= 1_000:
            raise ValueError(f"runs: expected 1 to 1,000, got {self.runs}; choose how many runs of a viewer may wait")
        if self.public_host and not urlsplit(f"//{self.public_host}").hostname == self.public_host.partition(":")[0]:
            raise ValueError(f"public host: expected a name such as class.example.org, got {self.public_host}")
        if not (self.password or self.class_link or (is_loopback(host) and not self.public_host)):
            raise ValueError(
                "host: expected --password-file or --class-link for others than this machine, got neither for"
                f" {self.public_host or host}; say who may come in"
            )


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Tidy:
    """ASGI middleware: frees what the sessions of closed tabs held, once they have ended.

    A session's objects refer to each other, and the garbage collector may not run for as long as nobody does anything;
    until then their runs go on, too.

    Args:
        app: Gets all requests.
        after_s: Seconds from the end of a WebSocket, or up to five times as long while others end; five times as long
            after, memory is freed once more.
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
                for due in self._due:  # several that leave are cleared away together
                    due.cancel()
                loop, once_more_s = asyncio.get_running_loop(), 5 * self._after_s
                if (now_s := loop.time()) >= self._latest_s:
                    self._latest_s = now_s + once_more_s
                self._due = [
                    loop.call_at(at_s, loop.run_in_executor, None, _give_back_memory)
                    # And once more, for threads that were still drawing.
                    for at_s in (min(now_s + self._after_s, self._latest_s), now_s + once_more_s)
                ]


class HideFolder:
    """ASGI middleware: leaves out of what marimo answers, its errors among it, in which folder the project is.

    Args:
        app: Answers with texts of one part.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app, folder = app, str(ROOT)
        self._written = {one.encode() for one in (folder, json.dumps(folder)[1:-1], quote(folder), html.escape(folder))}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        text: Message | None = None  # its beginning, until its length is known

        async def sending(message: Message) -> None:
            nonlocal text
            if message["type"] == "http.response.start" and _is_text(message):
                text = message
                return
            if text is not None:
                if not message.get("more_body", False):
                    said = message.get("body", b"")
                    body = reduce(lambda body, one: body.replace(one, b""), self._written, said)
                    if body != said:  # what is only asked for its head has another length than its body
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
    with suppress(AttributeError, OSError):  # what the collector frees, glibc keeps unless asked to return it
        ctypes.CDLL(None).malloc_trim(0)


class Notebooks:
    """ASGI application: marimo's for each notebook, made when its page is first asked for: all take 0.3 s.

    A session begins once `preparing` has ended: at its beginning marimo imports parts of each library that is being
    imported, and of IPython one of the two threads gets half a module (KeyError).

    Attributes:
        made: Applications by the first part of their paths.
    """

    def __init__(self, preparing: threading.Thread) -> None:
        self.made: dict[str, Starlette] = {}
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
            # The scripts of all pages have one address, so that a browser fetches them once.
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
    """One ASGI application: the front page at /, the notebooks below their names, read-only, the way to their cells
    where there is an editor, and /healthz."""
    began = time.monotonic()
    scripts = {file.name: file for file in (Path(marimo.__file__).parent / "_static" / "assets").iterdir()}

    async def health(_: Request) -> Response:
        n_queued, up_s = shared_engine().queue_lengths()[1], round(time.monotonic() - began, 1)
        return JSONResponse({"ok": True, "viewers": capacity.viewers, "queue": n_queued, "uptime_s": up_s})

    async def script(request: Request) -> Response:
        """One of marimo's scripts, read and sent at once: a page's 300 take a quarter of the time that threads need."""
        file = scripts.get(request.path_params["name"])
        if file is None:
            raise HTTPException(404)
        return Response(file.read_bytes(), media_type=guess_type(file)[0])

    site = Starlette()
    site.add_route("/", _front)
    site.add_route(HEALTH, health)
    manifest = {"name": DESCRIPTION, "icons": [{"src": ICON, "sizes": "any"}], "start_url": "/"}
    icon = Response(ICON_SVG, media_type="image/svg+xml")
    site.routes.extend([Route(ICON, icon), Route(MANIFEST, JSONResponse(manifest))])
    if editor is not None:
        site.add_route(EDIT, editor.lead)
    site.add_route("/assets/{name}", script)
    site.mount("/", notebooks)  # the last, as it takes all that is left
    return site


def _front(request: Request) -> Response:  # in a thread: it reads the store
    if query := request.url.query:  # the first notebook was here once, and old links have its settings
        return RedirectResponse(f"{FIRST.path}?{query}", 307)
    return front_page(is_teacher=request.scope.get("meta", {}).get("role") == "teacher")


class _Server(uvicorn.Server):
    """Prints its addresses once it serves, and opens a browser."""

    def __init__(self, config: uvicorn.Config, notebooks: Notebooks, addresses: Mapping[str, str], opened: str) -> None:
        super().__init__(config)
        self._notebooks, self._addresses, self._opened = notebooks, addresses, opened

    async def startup(self, sockets: "list[socket.socket] | None" = None) -> None:
        await super().startup(sockets)
        lines = "".join(f"    {who}: {address}\n" for who, address in self._addresses.items())
        print(f"\n{lines}    Ctrl-C ends it.\n", flush=True)
        if self._opened:  # in a thread: finding a browser can take long
            threading.Thread(target=webbrowser.open, args=(self._opened,), daemon=True).start()

    async def shutdown(self, sockets: "list[socket.socket] | None" = None) -> None:
        await self._notebooks.end()
        await super().shutdown(sockets)


def serve_class(host: str, port: int, headless: bool, notebook: Notebook, options: ClassOptions) -> None:
    """Serve the class site until Ctrl-C.

    Args:
        host: Address to listen on.
        port: A free one.
        headless: Whether no browser is opened.
        notebook: Which one the browser opens; for the first one, the front page.
        options: Who comes in, and how many.
    """
    one_parses_at_a_time()
    # Else an upgrade with a longer head than usual is never answered; the gate refuses it.
    os.environ |= dict.fromkeys(("WEBSOCKETS_MAX_LINE_LENGTH", "WEBSOCKETS_MAX_NUM_HEADERS"), str(2 * MAX_HEAD_BYTES))
    figures.late()  # the sessions are threads of this process
    keys, capacity = Keys(_secret(), options.password, options.class_link), Capacity(options.viewers)
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
        proxy_headers=bool(options.public_host),  # believed from the proxy on this machine
        timeout_keep_alive=300,
        timeout_graceful_shutdown=1,
        ws_per_message_deflate=False,  # zlib gives Python's lock away, and the loop waits long to have it back
        ws_ping_interval=20,  # marimo's own server asks each second: a hundred pages, a hundred times
        ws_ping_timeout=60,  # as there
        h11_max_incomplete_event_size=MAX_SETTINGS_BYTES + MAX_HEAD_BYTES,
        ws_max_size=MAX_HEAD_BYTES,  # pages send next to nothing by it
    )
    addresses = _addresses(options, keys, host, port, "/" if notebook is FIRST and not options.app else notebook.path)
    try:
        with suppress(KeyboardInterrupt):  # that is how it is ended
            _Server(config, notebooks, addresses, "" if headless else [*addresses.values()][-1]).run()
    finally:
        if editor is not None:
            editor.end()


def _prepare() -> None:
    """Import and read what the first page needs, and most of the others, while the browser loads marimo's scripts."""
    import lib.labs.mnist_training  # noqa: F401

    recorded_here()


def one_parses_at_a_time() -> None:
    """Make the threads of this process take turns in `ast.parse` and in marimo's compilation of cells.

    Before Python 3.11.8 the depth of the syntax tree that is being built is kept once for all threads, and a garbage
    collection in the middle can let another thread build its own: “SystemError: AST constructor recursion depth
    mismatch” (python/cpython#106905). marimo parses the notebook for each page in the server's thread, and its cells in
    each viewer's, so that in front of a class a page now and then was answered with status 500.
    """
    if sys.version_info >= (3, 11, 8):
        return
    from marimo._ast import compiler

    turn = threading.RLock()  # the collector can run a finalizer that parses, within a parse

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
    """The site behind everything that a request passes, from the last to the first."""
    public = urlsplit(f"//{options.public_host}").hostname or ""
    app: ASGIApp = LimitViewers(Tidy(HideFolder(site), SESSION_TTL_S + 1), capacity)
    app = Door(app, keys, f"class-{port}", secure=bool(public))
    app = Gate(app, CLASS_HEADERS, filter(None, (host, public)))
    return Journal(app, partial(print, flush=True)) if options.log else app


def _secret() -> bytes:
    try:
        return kept_secret(cache_dir() / "class-secret")
    except CacheUnwritable:
        return secrets.token_bytes(32)


def _open_many_files() -> None:
    """Each connection is a file, and a shell's usual limit is 1,024."""
    with suppress(ImportError, OSError, ValueError):  # no such limit, or a fixed one
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = 2**16 if hard == resource.RLIM_INFINITY else min(hard, 2**16)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
