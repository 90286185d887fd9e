"""Attacks on a running class site: each is refused in a sentence, and other viewers' pages keep working."""

import base64
import http.client
import io
import json
import resource
import signal
import socket
import sqlite3
import threading
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import chain
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import psutil
import pytest

from benchmarks.classroom import UNDER_WAY, runs_left
from benchmarks.client import Lost, Moved, Viewer
from benchmarks.viewers import Usage
from lib.site.gate import MAX_BODY_BYTES, MAX_DROPPED_BYTES
from lib.ui.notebooks import NOTEBOOKS
from tests.browser import Site, serving
from tests.site.test_server import ask, opens

pytestmark = [pytest.mark.release, pytest.mark.timeout(600)]
PASSWORD = "correct horse"
# The first experiment is quick; the rest of the page is small too.
QUICK = (
    "rate.count=2&rate.size=4096&rate.epochs=1&size.sizes=4096&size.epochs=1"
    "&depth.networks=16&depth.size=4096&depth.epochs=1&backend.hidden=16&backend.size=4096&backend.epochs=1"
)
CELL, LIMIT_S = "learning_rate", 240
LONG = "rate.count=16&rate.size=1&rate.epochs=20&rate.hidden=512"  # far longer than a test
MANY = "rate.count=16&rate.size=256&rate.epochs=5"  # stored one after another
LOSERS, GUESSERS = 10, 12
CONNECTIONS, FLOOD_S, RELOADS = 1_000, 10.0, 200
OWN = "own_data"  # the first notebook's cell for dropped files
SERVER_MB = 1_536  # limit of the server's memory
TABLE = "x,y,label\n" + "0.25,0.75,cat\n1.25,0.5,dog\n" * 300


class Attacked(Site):
    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def where(self) -> SplitResult:
        return urlsplit(self.base)

    def header(self, viewer: str) -> str:
        return "=".join(self.cookie(viewer))

    def first(self, viewer: str, query: str = QUICK) -> Viewer:
        return Viewer(self.base + NOTEBOOKS[0].path, query, self.header(viewer))

    def raw(self, target: str, method: str = "GET", source: str = "127.0.0.1", body: str = "", **headers: str):
        """Send exactly this request line, without any library's normalization; return status and text."""
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
def site_at(cache: Path) -> Iterator[Attacked]:
    cache.mkdir(exist_ok=True)
    with serving(cache, options=("--viewers", "30", "--log"), password=PASSWORD) as served:
        yield Attacked(served.base, served.process, served.cache, served.password)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with site_at(tmp_path_factory.mktemp("served") / "cache") as served:
        yield served


@pytest.fixture(scope="module")
def tab(site):
    """An uninvolved viewer's page, open throughout."""
    with site.first("bystander") as viewer:
        viewer.wait(lambda viewer: viewer.frames.get(CELL) and viewer.frames[CELL].state == "done", LIMIT_S, "done")
        yield viewer


@pytest.fixture
def bystander(tab):
    """Start a training before the attack, and check its result afterwards."""
    moved = tab.move(CELL, *next(POSITIONS))
    yield
    assert moved.finished(LIMIT_S).state in ("done", "saved-result")


# Positions of two sliders, each used once, so that each trains something new.
POSITIONS = chain((("Epochs", n) for n in range(1, 20)), (("How many rates", n) for n in range(1, 15)))


def test_wrong_passwords_are_refused_without_locking_out_others(site, bystander):
    def guess(number: int):
        form = f"password=guess-{number}&next=/"
        return site.raw("/enter", "POST", body=form, Host="localhost")

    with ThreadPoolExecutor(GUESSERS) as pool:
        guesses = [pool.submit(guess, number) for number in range(4 * GUESSERS)]
        for source in ("127.0.0.2", "127.0.0.1"):  # another address, and the guessers' own
            status, _ = site.raw("/enter", "POST", source, f"password={PASSWORD.replace(' ', '+')}")
            assert status == 303
            assert not all(one.done() for one in guesses), "while they guess"
        answers = [one.result() for one in guesses]
    assert {status for status, _ in answers} == {403}
    assert all("Wrong password" in text for _, text in answers)
    assert ask(f"{site.base}/claims/", Cookie=site.header("pupil"))[0] == 200, "who is in stays in"


