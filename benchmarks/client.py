"""A viewer without a browser: it speaks the protocol of marimo 0.25's pages and sees what a page would receive.

The page's HTML contains the server's token; messages arrive by WebSocket, and the viewer's actions go by POST. An
experiment's state is read from its cell's HTML (`frame._state_line`).
"""

import json
import re
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from html import unescape
from html.parser import HTMLParser
from http import HTTPStatus
from http.client import HTTPException
from http.cookiejar import CookieJar
from typing import Literal, TypeVar
from urllib.error import HTTPError
from urllib.parse import urlsplit

from websockets.exceptions import WebSocketException
from websockets.sync.client import connect
from websockets.typing import Origin

REQUEST_LIMIT_S = 60.0
FINISHED = ("done", "saved-result")
EXPERIMENTS = ("learning_rate", "batch_size", "hidden_layers", "which_backend", "your_experiment")  # of the first page
_STATE = re.compile(r'class="lab-state lab-([\w-]+)"><b>[^<]*</b><span>([^<]*)')
_TOKEN = re.compile(r'"serverToken": "([^"]*)"')
_ERROR = "application/vnd.marimo+error"

T = TypeVar("T")


class Lost(RuntimeError):
    """The viewer did not get what it waited for; the text says why."""


class Full(Exception):
    """The server refused the viewer because it was full."""


@dataclass(frozen=True)
class Frame:
    """What a cell shows: its HTML, the execution that drew it, and its arrival (seconds of the monotonic clock)."""

    html: str
    execution: str
    at_s: float

    @property
    def state(self) -> str:
        """The experiment's state: waiting, training, done, saved-result, stopped or failed; empty for other cells."""
        found = _STATE.search(self.html)
        return found[1] if found else ""

    @property
    def words(self) -> str:
        """The text next to the state, such as the progress or the place in the queue."""
        found = _STATE.search(self.html)
        return unescape(found[2]).strip() if found else ""


@dataclass(frozen=True)
class Control:
    """A control of the page. A slider with `steps` is set by an index into them."""

    id: str
    label: str
    steps: tuple[float, ...] = ()


