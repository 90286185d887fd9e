"""Waiting times on the page in a real browser: after a slider's key press, and after starting the program.

first-points    a new position → two points of a new line are visible; `first-labels` is when the labels at the new
                lines' ends are, for which one point is enough
cached          a position seen before → its complete chart and its sentence, from the store
cancelled       moved while 16 trainings of 10 or 20 epochs are running → two points of a new line are visible, so the
                worker has abandoned the old run and begun the new one; `cancelled-gone` is when the old lines are gone
finished        a new position of four networks and three epochs → its complete chart and sentence, by the fastest way
empty-notebook  from `marimo run` of a notebook with a slider and one line of text to that line
empty-slider    its slider's key press → the line with the new value
first-figure    from `make run` to the first section's rows, with nothing compiled or stored and a new browser profile
page-cold       the same to the first experiment's complete chart
page-warm       the same, a second time; `page-warm-new-browser`: with a new browser profile
"""

import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from playwright.sync_api import Browser, Page

from benchmarks.browser import (
    POLL_MS,
    addressed,
    browser,
    first_complete,
    free_port,
    fresh_cache,
    looking,
    make_run,
    page_of,
    visitor,
    wait_until_all_over,
)
from benchmarks.report import SECONDS, LeftOut, Target, note, row, show

PRESSES = 20
STARTS = 5
EMPTY_PRESSES = 4  # per start
LIMITS_S = {"first-points": 0.15, "cancelled": 0.3, "finished": 0.8}
# Limits on the time beyond an empty notebook's.
OVER_EMPTY_S = {
    "first-figure": ("empty-notebook", 1.0),
    "page-cold": ("empty-notebook", 5.0),
    "page-warm": ("empty-notebook", 1.5),
    "cached": ("empty-slider", 0.03),
}
EMPTY = """import marimo

app = marimo.App()


@app.cell
def _():
    import marimo as mo

    slider = mo.ui.slider(0, 100)
    slider
    return mo, slider


@app.cell
def _(mo, slider):
    mo.md(f"an empty notebook at {slider.value}")
    return
"""
# Resolves after the next key press, once the line with this value is visible.
UNTIL_SAID = """value => {
  window.said = new Promise(resolve => addEventListener('keydown', () => {
    const from = performance.now();
    const check = () => document.body.innerText.includes(`an empty notebook at ${value}`)
      ? requestAnimationFrame(() => resolve((performance.now() - from) / 1000)) : setTimeout(check, 10);
    check();
  }, {once: true, capture: true}));
}"""
WORDS = {
    "first-points": "slider to a new run's first points",
    "cached": "slider to a kept result",
    "cancelled": "slider during a run to the new run's first points",
    "finished": "slider to the finished experiment",
    "first-figure": "first start to the first figure",
    "page-cold": "first start to a complete chart",
    "page-warm": "second start to a complete chart",
}
COUNT, EPOCHS, SIZE = 0, 1, 2  # sliders of the first experiment: number of rates, epochs, batch size
COUNTS = (5, 6, 7, 8)
FEWEST_EPOCHS, EPOCHS_AT_FIRST, MOST_EPOCHS = 1, 3, 6
PAUSE_S = 0.5  # between a finished frame and the next press, like a person
SETTLE_S = 1.0  # of training before cancelling
WAIT_LIMIT_S = 120
SIZES = 6  # batch sizes for `finished`


def main() -> None:
    seconds: dict[str, list[float]] = defaultdict(list)
    left_out = LeftOut()
    try:
        with browser() as opened:
            _starts(opened, seconds, left_out)
            with left_out.unless_it_works("presses"), looking(), fresh_cache() as cache, _ready(opened, cache) as page:
                _presses(Presses(page, seconds, left_out))
    finally:
        _report(seconds, left_out)  # keeps the results of an interrupted run