def test_requests_without_a_valid_cookie_are_refused(site, bystander):
    for path in ("/claims/ws?session_id=s_nobody", "/mnist_training/ws?session_id=s_nobody"):
        assert opens(site.base + path, origin=site.base) == 403
        assert opens(site.base + path, origin=site.base, Cookie=f"class-{site.where.port}=forged.card.x") == 403
    status, _, text = ask(f"{site.base}/assets/nothing.js")
    assert (status, text) == (401, "Expected a signed-in visitor, got one without a sign-in; open the page and enter.")


def test_a_thousand_connections_are_cleaned_up(site, bystander):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4_096) if hard > 0 else 4_096, hard))
    server = psutil.Process(site.pid)
    before_mb = server.memory_info().rss / 1e6
    try:
        with ExitStack() as stack:
            began = time.monotonic()
            for number in range(CONNECTIONS):
                flood = stack.enter_context(closing(socket.create_connection((site.where.hostname, site.where.port))))
                kind = number % 3  # a complete request, an unfinished one, and a WebSocket upgrade
                request = b"GET /enter HTTP/1.1\r\nHost: localhost\r\n"
                upgrade = b"GET /claims/ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                flood.sendall((request + b"\r\n", request, upgrade + b"\r\n")[kind])
                time.sleep(max(0.0, began + FLOOD_S * number / CONNECTIONS - time.monotonic()))
            assert ask(f"{site.base}/healthz")[0] == 200, "with all of them open"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert ask(f"{site.base}/claims/", Cookie=site.header("pupil"))[0] == 200
    until(lambda: server.memory_info().rss / 1e6 <= before_mb + 50, f"about {before_mb:.0f} MB again", 60)
    assert server.num_fds() < CONNECTIONS, "the connections are closed"


@pytest.mark.parametrize("token", [None, "forged"])
def test_a_post_without_the_servers_token_does_nothing(site, tab, token):
    said = json.dumps({"objectIds": [tab.controls(CELL)["Epochs"].id], "values": [19]})
    headers = {"Cookie": site.header("bystander"), "Content-Type": "application/json", "Origin": site.base}
    headers |= {"Marimo-Session-Id": tab._session} | ({"Marimo-Server-Token": token} if token else {})
    for call in ("set_ui_element_value", "instantiate", "function_call", "restart_session", "execute", "run"):
        status, text = site.raw(f"/mnist_training/api/kernel/{call}", "POST", body=said, **headers)
        assert status in (401, 403, 404, 405), call
        assert "error" in text or "detail" in text or "Not" in text, call
    shown = tab.move(CELL, "How many rates", 2 if token else 3).finished(LIMIT_S).html
    assert " epoch" in shown
    assert "20 epochs" not in shown, "the slider was moved"


def test_another_viewers_session_cannot_be_taken_over_or_closed(site, tab):
    """The attacker knows the session's name, and has a cookie and the server's token."""
    with site.first("thief") as thief:
        card = {"Cookie": site.header("thief")}
        assert opens(f"{site.base}/mnist_training/ws?session_id={tab._session}", origin=site.base, **card) == 101
        said = json.dumps({"objectIds": [tab.controls(CELL)["Epochs"].id], "values": [19]})
        headers = card | {"Content-Type": "application/json", "Origin": site.base}
        headers |= {"Marimo-Session-Id": tab._session, "Marimo-Server-Token": thief._token}
        site.raw("/mnist_training/api/kernel/set_ui_element_value", "POST", body=said, **headers)
    shown = tab.move(CELL, "How many rates", 1).finished(LIMIT_S).html
    assert " epoch" in shown
    assert "20 epochs" not in shown, "the slider was moved"


