"""Who comes in at the class site, and as what: a password, links with a token, and the signed cookie that they give.

An open server has neither password nor class link: everybody is a pupil there, but for who follows the teacher's link.
A page learns the role from `mo.app_meta().request.meta["role"]`, “teacher” or “pupil”; `meta["viewer"]` is the same for
all pages of one browser, and says nothing about the person.
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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl, quote, urlencode

from itsdangerous import BadSignature, URLSafeTimedSerializer
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lib.pages.plain_page import plain_page

Role = Literal["teacher", "pupil"]
DOOR, HEALTH, ICON = "/enter", "/healthz", "/favicon.ico"  # for everybody
LINKS: dict[str, Role] = {"class": "pupil", "teacher": "teacher"}  # the parameter of a link, and who follows it
CARD_S = 12 * 3600  # a day at school
MIN_PASSWORD = 8
MAX_FORM_BYTES = 4_096
# A wrong password is answered late, the later the more there were from the same address within `FORGET_S`; as the
# right one is answered at once, at most `AT_ONCE` guesses of an address may be waiting for their answer.
FIRST_WAIT_S, LONGEST_WAIT_S, FORGET_S, AT_ONCE = 0.25, 8.0, 60.0, 8


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

    Only the owner can read the file. Where it cannot be kept, the secret is a new one at every start.
    """
    try:
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as new:
            new.write(secrets.token_bytes(32))
    except OSError:  # it is there already, or cannot be
        pass
    try:
        kept = file.read_bytes()
    except OSError:
        kept = b""
    return kept if len(kept) == 32 else secrets.token_bytes(32)


@dataclass(frozen=True)
class Card:
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
        """Whether this is the password; it takes as long for any."""
        known, said = (hashlib.sha256(one.encode()).digest() for one in (self.password, password))
        return hmac.compare_digest(known, said) and bool(self.password)

    def cookie(self, card: Card) -> str:
        """The signed card."""
        return self._signer.dumps(asdict(card))

    def card(self, cookie: str | None) -> Card | None:
        """The card of a cookie; None where it is not signed by this server, too old, or from before it was closed."""
        try:
            return Card(**self._signer.loads(cookie or "", max_age=CARD_S))
        except (BadSignature, TypeError):
            return None

    @property
    def _signer(self) -> URLSafeTimedSerializer:
        # Another password, or one at all, makes every card void.
        return URLSafeTimedSerializer(self._derived(f"cards {self.closed} {self.password}"), salt="card")

    def _derived(self, purpose: str) -> bytes:
        return hmac.digest(self.secret, purpose.encode(), "sha256")


