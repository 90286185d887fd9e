"""Attacks on a running class site: each is refused in a sentence, and somebody else's page goes on meanwhile."""

import http.client
import json
import resource
import signal
import socket
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from websockets.sync.client import connect

from benchmarks.client import Lost, Viewer
from lib.pages.access import AT_ONCE, Card, Keys, kept_secret
from lib.pages.notebooks import NOTEBOOKS
from tests.browser import serving
from tests.pages.test_server import ask, opens

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PASSWORD = "correct horse"
# The first experiment is quick; what follows in the page is small too.
QUICK = "&".join(
    (
        "rate.count=2&rate.size=4096&rate.epochs=1",
        "size.sizes=4096&size.epochs=1",
        "depth.networks=16&depth.size=4096&depth.epochs=1",
        "backend.hidden=16&backend.size=4096&backend.epochs=1",
    )
)
CELL, LIMIT_S = "rate_experiment", 240
LONG = "rate.count=16&rate.size=1&rate.epochs=20&rate.hidden=512"  # far longer than a test
CONNECTIONS, FLOOD_S, RELOADS = 1_000, 10.0, 200


class Site:
    """A running class site, and cookies for it."""

    def __init__(self, base: str, pid: int, cache: Path) -> None:
        self.base, self.pid = base, pid
        self.where = urlsplit(base)
        self._keys = Keys(kept_secret(cache / "class-secret"), PASSWORD)

    def cookie(self, viewer: str) -> str:
        """Of a pupil who is in."""
        return f"class-{self.where.port}={self._keys.cookie(Card('pupil', viewer))}"

    def first(self, viewer: str, query: str = QUICK) -> Viewer:
        """A tab on the first notebook."""
        return Viewer(self.base + NOTEBOOKS[0].path, query, self.cookie(viewer))

    def raw(self, target: str, method: str = "GET", source: str = "127.0.0.1", body: str = "", **headers: str):
        """Status and text of an answer to exactly this request line, which no library makes tidy."""
        with closing(
            http.client.HTTPConnection(self.where.hostname or "", self.where.port, 60, source_address=(source, 0))
        ) as connection:
            connection._validate_path = lambda _: None  # type: ignore[attr-defined]
            connection.putrequest(method, target, skip_host="Host" in headers, skip_accept_encoding=True)
            given = {"Content-Length": str(len(body))} if body else {}
            for name, value in {**given, **headers}.items():
                connection.putheader(name.replace("_", "-"), value)
            connection.endheaders(body.encode() or None)
            answer = connection.getresponse()
            return answer.status, answer.read().decode("utf-8", "replace")


@contextmanager
def site_at(cache: Path) -> Iterator[Site]:
    cache.mkdir(exist_ok=True)
    password = cache.parent / "password"
    password.write_text(PASSWORD)
    with serving(cache, None, options=("--password-file", str(password), "--viewers", "30")) as (base, process):
        yield Site(base, process.pid, cache)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with site_at(tmp_path_factory.mktemp("served") / "cache") as served:
        yield served


@pytest.fixture(scope="module")
def tab(site):
    """Somebody else's page, open all the time."""
    with site.first("bystander") as viewer:
        viewer.wait(lambda viewer: viewer.frames.get(CELL) and viewer.frames[CELL].state == "done", LIMIT_S, "done")
        yield viewer


@pytest.fixture
def bystander(tab):
    """Asks for a training before the attack, and gets its result after it."""
    moved = tab.move(CELL, "Epochs", next(POSITIONS))
    yield
    assert moved.finished(LIMIT_S).state in ("done", "saved-result")


POSITIONS = iter(range(1, 20))  # of the slider, each used once


def test_wrong_passwords_are_refused_and_lock_nobody_out(site, bystander):
    def guess(number: int):
        form = f"password=guess-{number}&next=/"
        return site.raw("/enter", "POST", body=form, Host="localhost")

    with ThreadPoolExecutor(AT_ONCE + 4) as pool:
        guesses = [pool.submit(guess, number) for number in range(AT_ONCE + 4)]
        status, _ = site.raw("/enter", "POST", "127.0.0.2", f"password={PASSWORD.replace(' ', '+')}")
        assert status == 303, "from another address, at once"
        answers = [one.result() for one in guesses]
    assert {status for status, _ in answers} <= {403, 429}
    assert all("This is not the password" in text or "Too many passwords" in text for _, text in answers)
    assert ask(f"{site.base}/traps/", Cookie=site.cookie("pupil"))[0] == 200, "who is in stays in"


