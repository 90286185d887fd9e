"""A server and a browser with the notebook, for benchmarks that look at the page.

Times are taken in the page, by its own clock: from the key press to the animation frame that shows the expected
result. They are accurate to one frame (17 ms at 60 Hz) and exclude Playwright's own delays.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright
from playwright.sync_api import Error as PlaywrightError

from lib.cache_folder import cache_dir
from lib.model.data.mnist import load_test

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# Without a network, Chromium's background requests would fail and count as errors of the page.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# Needed on a machine without a GPU: they offer a software adapter.
WITH_WEBGPU = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader")
N_EXPERIMENTS = 4
START_LIMIT_S = 90
# Scroll to a section that has not begun, and return whether there was one. The “look inside” waits for a result.
NEXT_OUT_OF_SIGHT = """() => {
    const one = document.querySelector("[data-out-of-sight]:not([data-out-of-sight=inside])");
    one?.scrollIntoView(); return one !== null }"""
POLL_MS = 200  # between a benchmark's polls; Playwright would poll at every frame, see `WATCH`

# Watches the first experiment: its state and sentence, and the axis and lines of its first chart. A line needs two
# points to be visible, hence the "L" in its path.
# Requesting every frame would make the browser draw more of them, on a core that the page and the training need. So a
# timer looks at the document and requests only the frame in which a finding becomes visible.
WATCH = """
const LOOK_MS = 10, nextFrame = act => requestAnimationFrame(act);
window.lab = {
  look() {
    const lab = document.querySelector('.lab');
    if (!lab) return null;
    const chart = lab.querySelector('.lab-figure marimo-mime-renderer')?.shadowRoot;
    const lines = chart ? [...chart.querySelectorAll('.mark-line.role-mark path')] : [];
    return {
      state: lab.querySelector('.lab-state b')?.textContent ?? '',
      over: !!lab.querySelector('.lab-sentence'),
      axis: [...(chart?.querySelectorAll('.role-axis-label text') ?? [])].map(e => e.textContent).join('|'),
      lines: lines.filter(e => e.getAttribute('d')?.includes('L')).length,
      labels: [...(chart?.querySelectorAll('.mark-text.role-mark text') ?? [])].map(e => e.textContent).join('|'),
    };
  },
  // Times, from the next key press, when the old lines disappear (the new run's step axis differs), and when the new
  // labels and lines become visible.
  arm() {
    const before = this.look().axis;
    this.seen = new Promise(resolve => {
      addEventListener('keydown', () => {
        const from = performance.now(), seen = {gone: null, labels: null, points: null}, found = new Set();
        const check = () => {
          const at = this.look(), other = at && at.axis !== before;
          const shown = ['Training', 'Done', 'Saved result'].includes(at?.state);
          const now = {gone: other, labels: other && at.labels, points: other && at.lines > 0 && shown};
          const news = Object.keys(now).filter(name => now[name] && !found.has(name));
          if (news.includes('points')) seen.state = at.state;
          if (news.length) nextFrame(() => news.forEach(one => { seen[one] = (performance.now() - from) / 1000; }));
          news.forEach(one => found.add(one));
          const enough = found.has('points') && (at.state === 'Training' || at.over);
          if (enough || performance.now() - from > 60_000) nextFrame(() => resolve(seen));
          else setTimeout(check, LOOK_MS);
        };
        check();
      }, {once: true, capture: true});
    });
  },
  complete: null,
};
(function check() {
  const at = window.lab.look();
  if (at && at.over && at.lines > 0 && ['Done', 'Saved result'].includes(at.state)) nextFrame(() => {
    window.lab.complete = {at: (performance.timeOrigin + performance.now()) / 1000, state: at.state};
  });
  else setTimeout(check, LOOK_MS);
})();
"""

STATES = "[...document.querySelectorAll('.lab-state b')].map(e => e.textContent)"


@contextmanager
def browser(flags: Sequence[str] = FLAGS) -> Iterator[Browser]:
    if CHROMIUM is None:
        raise RuntimeError("no browser found: expected chromium, chromium-browser or google-chrome; install one")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=list(flags))
        try:
            with looking():
                yield opened
        finally:
            opened.close()


@contextmanager
def looking() -> Iterator[None]:
    """Convert Playwright's errors into a benchmark's RuntimeError."""
    try:
        yield
    except PlaywrightError as error:
        raise RuntimeError(f"the page did not show what was waited for: {error}") from error


@contextmanager
def fresh_cache() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="less-overhead-bench-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextmanager
def server(cache: Path) -> Iterator[tuple[psutil.Process, str]]:
    """The editor, like `make run HEADLESS=1` but without a token, and its address. Ends with all its children."""
    port = free_port()
    with _serving(
        [sys.executable, "-m", "lib.cli.launch", "edit", "--port", str(port), "--headless", "1", "--no-token"], cache
    ) as process:
        yield psutil.Process(process.pid), f"http://127.0.0.1:{port}/"


@contextmanager
def class_server(cache: Path, *options: str) -> Iterator[tuple[psutil.Process, str]]:
    """`make class HEADLESS=1` with these options, and its address once it answers. Ends with all its children."""
    port = free_port()
    command = [sys.executable, "-m", "lib.cli.launch", "run", "--port", str(port), "--headless", "1", *options]
    with _serving(command, cache) as process:
        limit = time.monotonic() + START_LIMIT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError as error:
                if time.monotonic() > limit:
                    raise RuntimeError(f"the server did not answer within {START_LIMIT_S} s ({error})") from error
                time.sleep(0.1)
        yield psutil.Process(process.pid), f"http://127.0.0.1:{port}/"


@contextmanager
def _serving(
    command: Sequence[str], cache: Path, said: int = subprocess.DEVNULL, **more: str
) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | {"MNIST_CACHE_DIR": str(cache)} | more | _images(),
        stdin=subprocess.DEVNULL,
        stdout=said,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )
    seen = psutil.Process(process.pid)
    try:
        yield process
    finally:
        _end(seen)
        process.wait(10)


@contextmanager
def make_run(cache: Path, port: int) -> Iterator[str]:
    with addressed(["make", "run", "HEADLESS=1", f"PORT={port}"], cache, port) as address:
        yield address


@contextmanager
def addressed(command: Sequence[str], cache: Path, port: int) -> Iterator[str]:
    """A server program, and the address that it prints once it serves. Ends with all its children."""
    with _serving(command, cache, subprocess.PIPE, PYTHONUNBUFFERED="1") as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if found := re.search(rf"http://[\w.]+:{port}\S*", line):
                threading.Thread(target=process.stdout.read, daemon=True).start()  # keeps the pipe from filling up
                yield found.group()
                return
        raise RuntimeError(f"{command[0]} ended before it printed an address: {''.join(said)[-500:]}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _images() -> dict[str, str]:
    """The location of the images, so that an empty cache does not cause a download during a measurement."""
    if os.environ.get("MNIST_NPZ"):
        return {}
    load_test()
    kept = cache_dir() / "mnist.npz"
    return {"MNIST_NPZ": str(kept)} if kept.is_file() else {"MNIST_OFFLINE": "1"}


def _end(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        family = [*process.children(recursive=True), process]
        for member in family:
            with suppress(psutil.NoSuchProcess):
                member.terminate()
        _, alive = psutil.wait_procs(family, timeout=5)
        for survivor in alive:
            with suppress(psutil.NoSuchProcess):
                survivor.kill()
        psutil.wait_procs(alive, timeout=5)


@contextmanager
def visitor(opened: Browser) -> Iterator[BrowserContext]:
    """A new browser profile, which caches what it has loaded."""
    context = opened.new_context(viewport={"width": 1400, "height": 1000})
    context.add_init_script(WATCH)
    try:
        yield context
    finally:
        context.close()


@contextmanager
def page_of(context: BrowserContext, address: str) -> Iterator[Page]:
    """The page, as soon as the server answers, with the watcher installed before any other script."""
    page = context.new_page()
    try:
        _open(page, address)
        yield page
    finally:
        page.close()


def _open(page: Page, address: str) -> None:
    where = urlsplit(address)
    limit = time.monotonic() + START_LIMIT_S
    while True:
        try:
            socket.create_connection((where.hostname or "", where.port or 0), timeout=1).close()
            page.goto(address, wait_until="commit")
            return
        except (OSError, PlaywrightError) as error:
            if time.monotonic() > limit:
                raise RuntimeError(f"the server did not answer within {START_LIMIT_S} s ({error})") from error
            time.sleep(0.02)


def first_complete(page: Page) -> tuple[float, str]:
    """When the first experiment's chart was complete (Unix seconds), and its state: Done or Saved result."""
    page.wait_for_function("window.lab.complete", timeout=1000 * START_LIMIT_S, polling=POLL_MS)
    complete = page.evaluate("window.lab.complete")
    return complete["at"], complete["state"]


def begin_all(page: Page, n_labs: int = 1) -> None:
    """Scroll through the page and back once `n_labs` have arrived: sections begin when they come near."""
    arrived = "n => document.querySelectorAll('.lab').length >= n"
    page.wait_for_function(arrived, arg=n_labs, timeout=1000 * START_LIMIT_S)
    n_begun = 0  # consecutive looks; cells may still be arriving
    while n_begun < 5:
        n_begun = 0 if page.evaluate(NEXT_OUT_OF_SIGHT) else n_begun + 1
        page.wait_for_timeout(POLL_MS)
    page.locator("h1").scroll_into_view_if_needed()


def wait_until_all_over(page: Page, limit_s: float = 240) -> None:
    """Wait until all experiments and measurements of the page are over, because they take a core."""
    begin_all(page, N_EXPERIMENTS)
    ended = (
        f"{STATES}.filter(s => ['Done', 'Saved result'].includes(s)).length >= {N_EXPERIMENTS} &&"
        f" !{STATES}.some(s => ['Starting', 'Waiting', 'Training', 'Measuring'].includes(s))"
    )
    page.wait_for_function(ended, timeout=1000 * limit_s, polling=POLL_MS)
    time.sleep(2)  # until the “look inside” that follows them is drawn
