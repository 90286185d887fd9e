"""Real servers, for the class and for editing: access, headers, refusals, and the notebooks' addresses."""

import ast
import asyncio
import gc
import http.cookiejar
import inspect
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from marimo._ast import compiler
from starlette.responses import PlainTextResponse
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from benchmarks.browser import free_port
from lib.site import gate, server
from lib.site.access import AccessCheck, Keys
from lib.ui.notebooks import NOTEBOOKS
from tests.conftest import ROOT

LONG = gate.MAX_SETTINGS_BYTES
FORGED = ["http://evil.example", "http://localhost:1", "https://127.0.0.1", "null", "http://[", ""]


@pytest.fixture(scope="module")
def base(site):
    return site.base


def ask(address, opener=None, **headers):
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(address, headers=given)
    try:
        with (opener or urllib.request.build_opener()).open(request, timeout=60) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


def opens(address, origin=None, **headers) -> int:
    """Return the status with which a WebSocket is answered; 101 if it opens."""
    try:
        with connect(
            address.replace("http", "ws", 1), origin=origin, open_timeout=60, max_size=None, additional_headers=headers
        ) as socket:
            socket.recv(60)
            return 101
    except InvalidStatus as refused:
        return refused.response.status_code


def test_every_notebook_is_served(base):
    files = {f"notebooks/{path.name}" for path in (ROOT / "notebooks").glob("*.py")}
    assert files == {one.file for one in NOTEBOOKS[1:]}
    for notebook in NOTEBOOKS:
        status, _, page = ask(base + notebook.path)
        assert status == 200
        title = re.search(r'app_title="([^"]+)"', (ROOT / notebook.file).read_text())
        assert title is not None
        assert title.group(1) in page, notebook
    assert ask(f"{base}/nowhere/")[0] == 404


def test_a_page_cannot_be_framed_or_contact_other_hosts(base):
    for path in ("/", "/mnist_training/", "/claims/"):
        _, headers, page = ask(base + path)
        policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
        assert policy["frame-ancestors"] == "'self'"
        assert policy["default-src"] == "'self'"
        assert "http" not in headers["Content-Security-Policy"], "no other host is named"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert path == "/" or 'src="/assets/' in page, "the scripts of all pages have one address"


def test_only_content_hashed_files_are_cached_forever(base):
    _, of_page, page = ask(f"{base}/mnist_training/")
    files = re.findall(r"/assets/[^\"]+\.(?:js|css|woff2)(?=\")", page)
    assert len(files) > 50
    for file in (files[0], files[-1], next(one for one in files if one.endswith("woff2"))):
        with urllib.request.urlopen(base + file, timeout=60) as answer:
            assert answer.headers["Cache-Control"] == gate.FOREVER, file
    of_others = [headers for _, headers, _ in (ask(base + path) for path in ("/", "/assets/none-12345678.js"))]
    assert all("immutable" not in (headers["Cache-Control"] or "") for headers in (of_page, *of_others))


@pytest.mark.parametrize(
    "origin", [*FORGED, "http://evil-{}", "http://x.{}", "http://evil.example/{}", "http://{}.example"]
)
def test_other_sites_cannot_open_a_websocket(base, origin):
    assert opens(f"{base}/claims/ws?session_id=s_forged", origin=origin.format(urlsplit(base).netloc)) == 403


def test_own_pages_and_programs_can_open_a_websocket(base):
    assert opens(f"{base}/claims/ws?session_id=s_own", origin=base) == 101
    assert opens(f"{base}/claims/ws?session_id=s_program") == 101


@pytest.mark.parametrize("host", ["evil.example", "evil.example:2718", "127.0.0.1.evil.example", "[", ""])
def test_a_foreign_host_name_is_refused(base, host):
    """DNS rebinding: a site can point its own name to this machine, and then its pages have the right origin."""
    status, _, text = ask(base, Host=host)
    assert status in (400, 403), "400: no name at all"
    assert "class" not in text
    for ours in ("localhost", "127.0.0.1:2718", "[::1]:2718", "192.168.0.7"):
        assert ask(base, Host=ours)[0] == 200


