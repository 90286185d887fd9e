"""What the tests in a browser share: servers on free ports, tabs that fail on what the console says, and waiting for a run's end."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lib.notebooks import NOTEBOOKS, ROOT

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MISSING = "no Chromium found: install one (on Debian: apt install chromium)"
MARKS = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None and not os.environ.get("CI"), reason=MISSING),  # in CI it is a failure
]
# Chromium's own calls home would fail here and be reported as errors of the page.
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
FIRST = ".lab >> nth=0 >> "
PHONE = {"width": 390, "height": 844}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def share_compiled(cache: Path) -> None:
    """Give a cache folder the programs that other tests have compiled; what is measured and kept stays its own."""
    shared = Path(os.environ["MNIST_CACHE_DIR"]) / "xla"
    shared.mkdir(exist_ok=True)
    if not (cache / "xla").exists():
        (cache / "xla").symlink_to(shared)


@contextmanager
def serving(cache, notebook) -> Iterator[tuple[str, subprocess.Popen]]:
    """`make class` on a free port with this folder as its cache, and the address of this notebook; ended with all its children."""
    port = free_port()
    share_compiled(Path(cache))
    environment = os.environ | {"MNIST_CACHE_DIR": str(cache)}
    process = subprocess.Popen(
        [sys.executable, "-m", "lib.launch", "run", "--port", str(port), "--headless", "1"],
        cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    base = f"http://127.0.0.1:{port}"
    for _ in range(200):
        try:
            urllib.request.urlopen(f"{base}/health", timeout=1)
            break
        except OSError:
            time.sleep(0.1)
    path = next(one.path for one in NOTEBOOKS if one.file == notebook)
    try:
        yield base + path.rstrip("/"), process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


@contextmanager
def browsing() -> Iterator:
    """A browser, and in it one context for many tabs: they share its cache, so marimo's scripts are fetched once a server."""
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        pytest.fail(MISSING, pytrace=False)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser.new_context(viewport={"width": 1280, "height": 900})
        browser.close()


@contextmanager
def tab(context) -> Iterator:
    """A tab that fails the test if anything is said on the console, and whose trainings end with it."""
    opened = context.new_page()
    said: list[str] = []
    opened.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    opened.on("requestfailed", lambda request: said.append(f"{request.url}: {request.failure}"))
    opened.on("pageerror", lambda error: said.append(str(error)))
    try:
        yield opened
        stop_all(opened)
    finally:
        opened.close()
    # marimo preloads two pictures that this page does not show.
    unexpected = [text for text in said if "was preloaded using link preload" not in text]
    assert not unexpected, f"expected nothing on the console, got {unexpected}"


def stop_all(page) -> None:
    """End what still trains: marimo keeps the session of a closed page for two minutes, and it would take turns with the next test's."""
    button = page.get_by_role("button", name="Stop all")
    if button.count():
        button.click()
        page.wait_for_function(
            "() => ![...document.querySelectorAll('.lab-state b')].some(e => ['Training', 'Waiting'].includes(e.innerText))",
            timeout=20_000,
        )


def open_page(page, server, query="") -> None:
    page.goto(server[0] + query)
    page.wait_for_selector(FIRST + ".lab-sentence", timeout=60_000)


def wait_over(page, nth=0, timeout=60_000) -> None:
    page.wait_for_function(
        "n => ['Done', 'From store', 'Stopped', 'Failed'].includes(document.querySelectorAll('.lab')[n]?.querySelector('.lab-state b')?.innerText)",
        arg=nth, timeout=timeout,
    )  # fmt: skip
