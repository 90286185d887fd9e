"""Shared by the browser tests: servers on free ports, tabs that fail on console messages, and waits."""

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from benchmarks.browser import CHROMIUM, FLAGS, free_port
from lib import ROOT
from lib.site.access import Credentials, Keys, kept_secret
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.messages import State
from lib.ui.notebooks import NOTEBOOKS
from tests.contrast import contrast
from tests.hiding import hiding

MISSING = "no Chromium found: install one (on Debian: apt install chromium)"
MARKS = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None and not os.environ.get("CI"), reason=MISSING),  # in CI it is a failure
]
HEAVY = ("keras", "tensorflow", "torch", "numba")
VIEWERS = 3  # places on the closed site
FIRST = ".lab >> nth=0 >> "
STATE = "document.querySelectorAll('.lab')[n]?.querySelector('.lab-state b')?.innerText"  # of experiment n
# The focused element, also within shadow roots.
ACTIVE = """(() => { let e = document.activeElement; while (e.shadowRoot?.activeElement) e = e.shadowRoot.activeElement;
    return e })()"""
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}


def share_compiled(cache: Path) -> None:
    """Share other tests' compiled programs with a cache folder; its measurements and results stay separate."""
    shared = Path(os.environ["MNIST_CACHE_DIR"]) / "xla"
    shared.mkdir(exist_ok=True)
    if not (cache / "xla").exists():
        (cache / "xla").symlink_to(shared)


@dataclass(frozen=True)
class Site:
    base: str
    process: subprocess.Popen
    cache: Path
    password: str = ""

    def at(self, file: str) -> str:
        """Return a notebook's address, without the trailing slash."""
        return self.base + next(one.path for one in NOTEBOOKS if one.file == file).rstrip("/")

    @property
    def keys(self) -> Keys:
        return Keys(kept_secret(self.cache / "class-secret"), self.password)

    def cookie(self, viewer: str) -> tuple[str, str]:
        return f"class-{self.base.rpartition(':')[2]}", self.keys.cookie(Credentials("pupil", viewer))

    @property
    def store(self) -> Store:
        return Store(self.cache / "results.sqlite")


@contextmanager
def serving(
    cache: Path,
    hidden: tuple[str, ...] = HEAVY,
    options: tuple[str, ...] = (),
    password: str = "",
    stdout: int | IO[str] = subprocess.DEVNULL,
) -> Iterator[Site]:
    """Run `make class` on a free port with `cache` as its cache folder; end it with all its children.

    `hidden` libraries cannot be imported there: by default those that are slow to start.
    """
    port = free_port()
    share_compiled(cache)
    if password:
        (cache / "password").write_text(password)
        options = (*options, "--password-file", str(cache / "password"))
    environment = os.environ | {"MNIST_CACHE_DIR": str(cache)} | hiding(cache, *hidden)
    process = subprocess.Popen(
        [sys.executable, "-m", "lib.cli.launch", "run", "--port", str(port), "--headless", "1", *options],
        cwd=ROOT,
        env=environment,
        stdout=stdout,
        stderr=subprocess.DEVNULL,
    )
    base = f"http://127.0.0.1:{port}"
    for _ in range(200):
        try:
            urllib.request.urlopen(f"{base}/healthz", timeout=1)
            break
        except OSError:
            time.sleep(0.1)
    try:
        yield Site(base, process, cache, password)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


@contextmanager
def launching() -> Iterator[Callable]:
    """`launch(*flags)` opens a browser context for many tabs: they share a cache, so marimo's scripts are fetched once
    per server. Playwright allows one instance per thread."""
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        pytest.fail(MISSING, pytrace=False)
    browsers: list = []
    with sync_playwright() as playwright:

        def launch(*flags: str):
            browsers.append(playwright.chromium.launch(executable_path=CHROMIUM, args=list(flags)))
            return browsers[-1].new_context(viewport=DESK)

        yield launch
        for opened in browsers:
            opened.close()


@contextmanager
def browsing() -> Iterator:
    with launching() as launch:
        yield launch(*FLAGS)


@contextmanager
def tab(context) -> Iterator:
    """A tab whose trainings end with it; the test fails if anything appears on the console."""
    opened = context.new_page()
    said: list[str] = []
    pages: list[str] = []  # opened in this tab, in order
    opened.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    opened.on("requestfailed", lambda request: said.append(f"{request.url}: {request.failure}"))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("domcontentloaded", lambda _: pages.append(opened.url))
    try:
        yield opened
        stop_all(opened)
        heard = list(said)  # before closing, which aborts pending requests
    finally:
        opened.close()
    # marimo preloads two pictures that its pages do not show; leaving a page aborts the loading of its scripts.
    expected = ["was preloaded using link preload", *(["net::ERR_ABORTED"] if len(pages) > 1 else [])]
    unexpected = [text for text in heard if not any(words in text for words in expected)]
    assert not unexpected, f"expected nothing on the console, got {unexpected}"


