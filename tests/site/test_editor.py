"""The editor: only the person who started the server gets from a page to its cells; which pages it keeps; and the
slow imports that it makes ahead of a notebook's process."""

import asyncio
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import suppress
from types import SimpleNamespace

import psutil
import pytest
from marimo._messaging.notification import QueryParamsDeleteNotification, QueryParamsSetNotification
from marimo._messaging.serde import serialize_kernel_message
from marimo._server.api.endpoints.ws.ws_formatter import format_wire_message

from lib import ROOT
from lib.site import editor as module
from lib.site import gate
from lib.ui.notebooks import NOTEBOOKS
from tests.site.test_server import FORGED, LONG, ask, cookies, opens, started

BEGIN = "from lib.site.editor import _import_ahead; _import_ahead()\n"


@pytest.mark.slow
def test_a_page_opens_its_cells_with_its_settings_and_both_end_together(tmp_path):
    with started("app", tmp_path) as (process, base, opener):
        status, _, text = ask(f"{base}/edit")
        assert (status, "make run" in text) == (403, True), "another user of this machine"
        left = {"Referer": f"{base}/inside_a_step/?step.size=8&session_id=s_1"}
        with opener.open(urllib.request.Request(f"{base}/edit", headers=left), timeout=60) as answer:
            assert answer.status == 200
            assert not answer.url.startswith(base), "a server of its own"
            assert answer.url.replace("%2F", "/").endswith("/?file=notebooks/inside_a_step.py&step.size=8")
        children = psutil.Process(process.pid).children(recursive=True)
        assert [one for one in children if "edit" in one.cmdline()]
        process.send_signal(signal.SIGINT)
        process.wait(60)
        _, alive = psutil.wait_procs(children, timeout=60)
        assert not alive


