"""`make class` in which a cookie says who is a pupil, as whoever serves a class says it with each request:
`python -m tests.class_with_roles run --port 2750 --headless 1`."""

import sys
from http.cookies import SimpleCookie

from starlette.datastructures import Headers

from lib.cli import launch
from lib.pages import server


class Roles(server.Tidy):
    async def __call__(self, scope, receive, send):
        if scope["type"] in ("http", "websocket"):
            cookies = SimpleCookie(Headers(scope=scope).get("cookie", ""))
            if "role" in cookies:
                scope["meta"] = {"role": cookies["role"].value}
        await super().__call__(scope, receive, send)


if __name__ == "__main__":
    server.Tidy = Roles
    sys.exit(launch.main())