def _report(seconds: dict[str, list[float]], left_out: LeftOut) -> None:
    rows = [row(name, values, "fastest", 32, worst_s=max(values)) for name, values in seconds.items() if values]
    over = {name: median(found) + s for name, (empty, s) in OVER_EMPTY_S.items() if (found := seconds.get(empty))}
    limits = LIMITS_S | over
    targets = [Target.of(WORDS[name], seconds.get(name, []), limit, "s") for name, limit in limits.items()]
    show("interaction", rows, ("name", *SECONDS, "worst_s"), targets, left_out)


def _starts(opened: Browser, seconds: dict[str, list[float]], left_out: LeftOut) -> None:
    for number in range(STARTS):
        with left_out.unless_it_works(f"start {number + 1} of {STARTS}"), looking(), fresh_cache() as cache:
            port = free_port()
            _empty(opened, cache, port, seconds)
            with visitor(opened) as person, visitor(opened) as stranger:
                for name, who in (("page-cold", person), ("page-warm", person), ("page-warm-new-browser", stranger)):
                    began = time.time()
                    with make_run(cache, port) as address, page_of(who, address) as page:
                        if name == "page-cold":
                            page.wait_for_selector(".ways li", timeout=1000 * WAIT_LIMIT_S)
                            seconds["first-figure"].append(time.time() - began)
                        at, state = first_complete(page)
                        seconds[name].append(at - began)
                        note(f"{name}: {at - began:.1f} s ({state})")


def _empty(opened: Browser, cache: Path, port: int, seconds: dict[str, list[float]]) -> None:
    notebook = cache / "empty.py"
    notebook.write_text(EMPTY)
    began, command = time.time(), [sys.executable, "-m", "marimo", "run", str(notebook), "--headless", "--no-token"]
    with addressed([*command, "--port", str(port)], cache, port) as address, visitor(opened) as person:
        with page_of(person, address) as page:
            page.get_by_text("an empty notebook").first.wait_for(timeout=1000 * WAIT_LIMIT_S)
            seconds["empty-notebook"].append(time.time() - began)
            page.locator("[role=slider]").focus()
            for value in range(1, EMPTY_PRESSES + 1):
                time.sleep(PAUSE_S)
                page.evaluate(UNTIL_SAID, value)
                page.keyboard.press("ArrowRight")
                seconds["empty-slider"].append(page.evaluate("window.said"))


@dataclass
class Presses:
    page: Page
    seconds: dict[str, list[float]]
    left_out: LeftOut

    def take(self, what: str, slider: int, key: str, states: Sequence[str], **named: str) -> None:
        """Press a key and store the times seen under these names; left out if the state is wrong or no line is new."""
        with self.left_out.unless_it_works(f"{what}, {key}"), looking():
            seen = press(self.page, slider, key)
            if seen["points"] is None or seen.get("state") not in states:
                raise RuntimeError(f"expected {' or '.join(states)} with new lines, got {seen}")
            for name, of_seen in named.items():
                if seen[of_seen] is not None:  # labels may appear after the lines
                    self.seconds[name.replace("_", "-")].append(seen[of_seen])


def _presses(presses: Presses) -> None:
    for number in range(EPOCHS_AT_FIRST - FEWEST_EPOCHS):
        with presses.left_out.unless_it_works(f"press {number + 1} before the first"), looking():
            _move(presses.page, EPOCHS, "ArrowLeft")
    for count in COUNTS:
        with presses.left_out.unless_it_works(f"{count} rates"), looking():
            _up_and_down(presses, count)
        note(f"{count} rates: new positions, and positions seen before")
    with presses.left_out.unless_it_works("cancelled"), looking():
        _cancelled(presses)
    with presses.left_out.unless_it_works("finished"), looking():
        _finished(presses)


