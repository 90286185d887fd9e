"""A viewer without a browser: speaks the protocol of marimo 0.25's pages, and sees what a page would be sent.

The page's HTML brings the server's token; messages come by WebSocket, what the viewer does goes by POST. An
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
EXPERIMENTS = ("learning_rate", "batch_size", "hidden_layers", "which_backend", "your_experiment")  # cells of the first
_STATE = re.compile(r'class="lab-state lab-([\w-]+)"><b>[^<]*</b><span>([^<]*)')
_TOKEN = re.compile(r'"serverToken": "([^"]*)"')
_ERROR = "application/vnd.marimo+error"

T = TypeVar("T")


class Lost(RuntimeError):
    """The viewer did not get what was waited for; the text says why."""


class Full(Exception):
    """The server had no place for the viewer, and said so."""


@dataclass(frozen=True)
class Frame:
    """What a cell shows: its HTML, which execution of the cell drew it, and when it came (seconds of the monotonic
    clock)."""

    html: str
    execution: str
    at_s: float

    @property
    def state(self) -> str:
        """Of the cell's experiment: waiting, training, done, saved-result, stopped or failed; empty where it has
        none."""
        found = _STATE.search(self.html)
        return found[1] if found else ""

    @property
    def words(self) -> str:
        """What stands beside that state, such as the share that is done or the place in the queue; empty for none."""
        found = _STATE.search(self.html)
        return unescape(found[2]).strip() if found else ""


@dataclass(frozen=True)
class Control:
    """A control of the page. A slider with `steps` is set by a position among them."""

    id: str
    label: str
    steps: tuple[float, ...] = ()


class Viewer:
    """One open tab, on a notebook's address without settings (those are the `query`); leaving it closes the tab.

    The `cookie`, “name=value”, is sent in place of those that the server sets. Raises `Full` where it has no place.
    """

    def __init__(self, address: str, query: str = "", cookie: str = "") -> None:
        where = urlsplit(address)
        self._origin, self._page = f"{where.scheme}://{where.netloc}", f"{address.rstrip('/')}/"
        self._headers = {"Cookie": cookie} if cookie else {}
        cookies = CookieJar()
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}),  # one would not reach the loopback
            urllib.request.HTTPCookieProcessor(cookies),
        )
        self._session = f"s_{uuid.uuid4().hex[:6]}"
        self._changed = threading.Condition()
        self._names: dict[str, str] = {}  # of the cells, by id
        self.frames: dict[str, Frame] = {}  # the latest of each cell, by the cell's name
        self.problem = ""  # why nothing more will come
        self._token = self._load(query)
        opening = connect(
            f"ws{self._page.removeprefix('http')}ws?session_id={self._session}{'&' + query if query else ''}",
            origin=Origin(self._origin),
            additional_headers={"Cookie": cookie or "; ".join(f"{one.name}={one.value}" for one in cookies)},
            proxy=None,
            max_size=None,
            open_timeout=REQUEST_LIMIT_S,
            ping_interval=None,  # as a browser: a server that is busy for a while loses nobody
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
        """Whether every experiment of the page shows its finished result."""
        shown = [self.frames.get(name) for name in self.experiments]
        return bool(shown) and all(frame is not None and frame.state in FINISHED for frame in shown)

    def wait(self, condition: Callable[["Viewer"], T | Literal[False] | None], limit_s: float, what: str) -> T:
        """The first true answer of `condition`, which is asked after each message; `Lost` after the limit."""
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
        """The controls that a cell shows, by their labels."""
        parser = _Controls()
        parser.feed(self.frames[cell].html.partition('<div class="lab-result">')[0])  # the rest is long, and has none
        return parser.found

    def move(self, cell: str, label: str, value: object) -> "Moved":
        """Move a control, as the page tells the server of it. `value` is the position among a slider's steps."""
        before, at_s = self.frames[cell].execution, time.monotonic()
        control = self.controls(cell)[label]
        self._post("api/kernel/set_ui_element_value", {"objectIds": [control.id], "values": [value]})
        return Moved(self, cell, before, at_s)

    def _load(self, query: str) -> str:
        """Fetch the page, as a tab does first; the server's token that is in it."""
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
        except (OSError, HTTPException) as error:  # an answer that stops, or does not come, is no URLError
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
        except Exception as error:  # whoever waits must hear of any
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
    """A control that was moved: the frames of its cell that come after it, from the cell's next execution on."""

    viewer: Viewer
    cell: str
    before: str  # the execution whose frames are not an answer; the last of them can come late
    at_s: float

    def first(self, limit_s: float) -> Frame:
        """The first answer, whatever it shows."""
        return self.viewer.wait(self._frame, limit_s, f"an answer in {self.cell}")

    def finished(
        self, limit_s: float, answers: Callable[[Frame], bool] = lambda _: True, states: Collection[str] = FINISHED
    ) -> Frame:
        """The result in one of these `states` that `answers`: that of an earlier move, which was still under way, can
        come before."""
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
    """Finds the controls in a cell's HTML: each is an element within a `marimo-ui-element` that has its id."""

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
