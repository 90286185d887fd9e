"""Which requests are let in at all, how long they may be, and what a browser may do with a page.

marimo checks neither the origin of a WebSocket nor the requested host, so a page of any web site could open one here
and train with it, in the name of whoever looks at that page.
"""

import html
import ipaddress
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lib.site.plain_page import plain_page
from lib.ui.notebooks import AS_PAGE, present_file, present_path
from lib.ui.uploads import Uploads

# The WebSocket's first line holds the page's settings, written anew, and must be shorter than 8,192 bytes.
MAX_SETTINGS_BYTES = 8_000
# Of a request's address and headers together: settings, once more in the referrer, and other servers' cookies. What is
# longer is not even read, since reading can take a time that grows with the square of the length.
MAX_HEAD_BYTES = 32 << 10
# No other page may show one of ours in a frame, whose buttons it could cover.
NOT_FRAMED = "frame-ancestors 'self'"
# Everything comes from this server. marimo's page holds scripts and styles inline, Vega compiles its expressions, and
# widgets and workers come as data: and blob: addresses; to whom anything is sent is what the policy restricts.
CONTENT_POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self' data: blob:",
        "worker-src 'self' blob:",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
        NOT_FRAMED,
    )
)
# marimo names its scripts and styles by a digest of their content: what a browser has, it need not ask for again,
# which through a tunnel costs a round trip for each of some hundred files.
HASHED = re.compile(r"/assets/[\w.-]+-[\w-]{8}\.(css|js|wasm|woff2)")
FOREVER = "private, max-age=31536000, immutable"
# Of the class site alone: its pages ask for no device, tell other sites nothing, and share no window with them.
CLASS_HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), serial=(), usb=()",
    "Referrer-Policy": "same-origin",
}


class Gate:
    """ASGI middleware: refuses requests of other sites and overlong ones, and sets the pages' headers.

    Args:
        app: Gets the requests that are let in.
        headers: Of each response, beside the one that forbids guessing types.
        hosts: Names of this server, beside localhost and addresses in digits; a request for any other name is refused,
            because somebody else's name may lead here too.
        first: The notebook that the editor opens, as a page, for a request that names none; empty for no editor.
    """

    def __init__(self, app: ASGIApp, headers: Mapping[str, str], hosts: Iterable[str] = (), first: str = "") -> None:
        self._app, self._headers, self._first = Uploads(app), headers, first
        self._hosts = {"localhost", *hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        answer = self._answer(scope)
        if answer is None:
            with suppress(ClientDisconnect):  # whoever hangs up while sending is told nothing
                await self._app(scope, receive, self._with_headers(scope, send))
        elif scope["type"] == "http":
            await answer(scope, receive, self._with_headers(scope, send))
        else:
            await send({"type": "websocket.close", "code": 1008})  # not accepted: the browser gets status 403

    def _answer(self, scope: Scope) -> Response | None:
        """What is answered in marimo's place."""
        said = [scope["path"].encode(), *(part for header in scope["headers"] for part in header)]
        if (length := len(scope["query_string"])) > MAX_SETTINGS_BYTES:
            return _too_long(scope["path"][:MAX_HEAD_BYTES], length)
        # With the four signs around each header: many short ones take as long as a few long ones.
        if (length := sum(map(len, said)) + 4 * len(scope["headers"])) > MAX_HEAD_BYTES:
            return PlainTextResponse(
                f"Expected a path and headers of at most {MAX_HEAD_BYTES:,} bytes, got {length:,}; delete this site's"
                " cookies.",
                431,
            )
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._is_ours(host):
            names = ", ".join(sorted(self._hosts))
            return _refused(f"Expected {names} or an address in digits, got {host}; open this server by one of these.")
        if _comes_from_elsewhere(scope, headers):
            return _refused(
                "Expected a request of this server's own pages, got one of another site; open the page itself."
            )
        if _leaves_its_folder(scope["path"]):
            return PlainTextResponse("Expected the name of a file, got one that leads out of its folder.", 404)
        settings = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if (length := len(urlencode(settings))) > MAX_SETTINGS_BYTES:
            return _too_long(scope["path"], length)
        if (path := present_path(scope["path"])) != scope["path"]:  # marimo's own redirection forgets the settings
            return RedirectResponse(f"{path}?{urlencode(settings)}", 308)
        if self._first and path == "/":
            said = dict(settings)
            wanted = {**said, "file": present_file(said.get("file", self._first))}
            if "file" not in said:
                wanted.setdefault(*AS_PAGE)
            if wanted != said:
                return RedirectResponse(f"/?{urlencode(wanted, safe='/')}", 303)
        return None

    def _is_ours(self, host: str) -> bool:
        name = ""
        try:
            name = urlsplit(f"//{host}").hostname or ""
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._hosts
        return True

    def _with_headers(self, scope: Scope, send: Send) -> Send:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update({**self._headers, "X-Content-Type-Options": "nosniff"})
                if message["status"] == 200 and HASHED.search(scope["path"]):
                    headers["Cache-Control"] = FOREVER
            await send(message)

        return sending


def _comes_from_elsewhere(scope: Scope, headers: Headers) -> bool:
    """Whether a page of another site asks. Browsers say so; whoever is no browser asks in nobody's name."""
    origin = headers.get("origin")
    if origin is not None:
        return origin.partition("://")[2].lower() != headers.get("host", "").lower()
    followed_a_link = scope.get("method") == "GET" and headers.get("sec-fetch-mode") == "navigate"
    return headers.get("sec-fetch-site") in ("cross-site", "same-site") and not followed_a_link


def _leaves_its_folder(path: str) -> bool:
    """Whether a file is asked for by what is no name, which marimo notices only after it has begun to answer."""
    _, asked, name = path.partition("/@file/")
    return bool(asked) and re.fullmatch(r"\d+-[\w.-]+|empty\.txt", name) is None


def _refused(sentence: str) -> Response:
    return PlainTextResponse(sentence, 403)


def _too_long(path: str, length: int) -> Response:
    return plain_page(
        "This address is too long",
        f"<h1>This address is too long</h1><p>Expected at most {MAX_SETTINGS_BYTES:,} bytes of settings, got"
        f' {length:,}. Ask for the link once more, or <a href="{html.escape(path)}">open the page with its usual'
        " settings</a>.</p>",
        414,
    )