def test_the_editor_notes_which_pages_no_browser_shows(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(module, "SESSION_TTL_S", 0.02)
    pages = {
        name: SimpleNamespace(kernel_pid=lambda pid=pid: pid, room=SimpleNamespace(size=0))
        for name, pid in {"a": 7, "b": 8, "starting": None}.items()
    }
    of_editor = {"app": SimpleNamespace(state=SimpleNamespace(session_manager=SimpleNamespace(sessions=pages)))}
    seen = []

    async def look() -> dict:
        seen.append({one.name for one in tmp_path.rglob("left-*")})
        return {}

    async def say(_message) -> None:
        pass

    async def marimo(scope, receive, send) -> None:
        if scope["type"] == "websocket":
            pages[scope["page"]].room.size += 1
            await send({"type": "websocket.accept"})
            await send({"type": "websocket.send", "text": "ready"})
            await receive()
            pages[scope["page"]].room.size -= 1

    async def visits() -> None:
        app = module.KeptPages(marimo)
        for name in ("a", "a", "b"):
            await app({"type": "websocket", "page": name, **of_editor}, look, say)
            await asyncio.sleep(0.1)
            await look()
        pages.pop("a")  # its process has ended
        for kind in ("http", "lifespan"):  # the second ends with the server
            await app({"type": kind, **of_editor}, look, say)
            await look()

    asyncio.run(visits())
    a, b, both = {"left-7"}, {"left-8"}, {"left-7", "left-8"}
    assert seen == [b, both, b, both, a, both, both, set()]


@pytest.mark.parametrize(
    ("moved", "opened", "shown_as_it_was"),
    [
        ([], "rate.size=1", True),  # reloaded
        ([], "rate.size=2", False),  # a link to other settings
        ([], "size.epochs=3", False),
        ([], "", True),  # from another notebook
        ([("set", "rate.size", "4")], "rate.size=4", True),
        ([("set", "rate.size", "4")], "rate.size=1", False),
        ([("set", "rate.size", "4"), ("delete", "rate.size", None)], "rate.size=4", False),
    ],
)
@pytest.mark.parametrize("kept", [True, False])
def test_a_link_to_other_settings_restarts_a_page_that_no_browser_shows(
    monkeypatch, tmp_path, moved, opened, shown_as_it_was, kept
):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    session, ended = SimpleNamespace(kernel_pid=lambda: 7, room=SimpleNamespace(size=0)), []
    manager = SimpleNamespace(
        sessions={"first": session}, get_session_by_file_key=lambda _: session, close_session=ended.append
    )

    async def marimo(_scope, _receive, send) -> None:
        for op, key, value in moved:
            data = serialize_kernel_message(MOVES[op](key=key, value=value))
            await send({"type": "websocket.send", "text": format_wire_message(f"query-params-{op}", data)})

    async def visits() -> None:
        app = module.KeptPages(marimo)
        for session_id, settings in (("first", "rate.size=1"), ("second", opened), ("first", "rate.size=7")):
            session.room.size = int(session_id == "second" and not kept)
            scope = {"query_string": f"file=a.py&view-as=present&session_id={session_id}&{settings}".encode()}
            scope |= {"type": "websocket", "app": SimpleNamespace(state=SimpleNamespace(session_manager=manager))}
            await app(scope, None, ignore)  # type: ignore[arg-type]

    async def ignore(_message) -> None:
        pass

    asyncio.run(visits())
    assert ended == ([] if shown_as_it_was or not kept else ["first"]), "and whoever connects again keeps its own"


MOVES = {"set": QueryParamsSetNotification, "delete": QueryParamsDeleteNotification}


@pytest.fixture(scope="module")
def editor(tmp_path_factory):
    with started("edit", tmp_path_factory.mktemp("cache")) as (_, base, opener):
        yield base, opener


@pytest.mark.slow
def test_the_editor_serves_all_notebooks_and_opens_the_first(editor):
    base, opener = editor
    with opener.open(f"{base}/?rate.epochs=4", timeout=60) as answer:
        assert answer.url == f"{base}/?rate.epochs=4&file=mnist_training.py&view-as=present"
    with opener.open(f"{base}/?view-as=edit", timeout=60) as answer:
        assert answer.url == f"{base}/?view-as=edit&file=mnist_training.py", "who asks for the cells gets them"
    for name in ("anatomy_of_a_step", "traps"):
        with opener.open(f"{base}/?file=notebooks/{name}.py&traps.size=8", timeout=60) as answer:
            assert answer.url == f"{base}/?file=notebooks/inside_a_step.py&traps.size=8"
    for notebook in NOTEBOOKS:
        status, headers, page = ask(base + notebook.address("edit"), opener)
        assert status == 200
        assert notebook.file in page
        assert headers["Content-Security-Policy"] == gate.NOT_FRAMED
    assert "password" in ask(f"{base}/?file=mnist_training.py")[2].lower(), "without the cookie: marimo's login"
    assert ask(f"{base}/?rate.hidden={'a' * LONG}", opener)[0] == 414


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/ws?session_id=s_1&file=notebooks/claims.py", "/terminal/ws"])
def test_the_editors_websockets_require_cookie_and_origin(editor, path):
    base, opener = editor
    cookie = {"Cookie": cookies(opener)}
    for origin in FORGED:
        assert opens(base + path, origin=origin, **cookie) == 403
    assert opens(base + path, origin=base) != 101, "without the cookie"
    assert opens(base + path, origin=base, **cookie) == 101


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere marimo starts its processes as it does")
@pytest.mark.parametrize(("begin", "ahead"), [(BEGIN, True), ("", False)])
def test_a_notebooks_process_has_slow_imports_but_no_project_modules(begin, ahead):
    look = (
        "import sys; known = {one.partition('.')[0] for one in sys.modules};"
        " sys.exit(10 * ({'marimo', 'pandas', 'altair'} <= known) + ('lib' in known))"
    )
    code = (
        f"{begin}from marimo._session.managers.kernel import get_context\n"
        f"process = get_context('spawn').Process(target=exec, args=({look!r},))\n"
        "process.start(); process.join(60); print(process.exitcode)"
    )
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == ("10" if ahead else "0"), done.stderr[-500:]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere marimo starts its processes as it does")
def test_the_fork_server_ends_with_a_killed_server():
    code = (
        f"{BEGIN}from multiprocessing import forkserver\n"
        "print(forkserver._forkserver._forkserver_pid, flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdin=-1, stdout=-1, text=True) as server:
        assert server.stdout is not None
        fork_server = psutil.Process(int(server.stdout.readline()))
        assert fork_server.status() != psutil.STATUS_ZOMBIE
        server.kill()
    until = time.monotonic() + 30  # it may still be importing
    with suppress(psutil.NoSuchProcess):
        while fork_server.status() != psutil.STATUS_ZOMBIE:  # ended, but not yet waited for
            assert time.monotonic() < until
            time.sleep(0.1)


def test_waiting_for_the_editor_ends_once_it_listens():
    with socket.socket() as late:
        late.bind(("127.0.0.1", 0))
        port = late.getsockname()[1]
        assert not module._listens("127.0.0.1", port, time.monotonic() + 0.1), "bound, but it does not listen"
        threading.Timer(0.2, late.listen).start()
        assert module._listens("127.0.0.1", port, time.monotonic() + 20)
