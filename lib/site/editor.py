"""marimo's editor beside the app: it starts when a page's cells are first asked for, and ends with the app."""

import socket
import subprocess
import sys
import threading
import time
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from lib import ROOT
from lib.site.plain_page import plain_page
from lib.ui.notebooks import FIRST, NOTEBOOKS

PATH = "/edit"
STARTS_S = 30.0


class Editor:
    """The editor's process.

    Args:
        host: Address to listen on.
        port: Of the app; the editor takes the next one, or any other where that is taken.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host, self._app_port, self._guard = host, port, threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._address = ""

    async def lead(self, request: Request) -> Response:
        """Lead from a page to its cells, at the same settings."""
        if request.scope.get("meta", {}).get("role") != "teacher":
            return plain_page(
                "Open the printed address first",
                "<h1>Open the printed address first</h1><p>Expected whoever started this server, as cells are programs;"
                " open the address that <code>make run</code> printed, and press “Edit” again.</p>",
                403,
            )
        address = await run_in_threadpool(self._started)
        if not address:
            return plain_page(
                "The editor did not start",
                "<h1>The editor did not start</h1><p>Its messages are in the terminal; <code>make edit</code> starts it"
                " by itself.</p>",
                503,
            )
        return RedirectResponse(f"{address}&{urlencode(_asked(request), safe='/')}", 303)

    def end(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(10)

    def _started(self) -> str:
        """The editor's address with its password; empty where it does not start."""
        with self._guard:
            if self._process is None or self._process.poll() is not None:
                port = _free_port(self._host, self._app_port + 1)
                words = [
                    "-u",
                    "-m",
                    "lib.cli.launch",
                    "edit",
                    "--host",
                    self._host,
                    "--port",
                    str(port),
                    "--headless",
                    "1",
                ]
                self._process = subprocess.Popen([sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True)
                self._address = _printed(self._process)
                threading.Thread(target=_read_on, args=(self._process,), daemon=True).start()
            return self._address


def _asked(request: Request) -> list[tuple[str, str]]:
    """The notebook's file, and the settings of the page that was left."""
    left = urlsplit(request.headers.get("referer", ""))
    notebook = next((one for one in NOTEBOOKS if one.path == left.path), FIRST)
    settings = [(name, value) for name, value in parse_qsl(left.query) if "." in name]
    return [("file", notebook.file), *settings]


def _printed(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None, "it is a pipe"
    until_s = time.monotonic() + STARTS_S
    while time.monotonic() < until_s and (line := process.stdout.readline()):
        if "access_token=" in line:
            return line.split()[-1]
    return ""


def _read_on(process: subprocess.Popen[str]) -> None:
    """A pipe that nobody reads stops whoever writes."""
    assert process.stdout is not None, "it is a pipe"
    for line in process.stdout:
        print(line, end="")


def _free_port(host: str, wanted: int) -> int:
    for port in (wanted, 0):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            try:
                probe.bind((host, port))
            except (OSError, OverflowError):
                continue
            return probe.getsockname()[1]
    raise OSError("no port is free")