def _up_and_down(presses: Presses, count: int) -> None:
    """With another number of rates, move the epochs up, each position training something new, then down, all stored.

    They go down only where each number was trained: elsewhere, fewer epochs are part of a longer stored run.
    """
    _move(presses.page, COUNT, "ArrowRight")
    epochs = range(FEWEST_EPOCHS + 1, MOST_EPOCHS + 1)
    for number in epochs:
        names = {"first_points": "points", "first_labels": "labels"}
        presses.take(f"{count} rates, {number} epochs", EPOCHS, "ArrowRight", ("Training", "Done"), **names)
        _wait_over(presses.page)
    for number in reversed(epochs):
        presses.take(f"{count} rates, {number - 1} epochs", EPOCHS, "ArrowLeft", ("Saved result",), cached="points")
        _wait_over(presses.page)


def _cancelled(presses: Presses) -> None:
    """Move between 20 and 10 epochs of 16 rates, each time after a second of training."""
    page = presses.page
    for slider in (COUNT, EPOCHS):
        page.locator(".lab").first.locator("marimo-slider").nth(slider).locator("[role=slider]").focus()
        page.keyboard.press("End")
        time.sleep(PAUSE_S)
    for number in range(PRESSES):
        page.wait_for_function(
            "window.lab.look()?.state === 'Training' && window.lab.look().lines > 0",
            timeout=1000 * WAIT_LIMIT_S,
            polling=POLL_MS,
        )
        time.sleep(SETTLE_S)
        key, names = "PageUp" if number % 2 else "PageDown", {"cancelled": "points", "cancelled_gone": "gone"}
        presses.take(f"cancelled, {number + 1} of {PRESSES}", EPOCHS, key, ("Training",), **names)


def _finished(presses: Presses) -> None:
    page, sliders = presses.page, presses.page.locator(".lab").first.locator("marimo-slider")
    for slider, steps in ((COUNT, 2), (EPOCHS, 2)):
        thumb = sliders.nth(slider).locator("[role=slider]")
        thumb.focus()
        for key in ("Home", *["ArrowRight"] * steps):
            page.keyboard.press(key)
    _wait_over(page)
    for _ in range(SIZES):
        began = time.perf_counter()
        _move(page, SIZE, "ArrowRight", polling_ms=20)
        presses.seconds["finished"].append(time.perf_counter() - began - PAUSE_S)


@contextmanager
def _ready(opened: Browser, cache) -> Iterator[Page]:
    """A page where everything has run, so that only the slider's own run is measured."""
    with make_run(cache, free_port()) as address, visitor(opened) as person, page_of(person, address) as page:
        wait_until_all_over(page)
        yield page


def press(page: Page, slider: int, key: str) -> dict:
    """Press a key on a slider of the first experiment; return what the page then showed, and when."""
    thumb = page.locator(".lab").first.locator("marimo-slider").nth(slider).locator("[role=slider]")
    thumb.focus()
    page.evaluate("window.lab.arm()")
    page.keyboard.press(key)
    return page.evaluate("window.lab.seen")


def _move(page: Page, slider: int, key: str, polling_ms: int = POLL_MS) -> None:
    """Press a key untimed, and wait until the new run is over."""
    before = page.evaluate("window.lab.look()")
    page.locator(".lab").first.locator("marimo-slider").nth(slider).locator("[role=slider]").focus()
    page.keyboard.press(key)
    page.wait_for_function(
        "before => { const at = window.lab.look(); return at.axis + at.labels !== before.axis + before.labels && "
        "at.over && ['Done', 'Saved result'].includes(at.state) }",
        arg=before,
        timeout=1000 * WAIT_LIMIT_S,
        polling=polling_ms,
    )
    time.sleep(PAUSE_S)


def _wait_over(page: Page) -> None:
    page.wait_for_function(
        "['Done', 'Saved result'].includes(window.lab.look()?.state) && window.lab.look().over",
        timeout=1000 * WAIT_LIMIT_S,
        polling=POLL_MS,
    )
    time.sleep(PAUSE_S)