def stop_all(page) -> None:
    """Stop running trainings: a closed page's session runs on for seconds and would compete with the next test's."""
    button = page.get_by_role("button", name="Stop all")
    if button.count():
        button.click()
        under_way = "under => [...document.querySelectorAll('.lab-state b')].some(e => under.includes(e.innerText))"
        wait_until(page, f"under => !({under_way})(under)", [state for state in State if state.under_way], 20_000)


def open_page(page, address, query="") -> None:
    page.goto(address + query)
    page.wait_for_selector(FIRST + ".lab-sentence", timeout=60_000)


def open_menu(page, nth=0):
    lab = page.locator(f".lab >> nth={nth}")
    if lab.locator(".lab-more[open]").count() == 0:
        lab.locator(".lab-more > summary").click()
    return lab.locator(".lab-menu")


def begin(page, nth) -> None:
    """Scroll to an experiment, since it starts when it comes near the viewport; the first starts with the page."""
    if nth:
        page.locator(f".lab >> nth={nth}").scroll_into_view_if_needed()


def wait_over(page, nth=0, timeout=60_000) -> None:
    begin(page, nth)
    wait_until(page, f"n => ['Done', 'Saved result', 'Stopped', 'Failed'].includes({STATE})", nth, timeout)


def slider(page, label, nth=0):
    return page.locator(f".lab >> nth={nth} >> .lab-controls > div", has_text=label).locator("[role=slider]")


def move(page, label, nth=0, key="ArrowRight") -> None:
    """Move a slider by one step; of a range, the upper end."""
    slider(page, label, nth).last.focus()
    page.keyboard.press(key)


def wait_for_state(page, state, nth=0, timeout=60_000) -> None:
    wait_until(page, f"([n, state]) => {STATE} === state", [nth, state], timeout)


def wait_until(page, condition: str, arg: object, timeout: int) -> None:
    """Wait until a JavaScript function holds; on timeout, fail with the states of the page's experiments."""
    from playwright.sync_api import TimeoutError as TooLate

    try:
        page.wait_for_function(condition, arg=arg, timeout=timeout)
    except TooLate:
        states = page.locator(".lab-state, .lab-problem").all_inner_texts()
        end = page.locator("body").inner_text()[-1500:]  # marimo reports failed cells here
        pytest.fail(f"expected {condition} of {arg} within {timeout} ms, got experiments that are at {states}; … {end}")


# axe's findings in marimo's own markup: rule, start of the selector, and why we accept it.
MARIMOS = (
    ("region", ".marimo:nth-child(", "the tooltip of the slider that has the focus hangs on the body, in no landmark"),
    ("color-contrast", "marimo-file .text-destructive", "“Click to clear files”, in marimo's red for what destroys"),
)

GROUND = "getComputedStyle(document.getElementById('App')).backgroundColor"
# Each chart text and its colour, without the halos drawn below the texts: those are meant to be faint.
TEXTS = """[...document.querySelectorAll('marimo-mime-renderer')]
    .flatMap(e => [...(e.shadowRoot?.querySelectorAll('svg text') ?? [])])
    .filter(text => text.textContent && text.getAttribute('opacity') !== '0')
    .filter(text => getComputedStyle(text).stroke === 'none')
    .map(text => [text.textContent, getComputedStyle(text).fill])"""
# Each text colour that the page itself uses on that background, with an example text.
INKS = """[...new Map([...document.querySelectorAll('#App *')]
    .filter(e => e.checkVisibility() && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
    .filter(e => { while (e.id !== 'App') { const style = getComputedStyle(e);
        if (style.backgroundColor !== 'rgba(0, 0, 0, 0)' || +style.opacity < 1) return false;
        e = e.parentElement } return true })
    .map(e => [getComputedStyle(e).color, e.innerText])).entries()].map(([color, text]) => [text, color])"""

# Headings in the viewport that something else covers.
COVERED = """() => [...document.querySelectorAll('h1, h2')].filter(heading => {
    const range = document.createRange(); range.selectNodeContents(heading);
    return [...range.getClientRects()].filter(box => box.top >= 0 && box.bottom < innerHeight)
        .some(box => [box.left + 2, box.right - 2].some(x => {
            const front = document.elementFromPoint(x, (box.top + box.bottom) / 2);
            return !front || !(heading.contains(front) || front.contains(heading)); }))
    }).map(heading => heading.innerText)"""