def test_nobody_comes_in_without_a_card(site, bystander):
    for path in ("/traps/ws?session_id=s_nobody", "/mnist_training/ws?session_id=s_nobody"):
        assert opens(site.base + path, origin=site.base) == 403
        assert opens(site.base + path, origin=site.base, Cookie=f"class-{site.where.port}=forged.card.x") == 403
    status, _, text = ask(f"{site.base}/assets/nothing.js")
    assert (status, text) == (401, "Expected somebody who has entered, got nobody; open the page and enter.")


def test_a_thousand_connections_leave_nothing_behind(site, bystander):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4_096) if hard > 0 else 4_096, hard))
    server = psutil.Process(site.pid)
    before_mb = server.memory_info().rss / 1e6
    try:
        with ExitStack() as stack:
            began = time.monotonic()
            for number in range(CONNECTIONS):
                flood = stack.enter_context(closing(socket.create_connection((site.where.hostname, site.where.port))))
                kind = number % 3  # one that asks, one that stops in the middle, one that wants a WebSocket
                request = b"GET /enter HTTP/1.1\r\nHost: localhost\r\n"
                upgrade = b"GET /traps/ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                flood.sendall((request + b"\r\n", request, upgrade + b"\r\n")[kind])
                time.sleep(max(0.0, began + FLOOD_S * number / CONNECTIONS - time.monotonic()))
            assert ask(f"{site.base}/healthz")[0] == 200, "with all of them open"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert ask(f"{site.base}/traps/", Cookie=site.cookie("pupil"))[0] == 200
    limit = time.monotonic() + 60
    while (now_mb := server.memory_info().rss / 1e6) > before_mb + 50:
        assert time.monotonic() < limit, f"expected about {before_mb:.0f} MB again, got {now_mb:.0f} MB"
        time.sleep(0.5)
    assert server.num_fds() < CONNECTIONS, "the connections are closed"


def test_a_forged_origin_or_host_is_refused_even_with_a_card(site, bystander):
    cookie = {"Cookie": site.cookie("victim")}
    for origin in ("http://evil.example", "null", f"{site.base}.evil.example"):
        assert opens(f"{site.base}/traps/ws?session_id=s_forged", origin=origin, **cookie) == 403
        status, _, text = ask(f"{site.base}/traps/", Origin=origin, **cookie)
        assert (status, "got one of another site" in text) == (403, True)
    status, _, text = ask(f"{site.base}/traps/", Host="evil.example", **cookie)
    assert (status, "got evil.example" in text) == (403, True)


@pytest.mark.parametrize("token", [None, "forged"])
def test_a_post_without_the_server_s_token_does_nothing(site, tab, bystander, token):
    """Even in the session of the page itself."""
    said = json.dumps({"objectIds": [tab.controls(CELL)["Epochs"].id], "values": [1]})
    headers = {"Cookie": site.cookie("bystander"), "Content-Type": "application/json", "Origin": site.base}
    headers |= {"Marimo-Session-Id": tab._session} | ({"Marimo-Server-Token": token} if token else {})
    for call in ("set_ui_element_value", "instantiate", "function_call", "restart_session", "execute", "run"):
        status, text = site.raw(f"/mnist_training/api/kernel/{call}", "POST", body=said, **headers)
        assert status in (401, 403, 404, 405), call
        assert "error" in text or "detail" in text or "Not" in text, call


UP = ("../" * 12, "..%2f" * 12, "%2e%2e/" * 12, "%252e%252e%252f" * 12, "..%5c" * 12, "....//" * 12, "%2f", "/")


@pytest.mark.parametrize(
    "folder", ["/assets/", "/traps/assets/", "/traps/public/", "/traps/@file/10000-", "/traps/", "/"]
)
def test_no_path_leads_out_of_a_folder(site, bystander, folder):
    cookie = {"Cookie": site.cookie("pupil"), "X-Notebook-Id": "traps.py"}
    for up in UP:
        for file in ("etc/passwd", "proc/self/environ", "pyproject.toml", "etc/passwd%00.js"):
            status, text = site.raw(folder + up + file, **cookie)
            assert status in (400, 403, 404), folder + up + file
            assert "root:" not in text
            assert "MNIST_CACHE_DIR" not in text
            assert "[project]" not in text