@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),  # a followed link
        ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}, 200),
        ({}, 200),
    ],
)
def test_other_sites_may_only_link_to_us(base, headers, wanted):
    assert ask(f"{base}/", **headers)[0] == wanted


@pytest.mark.parametrize("query", ["a" * LONG, "," * (LONG // 3), "%20" * 13_000, "%C3%A9" * 6_000, "a" * 39_000])
def test_an_address_too_long_gets_an_explaining_page(base, query):
    status, _, page = ask(f"{base}/claims/?rate.hidden={query}")
    assert status == 414
    assert "This address is too long" in page
    assert f"Expected at most {LONG:,} bytes" in page
    assert '<a href="/claims/">' in page


def head(path: str = "/", query: bytes = b"", **headers: str) -> dict:
    said = [(b"host", b"localhost"), *((name.encode(), value.encode()) for name, value in headers.items())]
    return {"type": "http", "method": "GET", "path": path, "query_string": query, "headers": said, "client": ("::1", 1)}


def quick_status(app, scope: dict, limit_s: float = 0.3) -> int:
    """Return the answer's status; fail if it takes longer than `limit_s` of this thread's CPU time."""
    said: list[dict] = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        said.append(message)

    began = time.thread_time()
    asyncio.run(app(scope, receive, send))
    assert time.thread_time() - began < limit_s, "nobody else is answered meanwhile"
    return said[0]["status"]


@pytest.mark.parametrize(
    "scope",
    [
        head("/claims/", b"a&" * 490_000),
        head("/" + "a/" * 450_000),
        head(cookie='class-1="' + "\\0" * 450_000 + '"'),
        head(referer="http://localhost/" + "?" * 900_000),
        head(origin="http://" + "[" * 900_000),
        head("/", b"", **{f"x-{n}": "a" * 100 for n in range(9_000)}),
        {**head(), "headers": [(b"host", b"localhost"), *[(b"a", b"")] * 8_000]},
    ],
    ids=lambda scope: f"{scope['path'][:8]} {len(scope['query_string'])} {len(scope['headers'])}",
)
def test_oversized_heads_are_refused_unread(scope):
    async def read(*_) -> None:
        raise AssertionError("expected a refusal")

    assert quick_status(gate.Gate(read, {}), scope) in (414, 431)


@pytest.mark.parametrize(
    "lines", [b"a:\r\n" * 250_000, b"x: " + b"a" * 1_000_000 + b"\r\n", b"x: y\r\n z" + b"\r\n z" * 200_000]
)
def test_far_oversized_heads_are_refused_unparsed(base, lines):
    """Parsing takes half a second per megabyte, during which the server answers no other request."""
    assert sent(base, b"GET / HTTP/1.1\r\nHost: localhost\r\n" + lines + b"\r\n") == b"HTTP/1.1 400"


@pytest.mark.parametrize(
    ("path", "lines", "wanted"),
    [
        (b"/claims/ws?session_id=s_long", b"Cookie: " + b"a" * 9_000 + b"\r\n", b"HTTP/1.1 101"),
        (b"/claims/ws?session_id=s_many", b"x: y\r\n" * 200, b"HTTP/1.1 101"),
        (b"/claims/ws?a=" + b"a" * 9_000, b"", b"HTTP/1.1 403"),
        (b"/claims/ws", b"a:\r\n" * 8_000, b"HTTP/1.1 403"),
        (b"/claims/ws", b"Referer: " + b"a" * 35_000 + b"\r\n", b"HTTP/1.1 403"),
    ],
)
def test_a_websocket_with_a_long_head_is_answered(base, path, lines, wanted):
    upgrade = b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    upgrade += b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    assert sent(base, b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n" + upgrade + lines + b"\r\n") == wanted


def sent(base: str, request: bytes) -> bytes:
    where = urlsplit(base)
    with socket.create_connection((where.hostname, where.port), 10) as connection:
        with suppress(ConnectionError):  # the server may close it early
            connection.sendall(request)
        return connection.recv(12)


def test_the_longest_allowed_head_is_read_quickly():
    check = AccessCheck(PlainTextResponse("in"), Keys(b"s" * 32, "correct horse"), "class-1")
    for cookie in ('class-1="' + "\\0" * 15_000 + '"', "a;" * 15_000, "class-1=" + "." * 30_000):
        assert quick_status(gate.Gate(check, {}), head("/claims/", cookie=cookie)) == 401


def test_the_longest_allowed_address_opens_its_websocket(base):
    settings = "rate.hidden=" + "a" * (LONG - len("rate.hidden="))
    assert ask(f"{base}/claims/?{settings}")[0] == 200
    assert ask(f"{base}/claims/?{settings}a")[0] == 414
    path = max((notebook.path for notebook in NOTEBOOKS), key=len)
    assert opens(f"{base}{path}ws?{settings[: -len('&session_id=s_abcdef')]}&session_id=s_abcdef") == 101


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["app", "run", "edit"])
def test_a_server_ends_with_all_its_processes(tmp_path, mode):
    with started(mode, tmp_path) as (process, base, opener):
        cookie = {"Cookie": cookies(opener)} if mode == "edit" else {}
        query = "file=notebooks/claims.py&session_id=s_1" if mode == "edit" else "session_id=s_1"
        path = "/ws" if mode == "edit" else "/claims/ws"
        assert opens(f"{base}{path}?{query}", origin=base, **cookie) == 101
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM if mode == "edit" else signal.SIGINT)
        process.wait(60)
        _, left = psutil.wait_procs(children, timeout=60)
        assert not left


@contextmanager
def started(
    mode, cache, notebook="mnist_training.py"
) -> Iterator[tuple[subprocess.Popen, str, urllib.request.OpenerDirector]]:
    """`make run`, `make edit` or `make class` on a free port, with the cookie from its printed address."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, *f"-u -m lib.cli.launch {mode} --port {port} --headless 1 --notebook {notebook}".split()],
        cwd=ROOT,
        env=os.environ | {"MNIST_CACHE_DIR": str(cache)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    jar = http.cookiejar.CookieJar()
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
    opener.jar = jar  # type: ignore[attr-defined]
    try:
        line = next(line for line in process.stdout if "http://" in line)
        address = line[line.index("http://") :].strip()
        base = re.match(r"http://[^/?]+", address)
        assert base is not None
        wait_until_open(base.group())
        ask(address, opener)
        yield process, base.group(), opener
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def wait_until_open(base: str, limit_s: float = 60.0) -> None:
    """Poll, since marimo's editor prints its address shortly before it listens."""
    where, limit = urlsplit(base), time.monotonic() + limit_s
    while True:
        try:
            socket.create_connection((where.hostname or "", where.port or 80), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < limit, f"{base} does not answer"
            time.sleep(0.05)


def cookies(opener) -> str:
    return "; ".join(f"{cookie.name}={cookie.value}" for cookie in opener.jar)


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ("/many_networks?mixed.spread=0.2&count.most=4", "/many_networks/?mixed.spread=0.2&count.most=4"),
        ("/parallel_sweeps?count.most=4", "/many_networks/?count.most=4"),
        ("/traps/?traps.size=8&live.size=64", "/inside_a_step/?traps.size=8&live.size=64"),
        ("/anatomy_of_a_step?step.size=8", "/inside_a_step/?step.size=8"),
    ],
)
def test_redirects_of_former_addresses_keep_the_settings(base, asked, answered):
    with urllib.request.urlopen(base + asked) as answer:
        assert answer.url == base + answered


@pytest.mark.parametrize("notebook", [NOTEBOOKS[0], NOTEBOOKS[3], NOTEBOOKS[-1]], ids=lambda one: one.name)
def test_a_page_does_not_reveal_the_projects_folder(base, notebook):
    for query in ("", "?task.size=8"):
        status, headers, page = ask(base + notebook.path + query)
        assert (status, str(ROOT) in page) == (200, False)
        assert int(headers["Content-Length"]) == len(page.encode())
        assert f"/{notebook.file}" in page


def test_marimos_answers_do_not_reveal_the_projects_folder(base):
    _, _, page = ask(f"{base}/mnist_training/")
    token = re.search(r'"serverToken": "([^"]*)"', page)
    assert token is not None
    listed = urllib.request.Request(
        f"{base}/mnist_training/api/home/workspace_files",
        b"{}",
        {"Marimo-Server-Token": token[1], "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(listed) as answer:
        assert "mnist_training.py" in (files := answer.read().decode())
    status, _, refused = ask(f"{base}/mnist_training/public/%00", X_Notebook_Id="mnist_training.py")
    assert (status, "/public does not exist" in refused) == (400, True)
    assert [text for text in (files, refused) if str(ROOT) in text] == []
    with urllib.request.urlopen(urllib.request.Request(f"{base}/", method="HEAD")) as answer:
        assert int(answer.headers["Content-Length"]) > 1_000, "a head says how long the text would be"


@pytest.mark.slow
def test_memory_of_closed_sessions_is_collected(monkeypatch):
    """A session's objects form cycles, so the garbage collector runs, once for all viewers who left together."""
    collected, twice = [], threading.Event()
    monkeypatch.setattr(server.gc, "collect", lambda: collected.append(1) or len(collected) < 2 or twice.set())

    async def session(*_) -> None: ...

    nobody: Any = None

    async def leave():
        collect = server.CollectGarbage(session, after_s=0.1)  # for one server
        for kind in ("websocket", "websocket", "http", "websocket"):
            await collect({"type": kind}, nobody, nobody)
        assert not collected, "marimo ends the session a while after its tab has closed"
        while not twice.is_set():
            await asyncio.sleep(0.01)

    asyncio.run(leave())
    assert len(collected) == 2, "soon, and once more for what was still drawing"


SOURCE = "\n".join(f"x{k} = [a{k} + b{k} * (c, d, {k})]" for k in range(300))


def test_a_session_waits_for_the_servers_imports(monkeypatch):
    imported, made = threading.Event(), []
    (preparing := threading.Thread(target=imported.wait, daemon=True)).start()
    notebooks = server.Notebooks(preparing)
    monkeypatch.setattr(notebooks, "make", lambda name: made.append((name, imported.is_set())) or PlainTextResponse())

    async def ask() -> None:
        async def nothing(*_: Any) -> Any: ...

        session = asyncio.create_task(notebooks({"type": "websocket", "path": "/your_gpu/ws"}, nothing, nothing))
        await notebooks({"type": "http", "path": "/your_gpu/"}, nothing, nothing)
        await asyncio.sleep(0.1)
        assert made == [("your_gpu", False)], "the page is sent at once"
        imported.set()
        await asyncio.gather(session, return_exceptions=True)  # the answer is not a WebSocket's

    asyncio.run(ask())
    assert made == [("your_gpu", False), ("your_gpu", True)]


@pytest.mark.skipif(sys.version_info >= (3, 11, 8), reason="this Python's threads can build syntax trees at once")
def test_threads_parse_one_at_a_time(monkeypatch):
    for where, name in ((ast, "parse"), (compiler, "ast_compile")):  # another test may have patched them
        monkeypatch.setattr(where, name, inspect.unwrap(getattr(where, name)))
    with pytest.raises(SystemError, match="recursion depth mismatch"):
        parse_while_another_thread_does(times=50)  # the fault must exist, or the test proves nothing
    server.one_parses_at_a_time()
    parse_while_another_thread_does()


def parse_while_another_thread_does(times: int = 1) -> None:
    """Parse as a page load does. At each garbage collection another thread gets time to compile cells, as kernels do;
    on a busy machine it may get none within one parse."""
    over = threading.Event()
    faults: list[SystemError] = []

    def cells() -> None:
        while not over.is_set():
            try:
                compiler.module_compile("y = [(f, g)]")
            except SystemError as fault:
                faults.append(fault)

    def let_others_in(phase: str, _: dict) -> None:
        if phase == "start" and threading.current_thread() is here:
            time.sleep(0.001)

    here, other, thresholds = threading.current_thread(), threading.Thread(target=cells), gc.get_threshold()
    gc.callbacks.append(let_others_in)
    gc.set_threshold(200)
    other.start()
    try:
        for _ in range(times):
            assert len(ast.parse(SOURCE).body) == 300
            if faults:
                break
    finally:
        over.set()
        other.join()
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(let_others_in)
    if faults:
        raise faults[0]