# Controls that extend past the window's edge, including those in marimo's shadow roots; no scrolling reaches them.
PAST_THE_EDGE = """() => {
    const all = root => [...root.querySelectorAll('*')].flatMap(e => [e, ...(e.shadowRoot ? all(e.shadowRoot) : [])]);
    return all(document.getElementById('App')).filter(e => e.matches('select, input, button, label'))
        .filter(e => e.checkVisibility() && !e.closest('.lab-scroll, .race-scroll'))
        .filter(e => e.getBoundingClientRect().right > innerWidth)
        .map(e => `${e.tagName} ${e.innerText.slice(0, 40)}`) }"""

# Dropdowns whose selected name needs more lines than there is room for.
CUT = """() => {
    const all = root => [...root.querySelectorAll('*')].flatMap(e => [e, ...(e.shadowRoot ? all(e.shadowRoot) : [])]);
    const pen = document.createElement('canvas').getContext('2d');
    return all(document.getElementById('App')).filter(e => e.matches('select') && e.checkVisibility()).filter(e => {
        const style = getComputedStyle(e), size = name => parseFloat(style[name]);
        pen.font = style.font;
        const width = pen.measureText(e.selectedOptions[0]?.textContent ?? '').width;
        const lines = Math.ceil(width / (e.clientWidth - size('paddingLeft') - size('paddingRight')));
        return lines * size('fontSize') > e.clientHeight;
    }).map(e => e.selectedOptions[0].textContent) }"""


def selector(target: list[str | list[str]]) -> str:
    """Convert the target of one of axe's nodes to a selector; a nested list leads through shadow roots."""
    return " ".join(" ".join(part) if isinstance(part, list) else part for part in target)


# WCAG 2.2: touch targets of 24 px, or as much space around them. The rule is off by default in axe.
WITH_A_THUMB = {"resultTypes": ["violations"], "rules": {"target-size": {"enabled": True}}}


def found_by_axe(page) -> list[tuple[str, str, str]]:
    """Return axe's findings outside marimo's markup: rule, selector, and start of the element's HTML."""
    from axe_playwright_python.sync_playwright import Axe

    return [
        (one["id"], selector(node["target"]), node["html"][:200])
        for one in Axe().run(page, options=WITH_A_THUMB).response["violations"]
        for node in one["nodes"]
        if not any(one["id"] == rule and selector(node["target"]).startswith(start) for rule, start, _ in MARIMOS)
    ]


def faint_texts(page) -> list[list[str]]:
    ground = page.evaluate(GROUND)
    return [one for one in page.evaluate(f"[...{TEXTS}, ...{INKS}]") if contrast(one[1], ground) < 4.5]


def assert_accessible(page) -> None:
    """Expect no findings from axe, and no faint text, covered heading, cut-off name or sideways scrolling, neither on a
    dark phone nor on a light desktop."""
    page.locator("main, [role=main]").wait_for()  # set by the page's own script, possibly after the results
    page.mouse.move(0, 0)  # a mouse left elsewhere would hover over something that depends on the width
    for scheme, size in (("dark", PHONE), ("light", DESK)):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size(size)
        page.wait_for_timeout(300)  # charts adapt to the new width
        limit = time.monotonic() + 10
        while faint := faint_texts(page):  # while the theme changes, colours are in between
            assert time.monotonic() < limit, (scheme, faint)
            page.wait_for_timeout(100)
        assert not page.evaluate(COVERED), size
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        assert page.evaluate(PAST_THE_EDGE) == [], size
        assert page.evaluate(CUT) == [], size
    found = found_by_axe(page)
    assert not found, found


def assert_figures_stand_beside_their_labels(page, table):
    page.set_viewport_size(PHONE)
    row = page.locator(table).locator("tr").nth(1)
    label, figure, last = (row.locator("th, td").nth(n) for n in (0, 2, -1))
    assert _right_of(figure) <= PHONE["width"]
    assert _right_of(last) > PHONE["width"], "there is something to scroll to"
    left = label.bounding_box()["x"]
    row.evaluate("row => row.closest('.lab-scroll, .race-scroll').scrollBy(1000, 0)")
    assert label.bounding_box()["x"] == pytest.approx(left, abs=5)  # the space between cells
    assert _right_of(last) <= PHONE["width"]


def _right_of(cell):
    box = cell.bounding_box()
    return box["x"] + box["width"]
