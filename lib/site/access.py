"""Who comes in at the class site, as what, and how many at once: a password, links with a token, the signed cookie that
they give, and a place for each that watches.

An open server has neither password nor class link: everybody is a pupil there, but for who follows the teacher's link.
A page learns the role from `mo.app_meta().request.meta["role"]`, “teacher” or “pupil”; `meta["viewer"]` is the same for
all pages of one browser, and says nothing about the person.

A WebSocket takes a place, and a page that finds none reloads until it does. A browser's place is held while a page
loads and while it reloads; where all are taken, its new WebSocket replaces its oldest, and a new browser's the oldest
of the one that has the most.
"""

import asyncio
import hashlib
import hmac
import html
import os
import secrets
import time
from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl, quote, urlencode
from weakref import WeakValueDictionary

from itsdangerous import BadSignature, URLSafeTimedSerializer
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lib.cache_folder import replaced
from lib.site.gate import declared_bytes
from lib.site.pages import plain_page
from lib.ui.notebooks import OF_A_CLASS_SITE

Role = Literal["teacher", "pupil"]
DOOR, HEALTH, ICON, MANIFEST = "/enter", "/healthz", "/favicon.ico", "/manifest.json"  # for everybody
LINKS: dict[str, Role] = {"class": "pupil", "teacher": "teacher"}  # the parameter of a link, and who follows it
CARD_S = 12 * 3600  # a day at school
MIN_PASSWORD = 8
MAX_FORM_BYTES = 4_096
AFTER_WRONG_S = 0.125  # until the next password is looked at, whoever sent it
# Not for the pages: they are told who looks, and marimo's other name of a session could be anybody's.
_KEPT_BACK = ("cookie", "marimo-stable-session-id")
MAX_VIEWERS = 120
LOADING_S = 30.0  # from a page's HTML to its WebSocket; a phone loads the scripts meanwhile
RELOADING_S = 8.0  # from a closed WebSocket to the next page's HTML
REFRESH_S = 5  # of the page that says “full”
FOR_GOOD = "MARIMO_SHUTDOWN"  # the reason after which marimo's page does not try to connect again
_PAGES = {notebook.path for notebook in OF_A_CLASS_SITE}
_SOCKETS = {f"{notebook.path}ws" for notebook in OF_A_CLASS_SITE}