UP = ("../" * 12, "..%2f" * 12, "%2e%2e/" * 12, "%252e%252e%252f" * 12, "..%5c" * 12, "....//" * 12, "%2f", "/")


@pytest.mark.parametrize(
    "folder", ["/assets/", "/claims/assets/", "/claims/public/", "/claims/@file/10000-", "/claims/", "/"]
)
def test_path_traversal_is_refused(site, bystander, folder):
    cookie = {"Cookie": site.header("pupil"), "X-Notebook-Id": "claims.py"}
    for up in UP:
        for file in ("etc/passwd", "proc/self/environ", "pyproject.toml", "etc/passwd%00.js"):
            status, text = site.raw(folder + up + file, **cookie)
            assert status in (400, 403, 404), folder + up + file
            assert "root:" not in text
            assert "MNIST_CACHE_DIR" not in text
            assert "[project]" not in text


def post(tab: Viewer, **headers) -> http.client.HTTPConnection:
    """Return a connection that has sent the headers of a control's new value."""
    where = urlsplit(tab._origin)
    said = tab._headers | {"Content-Type": "application/json", "Origin": tab._origin, **headers}
    said |= {"Marimo-Session-Id": tab._session, "Marimo-Server-Token": tab._token}
    connection = http.client.HTTPConnection(where.hostname or "", where.port, 120)
    connection.putrequest("POST", f"{urlsplit(tab._page).path}api/kernel/set_ui_element_value")
    for name, value in said.items():
        connection.putheader(name, value)
    connection.endheaders()
    return connection


def answer_of(connection: http.client.HTTPConnection) -> tuple[int, str]:
    """Return the answer's status, and the sentence that marimo's page shows for it."""
    answer = connection.getresponse()
    text = answer.read().decode()
    return answer.status, json.loads(text).get("detail", "")


@pytest.mark.parametrize("declares", [True, False])
def test_two_gigabytes_are_refused_or_cut_off(site, tab, bystander, declares):
    said_of_it = {"Content-Length": str(2 << 30)} if declares else {"Transfer-Encoding": "chunked"}
    sent_bytes, part = 0, bytes(1 << 20)
    framed = part if declares else b"%x\r\n%b\r\n" % (len(part), part)
    with Usage(psutil.Process(site.pid)) as usage, closing(post(tab, **said_of_it)) as connection:
        with suppress(ConnectionError):  # refused in the meantime
            while sent_bytes < (64 << 20 if declares else 2 << 30):
                connection.send(framed)
                sent_bytes += len(part)
        status, said = answer_of(connection)
    found = "1,536 MiB; use smaller files, or zip them." if declares else ""
    assert (status, f"Expected files of at most 96 MiB together, got at least {found}" in said) == (413, True)
    assert sent_bytes < MAX_BODY_BYTES + (32 << 20), "the kernel's buffers hold some more"
    assert usage.peak_mb < SERVER_MB


def drop(viewer: Viewer, name: str, content: bytes) -> Moved:
    label = next(label for label in viewer.controls(OWN) if "drop your own" in label)
    return viewer.move(OWN, label, [[name, base64.b64encode(content).decode()]])


def bomb() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(16):
            archive.writestr(f"{number}.npy", bytes(64 << 20))
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("bomb.npz", bomb, "the arrays: expected at most 512 MiB, got more"),
        ("novel.csv", lambda: b"It was a dark and stormy night\n" * 500_000, "expected a label column"),
        ("words.csv", lambda: b"x,label\n" + b"dark,stormy\n" * 500_000, "expected numbers in column"),
        ("unlabelled.csv", (TABLE + "0.5,0.5,\n").encode, "expected a label in every row, got none in row"),
        ("largest.bin", lambda: b"\1\0\2" * (MAX_DROPPED_BYTES // 3), "looks like a binary file of another kind"),
    ],
)
def test_a_dropped_file_that_cannot_be_trained_on_is_refused(site, bystander, name, content, says):
    with Usage(psutil.Process(site.pid)) as usage, site.first("dropper") as viewer:
        viewer.wait(lambda viewer: OWN in viewer.frames, LIMIT_S, "the field")
        why = drop(viewer, name, content()).finished(LIMIT_S, states=("failed",))
        assert f"{name} cannot be trained on" in why.html
        assert says in why.html
    assert usage.peak_mb < SERVER_MB


