"""Access to the class site: a password, links with a token, the signed cookie they grant, and a limit on viewers.

An open server has neither password nor class link: every visitor is a pupil, except those with the teacher's link.
Pages read the role from `mo.app_meta().request.meta["role"]`: “teacher” or “pupil”. `meta["viewer"]` is a random id of
the browser, the same on all its pages.

Each WebSocket takes a place. If all are taken, new pages reload until one is free. A browser's place is reserved while
a page loads or reloads. On a full server, a browser's new WebSocket replaces its own oldest one; that of a new browser
replaces the oldest one of the browser with the most.
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
from lib.site.pages import plain_page
from lib.ui.notebooks import OF_A_CLASS_SITE

Role = Literal["teacher", "pupil"]
LOGIN, HEALTH, ICON, MANIFEST = "/enter", "/healthz", "/favicon.ico", "/manifest.json"  # public
LINKS: dict[str, Role] = {"class": "pupil", "teacher": "teacher"}  # the role that each link parameter grants
CARD_S = 12 * 3600  # a school day
MIN_PASSWORD = 8
MAX_FORM_BYTES = 4_096
AFTER_WRONG_S = 0.125  # between a wrong password and the next check, from any address
# Hidden from the pages: `meta` identifies the viewer, and a client could set marimo's stable session id to any value.
_KEPT_BACK = ("cookie", "marimo-stable-session-id")
MAX_VIEWERS = 120
LOADING_S = 30.0  # from a page's HTML to its WebSocket, while a phone loads the scripts
RELOADING_S = 8.0  # from a closed WebSocket to the next page's HTML
REFRESH_S = 5  # of the “full” page
FOR_GOOD = "MARIMO_SHUTDOWN"  # the close reason after which marimo's page does not reconnect
_PAGES = {notebook.path for notebook in OF_A_CLASS_SITE}
_SOCKETS = {f"{notebook.path}ws" for notebook in OF_A_CLASS_SITE}


def password_of(file: Path) -> str:
    """Raises ValueError if the file cannot be read, or its first line is too short."""
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
    """Load the server's secret, so that links and cookies survive a restart; created by the first call.

    Only the owner can read the file; a damaged one is replaced. If it cannot be stored, each start has a new secret.
    """
    for _ in range(2):
        with suppress(OSError):
            if len(kept := file.read_bytes()) == 32:
                return kept
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
        with suppress(OSError), replaced(file) as temporary:
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as new:
                new.write(secrets.token_bytes(32))
    return secrets.token_bytes(32)


@dataclass(frozen=True)
class Credentials:
    role: Role
    viewer: str  # random id of the browser


@dataclass(frozen=True)
class Keys:
    """Derives and checks all credentials of the site."""

    secret: bytes = field(repr=False)  # 32 random bytes
    password: str = field(default="", repr=False)  # empty for none
    class_link: bool = False  # whether pupils without the password need a link with a token

    @property
    def closed(self) -> bool:
        return bool(self.password) or self.class_link

    def token(self, role: Role) -> str:
        """132 bits, in 22 letters."""
        return urlsafe_b64encode(self._derived(f"link of the {role}")).decode()[:22]

    def role_of(self, link: str, token: str) -> Role | None:
        role = LINKS[link]
        return role if hmac.compare_digest(self.token(role).encode(), token.encode()) else None

    def fits(self, password: str) -> bool:
        known, said = (hashlib.sha256(one.encode()).digest() for one in (self.password, password))
        return hmac.compare_digest(known, said) and bool(self.password)

    def session(self, card: Credentials, said: str) -> str:
        """Map a browser's session id to marimo's, so that no browser can reach the sessions of another."""
        return f"s_{self._derived(f'session of {card.viewer}: {said}').hex()[:32]}"

    def cookie(self, card: Credentials) -> str:
        return self._signer.dumps(asdict(card))

    def card(self, cookie: str | None) -> Credentials | None:
        """None if the cookie is too old, or was not signed by this server with its current password and access."""
        try:
            return Credentials(**self._signer.loads(cookie or "", max_age=CARD_S))
        except (BadSignature, TypeError):
            return None

    @property
    def _signer(self) -> URLSafeTimedSerializer:
        # Setting or changing the password invalidates every card.
        return URLSafeTimedSerializer(self._derived(f"cards {self.closed} {self.password}"), salt="card")

    def _derived(self, purpose: str) -> bytes:
        return hmac.digest(self.secret, purpose.encode(), "sha256")


class PasswordQueue:
    """Checks passwords one at a time, to slow down guessing overall: a limit per address would hit a whole school.

    Addresses take turns; passwords from one address are checked in order, and none is rejected unchecked.
    """

    def __init__(self) -> None:
        self._next_s, self._turn = 0.0, asyncio.Lock()
        self._of: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # only while requests wait

    async def fits(self, keys: Keys, password: str, request: Request) -> bool:
        own = self._of.setdefault(request.client.host if request.client else "", asyncio.Lock())
        async with own, self._turn:
            if await request.is_disconnected():
                return False
            await asyncio.sleep(max(0.0, self._next_s - time.monotonic()))
            fits = keys.fits(password)
            self._next_s = time.monotonic() + AFTER_WRONG_S * (not fits)
            return fits


class AccessCheck:
    """ASGI middleware that admits requests with a card, a token or the password, and sets `scope["meta"]` for pages.

    Args:
        app: Gets the admitted requests.
        keys: The site's credentials.
        cookie: Name of the cookie. It should contain the port, because browsers share cookies among a host's ports.
        secure: Whether the cookie is sent over https only.
    """

    def __init__(self, app: ASGIApp, keys: Keys, cookie: str, secure: bool = False) -> None:
        self._app, self._keys, self._cookie, self._secure = app, keys, cookie, secure
        self._turns = PasswordQueue()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in (HEALTH, ICON, MANIFEST):
            await self._app(scope, receive, send)
            return
        known = self._keys.card(_cookie(scope, self._cookie))
        answer = await self._answer(Request(scope, receive), known) if scope["type"] == "http" else None
        if answer is not None:
            await answer(scope, receive, send)
        elif known is not None:
            await self._app(self._let_in(scope, known), receive, send)
        elif self._keys.closed:  # a WebSocket
            await send({"type": "websocket.close", "code": 1008})  # not accepted: the browser gets status 403
        else:  # a new visitor of an open server
            new = Credentials("pupil", secrets.token_hex(8))
            await self._app(self._let_in(scope, Credentials("pupil", "")), receive, self._giving(new, send))

    def _let_in(self, scope: Scope, card: Credentials) -> Scope:
        """Add the viewer to the request, and replace its session ids by those of this browser alone."""

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
        """None if the request may proceed."""
        settings = parse_qsl(request.url.query, keep_blank_values=True)
        if link := next((name for name, _ in settings if name in LINKS), None):
            return self._follow(request, link, settings, known)
        if request.url.path == LOGIN:
            return await self._enter(request, known)
        if known is not None or not self._keys.closed:
            return None
        if request.method == "GET" and "text/html" in request.headers.get("accept", ""):
            here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
            return RedirectResponse(f"{LOGIN}?next={quote(here, safe='/')}", 303)
        return PlainTextResponse(
            "Expected a signed-in visitor, got one without a sign-in; open the page and enter.", 401
        )

    def _follow(
        self, request: Request, link: str, settings: list[tuple[str, str]], known: Credentials | None
    ) -> Response:
        """Exchange a link's token for a cookie; its settings stay in the address.

        Other pages cannot follow the link on the viewer's behalf, and a teacher must confirm to become a pupil.
        """
        path = request.url.path
        role = self._keys.role_of(link, dict(settings)[link])
        if role is None:
            password = f', or <a href="{LOGIN}">enter with the password</a>' if self._keys.password else ""
            return plain_page(
                "This link does not work",
                f"<h1>This link does not work</h1><p>Expected the {link} link as the server printed it, got a different"
                f" one. Ask your teacher for it{password}.</p>",
                403,
            )
        rest = urlencode([(name, value) for name, value in settings if name not in LINKS])
        aim = _local(f"{path}?{rest}" if rest else path)
        if request.headers.get("sec-fetch-dest", "document") != "document":
            return PlainTextResponse(
                "Expected a visitor to follow this link, got a page that loads it; open it in a tab.", 403
            )
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
        if request.method != "POST":
            aim = _local(request.query_params.get("next", "/"))
            return RedirectResponse(aim, 303) if known or not self._keys.closed else self._login_page(aim)
        form = await _form(request)
        if form is None:
            refusal = f"Expected a form of at most {MAX_FORM_BYTES:,} bytes, got a longer one."
            return PlainTextResponse(refusal, 413, {"Connection": "close"})
        aim = _local(form.get("next", "/"))
        if await self._turns.fits(self._keys, form.get("password", ""), request):
            return self._admitted(aim, known.role if known else "pupil", known)
        return self._login_page(aim, "Wrong password. Try again, or ask your teacher for it.", 403)

    def _login_page(self, aim: str, problem: str = "", status: int = 200) -> Response:
        said = f'<p class="problem" role="alert">{html.escape(problem)}</p>' if problem else ""
        if not self._keys.password:
            content = "<p>Open the link your teacher gave you to enter.</p>"
        else:
            content = (
                f'{said}<form method="post" action="{LOGIN}"><label for="password">Class password</label>'
                '<input name="user" value="class" autocomplete="username" hidden>'  # for browsers that keep passwords
                '<input id="password" name="password" type="password" autocomplete="current-password" required'
                " autofocus>"
                f'<input type="hidden" name="next" value="{html.escape(aim)}"><button>Enter</button></form>'
                '<p class="quiet">You do not need to give your name. A cookie keeps you signed in for twelve hours.</p>'
            )
        return plain_page("Enter", f"<h1>Why is my GPU slower?</h1>{content}", status)

    def _admitted(self, aim: str, role: Role, known: Credentials | None) -> Response:
        answer = RedirectResponse(aim, 303, {"Cache-Control": "no-store"})
        answer.headers["Set-Cookie"] = self._set_cookie(
            Credentials(role, known.viewer if known else secrets.token_hex(8))
        )
        return answer

    def _giving(self, card: Credentials, send: Send) -> Send:
        async def sending(message: Message) -> None:
            starts = message["type"] == "http.response.start"
            if starts and Headers(raw=message["headers"]).get("content-type", "").startswith("text/html"):
                MutableHeaders(scope=message).append("Set-Cookie", self._set_cookie(card))
            await send(message)

        return sending

    def _set_cookie(self, card: Credentials) -> str:
        # Lax, so that the cookie is sent when a link elsewhere, for example in a mail, opens a page.
        secure = "; Secure" if self._secure else ""
        signed = self._keys.cookie(card)
        return f"{self._cookie}={signed}; Path=/; Max-Age={CARD_S}; HttpOnly; SameSite=Lax{secure}"


def _cookie(scope: Scope, name: str) -> str | None:
    """Parse our unquoted cookie without `http.cookies`, which before Python 3.11.10 is quadratic for quoted ones."""
    pairs = (pair.strip().partition("=") for pair in Headers(scope=scope).get("cookie", "").split(";"))
    return next((value for found, _, value in pairs if found == name), None)


def _local(aim: str) -> str:
    """Replace targets that may lead to another server by the front page."""
    leads_away = not aim.startswith("/") or aim.startswith(("//", "/\\")) or not aim.isprintable()
    return "/" if leads_away else aim


async def _form(request: Request) -> dict[str, str] | None:
    """None if the form is too long."""
    sent = b""
    async for part in request.stream():
        sent += part
        if len(sent) > MAX_FORM_BYTES:
            return None
    return dict(parse_qsl(sent.decode("utf-8", "replace"), keep_blank_values=True))


class Capacity:
    """The places for viewers' WebSockets. Use only in the thread of the server's event loop."""

    def __init__(self, most: int, now: Callable[[], float] = time.monotonic) -> None:
        self.most, self._now = most, now
        self._connections: dict[asyncio.Event, str] = {}  # the viewer of each open WebSocket, oldest first
        self._held_until: dict[str, float] = {}  # viewers with a reserved place but no WebSocket

    @property
    def viewers(self) -> int:
        return len(self._connections)

    def hold(self, viewer: str) -> bool:
        """Reserve a place while this viewer's page loads; False if all are taken.

        `viewer` is empty for a browser without a card, which gets no reservation.
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
        """Take a place for a new WebSocket; None if all are taken.

        The event is set when a newer WebSocket takes the place. Pass it to `disconnect` at the end.
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
        """Free the place, but reserve it for a reload if this was the viewer's last WebSocket."""
        viewer = self._connections.pop(replaced, "")
        if viewer and self._oldest(viewer) is None:
            self._held_until[viewer] = self._now() + RELOADING_S

    def _end(self, connection: asyncio.Event) -> None:
        del self._connections[connection]
        connection.set()

    def _second_tab(self) -> asyncio.Event | None:
        """Return the oldest WebSocket of the viewer with the most; None if no viewer has two."""
        (most, n), *_ = [*Counter(filter(None, self._connections.values())).most_common(1), ("", 0)]
        return self._oldest(most) if n > 1 else None

    def _oldest(self, viewer: str) -> asyncio.Event | None:
        return next((one for one, other in self._connections.items() if viewer and other == viewer), None)

    @property
    def _is_full(self) -> bool:
        return len(self._connections) + len(self._held_until) >= self.most