def password_of(file: Path) -> str:
    """The first line of a password file.

    Raises:
        ValueError: It cannot be read, or is too short.
    """
    try:
        password = file.read_text().split("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"password file: expected a text file, but {file} cannot be read ({error})") from error
    if len(password) < MIN_PASSWORD:
        raise ValueError(
            f"password file: expected at least {MIN_PASSWORD} characters in the first line of {file}, got"
            f" {len(password)}; write a longer one"
        )
    return password


def kept_secret(file: Path) -> bytes:
    """The server's secret, made at the first call; with it links and cookies survive a restart.

    Only the owner can read the file; a damaged one is replaced. Where it cannot be kept, the secret is a new one at
    every start.
    """
    for _ in range(2):
        with suppress(OSError):
            if len(kept := file.read_bytes()) == 32:
                return kept
        with suppress(OSError), replaced(file) as temporary:
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as new:
                new.write(secrets.token_bytes(32))
    return secrets.token_bytes(32)


@dataclass(frozen=True)
class Credentials:
    """What the cookie says: the role, and a random number of the browser."""

    role: Role
    viewer: str


@dataclass(frozen=True)
class Keys:
    """What opens the door.

    Args:
        secret: 32 random bytes.
        password: Empty for none.
        class_link: Whether pupils need its token, where there is no password.
    """

    secret: bytes = field(repr=False)
    password: str = field(default="", repr=False)
    class_link: bool = False

    @property
    def closed(self) -> bool:
        """Whether nobody comes in without a password or a link."""
        return bool(self.password) or self.class_link

    def token(self, role: Role) -> str:
        """Of the link for this role: 132 bits, in 22 letters."""
        return urlsafe_b64encode(self._derived(f"link of the {role}")).decode()[:22]

    def role_of(self, link: str, token: str) -> Role | None:
        """Whom this token lets in; None for nobody."""
        role = LINKS[link]
        return role if hmac.compare_digest(self.token(role).encode(), token.encode()) else None

    def fits(self, password: str) -> bool:
        known, said = (hashlib.sha256(one.encode()).digest() for one in (self.password, password))
        return hmac.compare_digest(known, said) and bool(self.password)

    def session(self, card: Credentials, said: str) -> str:
        """The name by which marimo knows what a browser calls by this name: another browser's leads to none."""
        return f"s_{self._derived(f'session of {card.viewer}: {said}').hex()[:32]}"

    def cookie(self, card: Credentials) -> str:
        return self._signer.dumps(asdict(card))

    def card(self, cookie: str | None) -> Credentials | None:
        """The card of a cookie; None where it is not signed by this server, too old, or from before it was closed."""
        try:
            return Credentials(**self._signer.loads(cookie or "", max_age=CARD_S))
        except (BadSignature, TypeError):
            return None

    @property
    def _signer(self) -> URLSafeTimedSerializer:
        # Another password, or one at all, makes every card void.
        return URLSafeTimedSerializer(self._derived(f"cards {self.closed} {self.password}"), salt="card")

    def _derived(self, purpose: str) -> bytes:
        return hmac.digest(self.secret, purpose.encode(), "sha256")


class PasswordQueue:
    """Passwords are looked at one after another, so that guesses are slow in all; a school has one address.

    Addresses take turns. Those of one address come in the order in which they were sent; none is refused unseen.
    """

    def __init__(self) -> None:
        self._next_s, self._turn = 0.0, asyncio.Lock()
        self._of: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # as long as somebody waits

    async def fits(self, keys: Keys, password: str, request: Request) -> bool:
        """Wait for a turn; whether this is the password. Who has hung up meanwhile takes no turn."""
        own = self._of.setdefault(request.client.host if request.client else "", asyncio.Lock())
        async with own, self._turn:
            if await request.is_disconnected():
                return False
            await asyncio.sleep(max(0.0, self._next_s - time.monotonic()))
            fits = keys.fits(password)
            self._next_s = time.monotonic() + AFTER_WRONG_S * (not fits)
            return fits


class Door:
    """ASGI middleware: lets in who has a card, a token or the password, and tells the pages the role.

    Args:
        app: Gets the requests of those who are in, with `scope["meta"]`.
        keys: What opens it.
        cookie: Name of the cookie. Browsers keep one jar for all ports of a host: it should name the port.
        secure: Whether the cookie is sent over https only.
    """

    def __init__(self, app: ASGIApp, keys: Keys, cookie: str, secure: bool = False) -> None:
        self._app, self._keys, self._cookie, self._secure = app, keys, cookie, secure
        self._turns = PasswordQueue()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or scope["path"] in (HEALTH, ICON, MANIFEST):
            await self._app(scope, receive, send)
            return
        known = self._keys.card(_cookie(scope, self._cookie))
        if scope["type"] == "websocket":
            card = known or (None if self._keys.closed else Credentials("pupil", ""))
            if card is None:
                await send({"type": "websocket.close", "code": 1008})  # not accepted: the browser gets status 403
            else:
                await self._app(self._let_in(scope, card), receive, send)
            return
        answer = await self._answer(Request(scope, receive), known)
        if answer is not None:
            await answer(scope, receive, send)
        elif known is not None:
            await self._app(self._let_in(scope, known), receive, send)
        else:  # an open server's new guest
            new = Credentials("pupil", secrets.token_hex(8))
            await self._app(self._let_in(scope, Credentials("pupil", "")), receive, self._giving(new, send))

    def _let_in(self, scope: Scope, card: Credentials) -> Scope:
        """What the pages are asked: with who asks, and under names of sessions that only this browser reaches."""

        def own(name: str, said: str) -> str:
            return self._keys.session(card, said) if name in ("marimo-session-id", "session_id") else said

        said = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        headers = [
            (name.encode(), own(name, value).encode("latin-1")) for name, value in said if name not in _KEPT_BACK
        ]
        settings, query = parse_qsl(scope["query_string"].decode("latin-1"), True), scope["query_string"]
        if any(name == "session_id" for name, _ in settings):
            query = urlencode([(name, own(name, value)) for name, value in settings]).encode()
        meta = {"role": card.role, "viewer": card.viewer}
        return {**scope, "headers": headers, "query_string": query, "meta": meta}

    async def _answer(self, request: Request, known: Credentials | None) -> Response | None:
        """What is answered at the door; None for who may go on."""
        settings = parse_qsl(request.url.query, keep_blank_values=True)
        if link := next((name for name, _ in settings if name in LINKS), None):
            return self._follow(request, link, settings, known)
        if request.url.path == DOOR:
            return await self._enter(request, known)
        if known is not None or not self._keys.closed:
            return None
        if request.method == "GET" and "text/html" in request.headers.get("accept", ""):
            here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
            return RedirectResponse(f"{DOOR}?next={quote(here, safe='/')}", 303)
        return PlainTextResponse("Expected somebody who has entered, got nobody; open the page and enter.", 401)

    def _follow(
        self, request: Request, link: str, settings: list[tuple[str, str]], known: Credentials | None
    ) -> Response:
        """A link with a token: the token leaves the address, the settings stay. A page cannot follow it for its reader,
        and no teacher becomes a pupil unasked."""
        path = request.url.path
        role = self._keys.role_of(link, dict(settings)[link])
        if role is None:
            password = f', or <a href="{DOOR}">enter with the password</a>' if self._keys.password else ""
            return plain_page(
                "This link does not fit",
                f"<h1>This link does not fit</h1><p>Expected the {link} link as the server printed it, got another one."
                f" Ask your teacher for it{password}.</p>",
                403,
            )
        rest = urlencode([(name, value) for name, value in settings if name not in LINKS])
        aim = _local(f"{path}?{rest}" if rest else path)
        if request.headers.get("sec-fetch-dest", "document") != "document":
            return PlainTextResponse("Expected somebody who follows this link, got a page; open it in a tab.", 403)
        if known is not None and (known.role, role) == ("teacher", "pupil") and request.method != "POST":
            itself = html.escape(_local(f"{path}?{request.url.query}"))
            return plain_page(
                "You are the teacher here",
                "<h1>You are the teacher here</h1><p>This link makes you a pupil."
                f' <a href="{html.escape(aim)}">Stay the teacher</a>, or:</p>'
                f'<form method="post" action="{itself}"><button>Become a pupil</button></form>',
            )
        return self._admitted(aim, role, known)

    async def _enter(self, request: Request, known: Credentials | None) -> Response:
        """The page at the door, and what its form sends."""
        if request.method != "POST":
            aim = _local(request.query_params.get("next", "/"))
            return RedirectResponse(aim, 303) if known or not self._keys.closed else self._door(aim)
        form = await _form(request)
        if form is None:
            refusal = f"Expected a form of at most {MAX_FORM_BYTES:,} bytes, got a longer one."
            return PlainTextResponse(refusal, 413, {"Connection": "close"})
        aim = _local(form.get("next", "/"))
        if await self._turns.fits(self._keys, form.get("password", ""), request):
            return self._admitted(aim, known.role if known else "pupil", known)
        return self._door(aim, "This is not the password. Try again, or ask your teacher for it.", 403)

    def _door(self, aim: str, problem: str = "", status: int = 200) -> Response:
        said = f'<p class="problem" role="alert">{html.escape(problem)}</p>' if problem else ""
        if not self._keys.password:
            content = "<p>Open the link that your teacher gave you: it lets you in.</p>"
        else:
            content = (
                f'{said}<form method="post" action="{DOOR}"><label for="password">Password of the class</label>'
                '<input name="user" value="class" autocomplete="username" hidden>'  # for browsers that keep passwords
                '<input id="password" name="password" type="password" autocomplete="current-password" required'
                " autofocus>"
                f'<input type="hidden" name="next" value="{html.escape(aim)}"><button>Enter</button></form>'
                '<p class="quiet">Your name is not asked for. A cookie remembers for twelve hours that you are in.</p>'
            )
        return plain_page("Enter", f"<h1>Why is my GPU slower?</h1>{content}", status)

    def _admitted(self, aim: str, role: Role, known: Credentials | None) -> Response:
        answer = RedirectResponse(aim, 303, {"Cache-Control": "no-store"})
        answer.headers["Set-Cookie"] = self._set_cookie(
            Credentials(role, known.viewer if known else secrets.token_hex(8))
        )
        return answer

    def _giving(self, card: Credentials, send: Send) -> Send:
        """Give the card with the answer, if it is a page."""

        async def sending(message: Message) -> None:
            starts = message["type"] == "http.response.start"
            if starts and Headers(raw=message["headers"]).get("content-type", "").startswith("text/html"):
                MutableHeaders(scope=message).append("Set-Cookie", self._set_cookie(card))
            await send(message)

        return sending

    def _set_cookie(self, card: Credentials) -> str:
        # Lax: the first page after a link from elsewhere, such as a mail, must bring the cookie.
        secure = "; Secure" if self._secure else ""
        signed = self._keys.cookie(card)
        return f"{self._cookie}={signed}; Path=/; Max-Age={CARD_S}; HttpOnly; SameSite=Lax{secure}"


def _cookie(scope: Scope, name: str) -> str | None:
    """The value of a cookie. Python before 3.11.10 reads quoted ones in a time that grows with the square of their
    length, and ours has no quotes."""
    pairs = (pair.strip().partition("=") for pair in Headers(scope=scope).get("cookie", "").split(";"))
    return next((value for found, _, value in pairs if found == name), None)


def _local(aim: str) -> str:
    """A path of this server; the front page's in place of what may lead elsewhere."""
    leads_away = not aim.startswith("/") or aim.startswith(("//", "/\\")) or not aim.isprintable()
    return "/" if leads_away else aim


async def _form(request: Request) -> dict[str, str] | None:
    """The fields of a form; None where it is too long, or says so."""
    if declared_bytes(request.scope) > MAX_FORM_BYTES:
        return None
    sent = b""
    async for part in request.stream():
        sent += part
        if len(sent) > MAX_FORM_BYTES:
            return None
    return dict(parse_qsl(sent.decode("utf-8", "replace"), keep_blank_values=True))


class Capacity:
    """The places for viewers, and who has them. All in one thread, that of the server's event loop.

    Args:
        most: WebSockets at once.
        now: The clock, in seconds.
    """

    def __init__(self, most: int, now: Callable[[], float] = time.monotonic) -> None:
        self.most, self._now = most, now
        self._connections: dict[asyncio.Event, str] = {}  # the viewer of each open WebSocket, the oldest first
        self._held_until: dict[str, float] = {}  # of viewers without a WebSocket

    @property
    def viewers(self) -> int:
        return len(self._connections)

    def hold(self, viewer: str) -> bool:
        """Hold a place for this viewer's page while it loads; False where all are taken.

        Args:
            viewer: Empty for a browser without a card, for which no place is held.
        """
        now = self._now()
        self._held_until = {held: until for held, until in self._held_until.items() if until > now}
        if self._oldest(viewer) is None and viewer not in self._held_until and self._is_full:
            if (second := self._second_tab()) is None:
                return False
            if viewer:
                self._end(second)
        if viewer and self._oldest(viewer) is None:
            self._held_until[viewer] = now + LOADING_S
        return True

    def connect(self, viewer: str) -> asyncio.Event | None:
        """Take a place for a new WebSocket; None where all are taken.

        The event is set when a newer WebSocket takes the place. Pass it to `disconnect` in the end.
        """
        if not self.hold(viewer):
            return None
        self._held_until.pop(viewer, None)
        if self._is_full and (given_up := self._oldest(viewer) or self._second_tab()):
            self._end(given_up)
        replaced = asyncio.Event()
        self._connections[replaced] = viewer
        return replaced

    def disconnect(self, replaced: asyncio.Event) -> None:
        """The WebSocket has closed; if it was its viewer's last one, the place is held for a reload."""
        viewer = self._connections.pop(replaced, "")
        if viewer and self._oldest(viewer) is None:
            self._held_until[viewer] = self._now() + RELOADING_S

    def _end(self, connection: asyncio.Event) -> None:
        del self._connections[connection]
        connection.set()

    def _second_tab(self) -> asyncio.Event | None:
        """The oldest WebSocket of the viewer who has the most; None where nobody has two."""
        (most, n), *_ = [*Counter(filter(None, self._connections.values())).most_common(1), ("", 0)]
        return self._oldest(most) if n > 1 else None

    def _oldest(self, viewer: str) -> asyncio.Event | None:
        return next((one for one, other in self._connections.items() if viewer and other == viewer), None)

    @property
    def _is_full(self) -> bool:
        return len(self._connections) + len(self._held_until) >= self.most


class LimitViewers:
    """ASGI middleware: lets in as many viewers as there are places, and closes WebSockets that no notebook has.

    The teacher needs no place.

    Args:
        app: Gets the requests of those who have a place.
        capacity: Who has one.
    """

    def __init__(self, app: ASGIApp, capacity: Capacity) -> None:
        self._app, self._capacity = app, capacity

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, meta = scope.get("path", ""), scope.get("meta", {})
        viewer, is_teacher = meta.get("viewer", ""), meta.get("role") == "teacher"
        if scope["type"] == "websocket" and not (is_teacher and path in _SOCKETS):
            replaced = self._capacity.connect(viewer) if path in _SOCKETS else None
            if replaced is None:
                await send({"type": "websocket.close", "code": 1013})  # not accepted: the browser gets status 403
                return
            try:
                await self._app(scope, *_until(replaced, receive, send))
            finally:
                self._capacity.disconnect(replaced)
        elif path.endswith("/sse"):  # marimo's other way to open a session, which nobody counts
            refusal = "Expected a WebSocket, got a request for events; open the page itself."
            await PlainTextResponse(refusal, 403)(scope, receive, send)
        elif path in _PAGES and scope["method"] == "GET" and not (is_teacher or self._capacity.hold(viewer)):
            await _full(self._capacity.most)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _until(replaced: asyncio.Event, receive: Receive, send: Send) -> tuple[Receive, Send]:
    """Pass messages until `replaced` is set; then close the WebSocket, and tell the application that it is closed."""

    async def receiving() -> Message:
        message, closing = asyncio.ensure_future(receive()), asyncio.ensure_future(replaced.wait())
        try:
            await asyncio.wait((message, closing), return_when=asyncio.FIRST_COMPLETED)
            if message.done():
                return message.result()
            with suppress(Exception):  # it may have closed by itself meanwhile
                await send({"type": "websocket.close", "code": 1000, "reason": FOR_GOOD})
            return {"type": "websocket.disconnect", "code": 1000}
        finally:
            message.cancel()
            closing.cancel()

    async def sending(message: Message) -> None:
        if not replaced.is_set():
            await send(message)

    return receiving, sending


def _full(most: int) -> Response:
    page = plain_page(
        "Full",
        f"<h1>Full, for the moment</h1><p>Places for viewers: {most}. All are taken.</p><p>This page reloads every"
        f" {REFRESH_S} seconds, and opens the notebook as soon as there is room.</p>",
        503,
    )
    page.headers["Refresh"] = str(REFRESH_S)  # in <meta> it would fail axe's rule `meta-refresh`
    return page