class Patience:
    """How late a wrong password is answered, by where it came from."""

    def __init__(self) -> None:
        self._wrong: dict[str, tuple[int, float]] = {}  # how many there were, and when the last one was
        self._waiting: Counter[str] = Counter()

    def is_short(self, origin: str) -> bool:
        """Whether so many guesses of this address are waiting that another one is not even looked at."""
        return self._waiting[origin] >= AT_ONCE

    async def wrong(self, origin: str) -> None:
        """Let one more wrong guess wait for its answer."""
        now = time.monotonic()
        self._wrong = {one: (n, last) for one, (n, last) in self._wrong.items() if now - last < FORGET_S}
        before, _ = self._wrong.get(origin, (0, now))
        self._wrong[origin] = before + 1, now
        self._waiting[origin] += 1
        try:
            await asyncio.sleep(min(FIRST_WAIT_S * 2 ** min(before, 10), LONGEST_WAIT_S))
        finally:
            self._waiting[origin] -= 1
            if not self._waiting[origin]:
                del self._waiting[origin]


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
        self._patience = Patience()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or scope["path"] in (HEALTH, ICON):
            await self._app(scope, receive, send)
            return
        known = self._keys.card(_cookie(scope, self._cookie))
        if scope["type"] == "websocket":
            card = known or (None if self._keys.closed else Card("pupil", ""))
            if card is None:
                await send({"type": "websocket.close", "code": 1008})  # not accepted: the browser gets status 403
            else:
                await self._app(_with_meta(scope, card), receive, send)
            return
        answer = await self._answer(Request(scope, receive), known)
        if answer is not None:
            await answer(scope, receive, send)
        elif known is not None:
            await self._app(_with_meta(scope, known), receive, send)
        else:  # an open server's new guest
            new = Card("pupil", secrets.token_hex(8))
            await self._app(_with_meta(scope, Card("pupil", "")), receive, self._giving(new, send))

    async def _answer(self, request: Request, known: Card | None) -> Response | None:
        """What is answered at the door; None for who may go on."""
        settings = parse_qsl(request.url.query, keep_blank_values=True)
        if link := next((name for name, _ in settings if name in LINKS), None):
            return self._follow(request.url.path, link, settings, known)
        if request.url.path == DOOR:
            return await self._enter(request, known)
        if known is not None or not self._keys.closed:
            return None
        if request.method == "GET" and "text/html" in request.headers.get("accept", ""):
            here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
            return RedirectResponse(f"{DOOR}?next={quote(here, safe='/')}", 303)
        return PlainTextResponse("Expected somebody who has entered, got nobody; open the page and enter.", 401)

    def _follow(self, path: str, link: str, settings: list[tuple[str, str]], known: Card | None) -> Response:
        """A link with a token: the token leaves the address, the settings stay."""
        role = self._keys.role_of(link, dict(settings)[link])
        if role is None:
            return plain_page(
                "This link does not fit",
                f"<h1>This link does not fit</h1><p>Expected the {link} link as the server printed it, got another one."
                f" Ask your teacher for it{self._or_password()}.</p>",
                403,
            )
        rest = urlencode([(name, value) for name, value in settings if name not in LINKS])
        return self._admitted(_local(f"{path}?{rest}" if rest else path), role, known)

    def _or_password(self) -> str:
        return f', or <a href="{DOOR}">enter with the password</a>' if self._keys.password else ""

    async def _enter(self, request: Request, known: Card | None) -> Response:
        """The page at the door, and what its form sends."""
        if request.method != "POST":
            aim = _local(request.query_params.get("next", "/"))
            return RedirectResponse(aim, 303) if known or not self._keys.closed else self._door(aim)
        form = await _form(request)
        if form is None:
            return PlainTextResponse(f"Expected a form of at most {MAX_FORM_BYTES:,} bytes, got a longer one.", 413)
        aim, origin = _local(form.get("next", "/")), request.client.host if request.client else ""
        if self._patience.is_short(origin):
            problem = f"Too many passwords were tried from here. Try again in {LONGEST_WAIT_S:.0f} seconds."
            return self._door(aim, problem, 429)
        if self._keys.fits(form.get("password", "")):
            return self._admitted(aim, "pupil", known)
        await self._patience.wrong(origin)
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

    def _admitted(self, aim: str, role: Role, known: Card | None) -> Response:
        answer = RedirectResponse(aim, 303, {"Cache-Control": "no-store"})
        answer.headers["Set-Cookie"] = self._set_cookie(Card(role, known.viewer if known else secrets.token_hex(8)))
        return answer

    def _giving(self, card: Card, send: Send) -> Send:
        """Give the card with the answer, if it is a page."""

        async def sending(message: Message) -> None:
            starts = message["type"] == "http.response.start"
            if starts and Headers(raw=message["headers"]).get("content-type", "").startswith("text/html"):
                MutableHeaders(scope=message).append("Set-Cookie", self._set_cookie(card))
            await send(message)

        return sending

    def _set_cookie(self, card: Card) -> str:
        # Lax: the first page after a link from elsewhere, such as a mail, must bring the cookie.
        secure = "; Secure" if self._secure else ""
        signed = self._keys.cookie(card)
        return f"{self._cookie}={signed}; Path=/; Max-Age={CARD_S}; HttpOnly; SameSite=Lax{secure}"


def _cookie(scope: Scope, name: str) -> str | None:
    """The value of a cookie. Python before 3.11.10 reads quoted ones in a time that grows with the square of their
    length, and ours has no quotes."""
    pairs = (pair.strip().partition("=") for pair in Headers(scope=scope).get("cookie", "").split(";"))
    return next((value for found, _, value in pairs if found == name), None)


def _with_meta(scope: Scope, card: Card) -> Scope:
    return {**scope, "meta": {"role": card.role, "viewer": card.viewer}}


def _local(aim: str) -> str:
    """A path of this server; the front page's in place of what may lead elsewhere."""
    leads_away = not aim.startswith("/") or aim.startswith(("//", "/\\")) or not aim.isprintable()
    return "/" if leads_away else aim


async def _form(request: Request) -> dict[str, str] | None:
    """The fields of a form; None where it is too long."""
    sent = b""
    async for part in request.stream():
        sent += part
        if len(sent) > MAX_FORM_BYTES:
            return None
    return dict(parse_qsl(sent.decode("utf-8", "replace"), keep_blank_values=True))