class LimitViewers:
    """ASGI middleware that enforces `capacity`, except for the teacher, and closes WebSockets outside of notebooks."""

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

            async def sending(message: Message) -> None:
                if not replaced.is_set():
                    await send(message)

            closing = asyncio.create_task(_close_when(replaced, send))
            try:
                await self._app(scope, receive, sending)
            finally:
                closing.cancel()
                self._capacity.disconnect(replaced)
        elif path.endswith("/sse"):  # marimo's other way to open a session, which would bypass the limit
            refusal = "Expected a WebSocket, got a request for server-sent events; open the page itself."
            await PlainTextResponse(refusal, 403)(scope, receive, send)
        elif path in _PAGES and scope["method"] == "GET" and not (is_teacher or self._capacity.hold(viewer)):
            await _full(self._capacity.most)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


async def _close_when(replaced: asyncio.Event, send: Send) -> None:
    await replaced.wait()
    with suppress(Exception):  # the browser may have closed it already
        await send({"type": "websocket.close", "code": 1000, "reason": FOR_GOOD})  # uvicorn then also tells the session


def _full(most: int) -> Response:
    page = plain_page(
        "Full",
        f"<h1>Full right now</h1><p>Places for viewers: {most}. All are taken.</p><p>This page reloads every"
        f" {REFRESH_S} seconds and opens the notebook as soon as there is room.</p>",
        503,
    )
    page.headers["Refresh"] = str(REFRESH_S)  # in <meta> it would fail axe's rule `meta-refresh`
    return page