def test_a_query_of_a_megabyte_is_refused(site, bystander):
    cookie = {"Cookie": site.cookie("pupil")}
    status, text = site.raw(f"/traps/?task.size={'a' * 900_000}", **cookie)
    assert (status, "This address is too long" in text) == (414, True)
    with suppress(ConnectionError):  # it may hang up in the middle of a longer one
        status, text = site.raw(f"/traps/?task.size={'a' * 3_000_000}", **cookie)
        assert 400 <= status < 500
    assert ask(f"{site.base}/healthz")[0] == 200


def test_settings_that_cannot_be_are_said_on_the_page(site, bystander):
    """Control characters, and numbers out of range; the page opens with its usual settings in their place."""
    bad = "rate.epochs=-99&rate.size=999999999999&rate.hidden=%00%0d%0aSet-Cookie:x&rate.count=1e999&%00=%1b[31m"
    with site.first("odd", f"{QUICK.partition('&size')[2]}&{bad}") as viewer:
        shown = viewer.wait(lambda viewer: viewer.frames.get("title"), LIMIT_S, "the title")
        assert "rate.epochs=-99: expected" in shown.html
        assert "rate.size=999999999999: expected" in shown.html
        assert "rate.count=1e999: expected" in shown.html
        assert "\x00" not in shown.html


def test_two_hundred_reloads_take_one_place(site, bystander):
    cookie = site.cookie("reloader")
    for number in range(RELOADS):
        assert ask(f"{site.base}/claims/", Cookie=cookie)[0] == 200
        with connect(
            f"ws{site.base.removeprefix('http')}/claims/ws?session_id=s_{number:06d}",
            additional_headers={"Cookie": cookie},
            open_timeout=60,
            max_size=None,
            proxy=None,
        ):
            pass
    assert viewers(site, at_most=3) <= 3
    assert ask(f"{site.base}/traps/", Cookie=site.cookie("somebody"))[0] == 200


def viewers(site: Site, at_most: int) -> int:
    """How many there are, once there are no more than this, or after a while."""
    limit = time.monotonic() + 60
    while True:
        status, _, text = ask(f"{site.base}/healthz")
        assert status == 200
        now = int(text.partition('"viewers":')[2].partition(",")[0])
        if now <= at_most or time.monotonic() > limit:
            return now
        time.sleep(0.2)


def training(viewer: Viewer) -> bool:
    return CELL in viewer.frames and viewer.frames[CELL].state == "training"


def test_a_killed_worker_is_replaced(site, tab):
    with site.first("loser", LONG) as loser:
        loser.wait(training, LIMIT_S, "training")
        for worker in psutil.Process(site.pid).children(recursive=True):
            worker.send_signal(signal.SIGKILL)
        ended = loser.wait(lambda viewer: viewer.frames[CELL].state == "failed" and viewer.frames[CELL], LIMIT_S, "why")
        assert "The worker" in ended.html, "in a sentence"
    moved = tab.move(CELL, "Epochs", next(POSITIONS))
    assert moved.finished(LIMIT_S).state in ("done", "saved-result")


def test_a_killed_server_leaves_its_store_and_its_links_intact(tmp_path):
    cache = tmp_path / "cache"
    with site_at(cache) as site:
        with site.first("pupil") as viewer:
            viewer.wait(lambda viewer: CELL in viewer.frames and viewer.frames[CELL].state == "done", LIMIT_S, "done")
        old, children = site.cookie("pupil"), []
        with suppress(Lost), site.first("loser", LONG) as loser:
            loser.wait(training, LIMIT_S, "training")
            server = psutil.Process(site.pid)
            children = server.children(recursive=True)
            server.kill()
            loser.wait(lambda _: False, 5, "nothing more")
        assert children
        assert psutil.wait_procs(children, timeout=60)[1] == [], "its workers end"
    for file in cache.rglob("*.sqlite"):
        with closing(sqlite3.connect(file)) as store:
            assert store.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    with site_at(cache) as again:
        assert again._keys.card(old.partition("=")[2]) is not None, "who was in is still in"
        with again.first("pupil") as viewer:
            shown = viewer.wait(
                lambda viewer: CELL in viewer.frames and viewer.frames[CELL].state == "saved-result", LIMIT_S, "saved"
            )
            assert shown