def test_uploads_beyond_the_memory_are_refused_until_there_is_room(site, bystander):
    """Of a dozen files of the largest size, some are read and all others refused; afterwards there is room again."""
    content = json.dumps({"objectIds": ["nobody's"], "values": [[["x", "A" * (4 * MAX_DROPPED_BYTES // 3)]]]}).encode()
    with Usage(psutil.Process(site.pid)) as usage, site.first("dropper") as viewer:
        viewer.wait(lambda viewer: OWN in viewer.frames, LIMIT_S, "the field")
        all_there = threading.Barrier(12)

        def send(_: object = None) -> tuple[int, str]:
            with closing(post(viewer, **{"Content-Length": str(len(content))})) as connection:
                all_there.wait(60)
                connection.send(content)
                return answer_of(connection)

        with ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(send, range(12)))
        assert {status for status, _ in answers} == {200, 503}
        assert all("drop it again later" in said for status, said in answers if status == 503)
        all_there = threading.Barrier(1)
        until(lambda: send()[0] == 200, "room once the others were read", 60)
    assert usage.peak_mb < SERVER_MB


def test_a_killed_reader_of_dropped_data_is_reported(site, bystander):
    table = TABLE.partition("\n")[0] + "\n" + TABLE.partition("\n")[2] * 5_000  # takes seconds to read
    with site.first("dropper") as viewer:
        viewer.wait(lambda viewer: OWN in viewer.frames, LIMIT_S, "the field")
        dropped = drop(viewer, "pets.csv", table.encode())
        readers = until(lambda: [one for one in psutil.Process(site.pid).children() if reads_own_data(one)], "a reader")
        for one in readers:
            one.send_signal(signal.SIGKILL)
        why = dropped.finished(LIMIT_S, states=("failed",))
        assert "reading it failed: it exceeds the memory or time limit" in why.html
        read = drop(viewer, "pets.csv", TABLE.encode())
        assert read.finished(LIMIT_S, lambda frame: "600 rows" in frame.html, states=("",))


def reads_own_data(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return any("lib.model.data.reading" in word for word in process.cmdline())
    return False


def until(found, what: str, limit_s: float = LIMIT_S):
    limit = time.monotonic() + limit_s
    while not (answer := found()):
        assert time.monotonic() < limit, f"expected {what} within {limit_s} s"
        time.sleep(0.02)
    return answer


def test_impossible_settings_are_reported_on_the_page(site, bystander):
    bad = "rate.epochs=-99&rate.size=999999999999&rate.hidden=%00%0d%0aSet-Cookie:x&rate.count=1e999&%00=%1b[31m"
    with site.first("odd", f"{QUICK.partition('&size')[2]}&{bad}") as viewer:
        shown = viewer.wait(lambda viewer: viewer.frames.get("title"), LIMIT_S, "the title")
        assert "rate.epochs=-99: expected" in shown.html
        assert "rate.size=999999999999: expected" in shown.html
        assert "rate.count=1e999: expected" in shown.html
        assert "\x00" not in shown.html


def test_reloads_take_one_place_and_leave_no_run(site, bystander):
    """Each page starts experiments, the first of which outlasts this test; nine of ten pages close before it runs."""
    for number in range(RELOADS):
        with site.first("reloader", LONG) as viewer:
            if number % 10 == 0:
                viewer.wait(under_way, LIMIT_S, "an experiment that has begun")
            else:
                viewer.wait(lambda viewer: viewer.experiments, LIMIT_S, "the kernel's answer")
    with site.first("reloader", LONG) as viewer:
        viewer.wait(under_way, LIMIT_S, "an experiment that has begun")
        server = psutil.Process(site.pid)
        assert runs_left(server) > 0, "while a page is open"
    until(lambda: json.loads(ask(f"{site.base}/healthz")[2])["viewers"] <= 3, "at most 3 viewers", 60)
    assert ask(f"{site.base}/claims/", Cookie=site.header("somebody"))[0] == 200
    assert runs_left(server) == 0, [worker.cmdline()[-3:] for worker in server.children(recursive=True)]


def training(viewer: Viewer) -> bool:
    return CELL in viewer.frames and viewer.frames[CELL].state == "training"


def test_a_killed_worker_is_replaced(site, tab):
    with site.first("loser", LONG) as loser:
        for words in ("", "another one starts the run over"):
            loser.wait(lambda one, words=words: training(one) and words in one.frames[CELL].html, LIMIT_S, "training")
            for worker in psutil.Process(site.pid).children(recursive=True):
                worker.send_signal(signal.SIGKILL)
        ended = loser.wait(lambda viewer: viewer.frames[CELL].state == "failed" and viewer.frames[CELL], LIMIT_S, "why")
        assert "The worker" in ended.html, "in a sentence"
    assert tab.move(CELL, *next(POSITIONS)).finished(LIMIT_S).state in ("done", "saved-result")


def under_way(viewer: Viewer) -> list[str]:
    shown = [viewer.frames[name].state for name in viewer.experiments if name in viewer.frames]
    return [state for state in shown if state in UNDER_WAY]


def stored(cache: Path) -> int:
    with closing(sqlite3.connect(cache / "results.sqlite")) as store:
        return store.execute("SELECT count(*) FROM curves").fetchone()[0]


def test_a_server_killed_under_load_leaves_its_store_and_its_links_intact(tmp_path):
    """Ten viewers train different networks; trainings finished before are still there afterwards."""
    cache = tmp_path / "cache"
    with site_at(cache) as site:
        with site.first("pupil") as viewer:
            viewer.wait(lambda viewer: CELL in viewer.frames and viewer.frames[CELL].state == "done", LIMIT_S, "done")
        old = site.header("pupil")
        with ExitStack() as stack:
            losers = [
                stack.enter_context(site.first(f"loser {n}", f"{MANY}&rate.hidden={128 + n}")) for n in range(LOSERS)
            ]
            for loser in losers:
                loser.wait(under_way, LIMIT_S, "an experiment that has begun")
            before, server = stored(cache), psutil.Process(site.pid)
            until(lambda: stored(cache) > before, "a training of theirs that is stored")
            children = server.children(recursive=True)
            states = [state for loser in losers for state in under_way(loser)]
            assert "training" in states
            assert len(states) >= LOSERS, "each of them waits for something, or sees it trained"
            server.kill()
            for loser in losers:
                with pytest.raises(Lost):
                    loser.wait(lambda _: False, LIMIT_S, "nothing more")
                assert loser.problem, "it has heard of its end"
        assert children
        assert psutil.wait_procs(children, timeout=60)[1] == [], "its workers end"
    assert stored(cache) > before, "what was finished is kept"
    stores = list(cache.rglob("*.sqlite"))
    assert stores
    for file in stores:
        with closing(sqlite3.connect(file)) as store:
            assert store.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    with site_at(cache) as again:
        assert again.keys.card(old.partition("=")[2]) is not None, "who was in is still in"
        with again.first("pupil") as viewer:
            viewer.wait(lambda one: CELL in one.frames and one.frames[CELL].state == "saved-result", LIMIT_S, "saved")
        with again.first("somebody new", f"{MANY}&rate.hidden=64") as viewer:
            assert viewer.wait(training, LIMIT_S, "training")