class Viewer:
    """One open tab on a notebook's address; its settings go into `query`. Leaving the context closes the tab.

    The `cookie`, “name=value”, replaces the cookies that the server sets. Raises `Full` if the server refuses it.
    """

    def __init__(self, address: str, query: str = "", cookie: str = "") -> None:
        where = urlsplit(address)
        self._origin, self._page = f"{where.scheme}://{where.netloc}", f"{address.rstrip('/')}/"
        self._headers = {"Cookie": cookie} if cookie else {}
        cookies = CookieJar()
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}),  # a proxy would not reach the loopback
            urllib.request.HTTPCookieProcessor(cookies),
        )
        self._session = f"s_{uuid.uuid4().hex[:6]}"
        self._changed = threading.Condition()
        self._names: dict[str, str] = {}  # cell names, by id
        self.frames: dict[str, Frame] = {}  # each cell's latest frame, by cell name
        self.problem = ""  # why no more messages will arrive
        self._token = self._load(query)
        opening = connect(
            f"ws{self._page.removeprefix('http')}ws?session_id={self._session}{'&' + query if query else ''}",
            origin=Origin(self._origin),
            additional_headers={"Cookie": cookie or "; ".join(f"{one.name}={one.value}" for one in cookies)},
            proxy=None,
            max_size=None,
            open_timeout=REQUEST_LIMIT_S,
            ping_interval=None,  # like a browser, so that a busy server does not lose the connection
        )
        self._closing = ExitStack()
        try:
            self._socket = self._closing.enter_context(opening)
        except (OSError, WebSocketException) as error:
            raise Lost(f"the WebSocket did not open: {error}") from error
        threading.Thread(target=self._listen, daemon=True).start()

    def __enter__(self) -> "Viewer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._end("the tab was closed")
        self._closing.close()

    @property
    def experiments(self) -> list[str]:
        """The names of the cells that show an experiment, once the kernel is ready."""
        return [name for name in self._names.values() if name in EXPERIMENTS]

    @property
    def all_finished(self) -> bool:
        shown = [self.frames.get(name) for name in self.experiments]
        return bool(shown) and all(frame is not None and frame.state in FINISHED for frame in shown)

    def wait(self, condition: Callable[["Viewer"], T | Literal[False] | None], limit_s: float, what: str) -> T:
        """The first true answer of `condition`, which is checked after each message. Raises `Lost` after the limit."""
        limit = time.monotonic() + limit_s
        with self._changed:
            while not (answer := condition(self)):
                left_s = limit - time.monotonic()
                if self.problem or left_s <= 0:
                    states = ", ".join(
                        f"{name} {self.frames[name].state}" for name in self.experiments if name in self.frames
                    )
                    raise Lost(f"{what}: {self.problem or f'not within {limit_s:.0f} s'} ({states or 'nothing shown'})")
                self._changed.wait(left_s)
            return answer

    def controls(self, cell: str) -> dict[str, Control]:
        parser = _Controls()
        parser.feed(self.frames[cell].html.partition('<div class="lab-result">')[0])  # the long rest has no controls
        return parser.found

    def move(self, cell: str, label: str, value: object) -> "Moved":
        """Move a control by the page's own request. For a slider with steps, `value` is an index."""
        before, at_s = self.frames[cell].execution, time.monotonic()
        control = self.controls(cell)[label]
        self._post("api/kernel/set_ui_element_value", {"objectIds": [control.id], "values": [value]})
        return Moved(self, cell, before, at_s)

    def _load(self, query: str) -> str:
        address = f"{self._page}{'?' + query if query else ''}"
        found = _TOKEN.search(self._answer(urllib.request.Request(address, headers=self._headers)))
        if found is None:
            raise Lost("the page has no server token")
        return found[1]

    def _post(self, path: str, content: dict) -> None:
        headers = self._headers | {
            "Content-Type": "application/json",
            "Marimo-Session-Id": self._session,
            "Marimo-Server-Token": self._token,
            "Origin": self._origin,
        }
        self._answer(urllib.request.Request(self._page + path, json.dumps(content).encode(), headers))

    def _answer(self, request: urllib.request.Request) -> str:
        try:
            with self._opener.open(request, timeout=REQUEST_LIMIT_S) as response:
                return response.read().decode()
        except (OSError, HTTPException) as error:  # a broken or missing answer is not a URLError
            if isinstance(error, HTTPError) and error.code == HTTPStatus.SERVICE_UNAVAILABLE:
                raise Full(error.read().decode()) from error
            raise Lost(f"the server did not answer: {error}") from error

    def _listen(self) -> None:
        try:
            for message in self._socket:
                at_s = time.monotonic()
                content = json.loads(message)
                self._hear(content["op"], content["data"], at_s)
            self._end("the server closed the WebSocket")
        except Exception as error:  # waiters must see any failure
            self._end(f"{type(error).__name__}: {error}")

    def _hear(self, op: str, data: dict, at_s: float) -> None:
        if op == "kernel-ready":
            with self._changed:
                self._names = dict(zip(data["cell_ids"], data["names"], strict=True))
                self._changed.notify_all()
            if not data["auto_instantiated"]:
                self._post("api/kernel/instantiate", {"objectIds": [], "values": [], "autoRun": True})
        elif op == "kernel-startup-error":
            self._end(f"the kernel did not start: {data['error']}")
        elif op == "cell-op" and (output := data.get("output")):
            if output["mimetype"] == _ERROR:
                self._end(f"cell {self._names[data['cell_id']]} shows an error: {output['data']}")
            elif output["mimetype"] == "text/html":
                with self._changed:
                    self.frames[self._names[data["cell_id"]]] = Frame(output["data"], data["execution_id"], at_s)
                    self._changed.notify_all()

    def _end(self, problem: str) -> None:
        with self._changed:
            self.problem = self.problem or problem
            self._changed.notify_all()


@dataclass(frozen=True)
class Moved:
    """A moved control: gives the frames of its cell from the next execution on."""

    viewer: Viewer
    cell: str
    before: str  # earlier execution, whose last frames can arrive late and do not count
    at_s: float

    def first(self, limit_s: float) -> Frame:
        return self.viewer.wait(self._frame, limit_s, f"an answer in {self.cell}")

    def finished(
        self, limit_s: float, answers: Callable[[Frame], bool] = lambda _: True, states: Collection[str] = FINISHED
    ) -> Frame:
        """The first result in one of these `states` that `answers` accepts; an earlier move's result may come first."""
        return self.viewer.wait(
            lambda viewer: (frame := self._frame(viewer)) and frame.state in states and answers(frame) and frame,
            limit_s,
            f"the result in {self.cell}",
        )

    def _frame(self, viewer: Viewer) -> Frame | None:
        frame = viewer.frames[self.cell]
        return frame if frame.execution != self.before else None


@dataclass
class _Controls(HTMLParser):
    """Finds controls in a cell's HTML: each is inside a `marimo-ui-element` that has its id."""

    found: dict[str, Control] = field(default_factory=dict)
    _id: str = ""

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "marimo-ui-element":
            self._id = given.get("object-id") or ""
        elif self._id and "data-label" in given:
            label = re.sub("<[^>]*>", "", json.loads(given["data-label"] or '""') or "")
            with suppress(ValueError):
                self.found[label] = Control(self._id, label, tuple(json.loads(given.get("data-steps") or "[]") or ()))
            self._id = ""
