"""marimo's editor behind the gate, alone or as a child of the app, which starts it on the first click on “Edit”."""

import asyncio
import json
import multiprocessing
import runpy
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lib import ROOT
from lib.site.gate import NOT_FRAMED, Gate, Uploads
from lib.site.pages import plain_page
from lib.sweeps.workers.queue import note_left
from lib.ui.notebooks import FIRST, NOTEBOOKS

if TYPE_CHECKING:
    from marimo._server.session_manager import SessionManager

PATH = "/edit"
STARTS_S = 60.0  # at most
# After a tab has closed, its runs end and its memory is freed; its address keeps the settings. In the editor, runs
# pause instead, and nothing is lost.
SESSION_TTL_S = 3
# The slowest imports of the first notebook, starting with marimo's own part of a notebook's process.
IMPORTED = ("marimo._runtime.runtime", "pandas", "altair", "anywidget", "psutil")


class Editor:
    """The editor's process. `port` is the app's; the editor takes the next one, or any free one."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._app_port, self._guard = host, port, threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._port, self._password = 0, secrets.token_urlsafe(16)

    async def lead(self, request: Request) -> Response:
        """Redirect from a page to its cells, with the same settings."""
        if request.scope.get("meta", {}).get("role") != "teacher":
            return plain_page(
                "Open the printed address first",
                "<h1>Open the printed address first</h1><p>Expected the person who started this server, because"
                " cells are programs; open the address that <code>make run</code> printed, and press “Edit” again.</p>",
                403,
            )
        if not await run_in_threadpool(self._started):
            return plain_page(
                "The editor did not start",
                "<h1>The editor did not start</h1><p>Its messages are in the terminal; <code>make edit</code> starts it"
                " on its own.</p>",
                503,
            )
        query = urlencode([("access_token", self._password), *_asked(request)], safe="/")
        return RedirectResponse(request.url.replace(port=self._port, path="/", query=query), 303)

    def end(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(10)

    def _started(self) -> bool:
        """Start the editor unless it runs; False if it does not listen after `STARTS_S`."""
        with self._guard:
            if self._process is None or self._process.poll() is not None:
                self._port = _free_port(self._host, self._app_port + 1)
                words = f"-m lib.cli.launch edit --host {self._host} --port {self._port} --headless 1"
                self._process = subprocess.Popen(  # the password is no argument: other users can read those
                    [sys.executable, *words.split(), "--token-password-file=-"],
                    cwd=ROOT,
                    stdin=subprocess.PIPE,
                    text=True,
                )
                assert self._process.stdin is not None, "it is a pipe"
                with self._process.stdin as stdin:
                    stdin.write(self._password)
            return _listens(self._host, self._port, time.monotonic() + STARTS_S)


def _asked(request: Request) -> list[tuple[str, str]]:
    left = urlsplit(request.headers.get("referer", ""))
    notebook = next((one for one in NOTEBOOKS if one.path == left.path), FIRST)
    settings = [(name, value) for name, value in parse_qsl(left.query) if "." in name]
    return [("file", notebook.file), *settings]


def _listens(host: str, port: int, until_s: float) -> bool:
    while time.monotonic() < until_s:
        try:
            socket.create_connection((host, port), 1).close()
            return True
        except OSError:
            time.sleep(0.05)
    return False


def _free_port(host: str, wanted: int) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        try:
            probe.bind((host, wanted))
        except (OSError, OverflowError):
            probe.bind((host, 0))
        return probe.getsockname()[1]


class KeptPages:
    """ASGI middleware of the editor: marks pages that no browser shows, so that they take no turn until one does.

    Their processes stay, so that nothing is lost if a tunnel breaks down for a while. A link with other settings
    restarts such a page, because marimo would show it with its old settings.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._left: set[int | None] = set()
        self._shown: dict[str, dict[str, str]] = {}  # by notebook: settings in its address when last shown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._app(scope, receive, send)
            return
        manager, answered = scope["app"].state.session_manager, False
        said = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1")))
        file, address = said.get("file", ""), {name: value for name, value in said.items() if "." in name}
        if address and self._shown.get(file, address) != address:
            _end_kept(manager, file, said.get("session_id", ""))

        async def sending(message: Message) -> None:
            nonlocal answered
            await send(message)
            if message["type"] == "websocket.send":
                _follow(address, message.get("text") or "")
                if not answered:  # the browser now shows the page
                    answered = True
                    self._look(manager)

        try:
            await self._app(scope, receive, sending)
        finally:
            if scope["type"] == "websocket":
                self._shown[file] = address
                asyncio.get_running_loop().call_later(SESSION_TTL_S, self._look, manager)
            else:  # the server has ended
                note_left((), self._left)

    def _look(self, manager: "SessionManager") -> None:
        left = {session.kernel_pid() for session in manager.sessions.values() if not session.room.size} - {None}
        note_left(left, self._left - left)
        self._left = left


def _end_kept(manager: Any, file: str, but: str) -> None:
    kept = manager.get_session_by_file_key(file)
    for session_id, session in manager.sessions.items():
        if session is kept and session_id != but and not session.room.size:
            manager.close_session(session_id)


def _follow(address: dict[str, str], message: str) -> None:
    """Apply a change of the browser's address, as ordered by marimo's message, to `address`."""
    if message.startswith('{"op": "query-params-'):
        said = json.loads(message)["data"]
        if "value" in said and said["value"] is not None:
            address[said["key"]] = said["value"]
        else:
            address.pop(said["key"], None)


def serve_editor(host: str, port: int, headless: bool, notebook: str, further: Sequence[str]) -> None:
    """Run marimo's editor on the whole folder, behind the gate. The address it prints contains a random password.

    Args:
        host: Address to listen on.
        port: A free one.
        headless: Whether not to open a browser.
        notebook: File of the first one to open.
        further: More arguments for marimo's command line.
    """
    from marimo._server.registry import MIDDLEWARE_REGISTRY  # the extension point `marimo.server.asgi.middleware`
    from starlette.middleware import Middleware

    _import_ahead()
    headers = {"Content-Security-Policy": NOT_FRAMED}
    MIDDLEWARE_REGISTRY.register("gate", Middleware(Gate, headers=headers, hosts=(host,), first=notebook))
    MIDDLEWARE_REGISTRY.register("uploads", Middleware(Uploads))
    MIDDLEWARE_REGISTRY.register("kept", Middleware(KeptPages))
    sys.argv = editor_words(host, port, headless, further)
    runpy.run_module("marimo", run_name="__main__", alter_sys=True)


def editor_words(host: str, port: int, headless: bool, further: Sequence[str] = ()) -> list[str]:
    words = ["marimo", "edit", str(ROOT), "--host", host, "--port", str(port), "--skip-update-check"]
    return [*words, *further, *(["--headless"] if headless else [])]


def _import_ahead() -> None:
    """Let marimo fork each notebook's process from a server that has already imported what every page needs.

    marimo starts a new Python for each notebook, and the page waits for its imports. The fork server imports while the
    browser still loads marimo's scripts. It imports nothing from this project, so that restarting a notebook picks up
    changed modules. Only on Linux is forking safe.
    """
    if sys.platform != "linux":
        return
    from marimo._session.managers import kernel

    copies = multiprocessing.get_context("forkserver")
    copies.set_forkserver_preload(list(IMPORTED))
    forkserver.ensure_running()

    def context(method: str | None = None) -> BaseContext:
        return copies if method == "spawn" else multiprocessing.get_context(method)

    kernel.get_context = context
