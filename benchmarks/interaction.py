"""How long a person waits for the page, in a real browser: after a slider's key press, and from starting the program.

first-points    a position not seen before → two points of a new line can be seen; `first-labels` is when the labels at
                the new lines' ends can, which one point is enough for
cached          a position seen before → its complete chart and its sentence, from the store
cancelled       moved while 16 trainings of 10 or 20 epochs are running → two points of a new line can be seen, so the worker has
                given up the old run and begun the new one; `cancelled-gone` is when the old lines are gone
page-cold       from `make run` to the first experiment's complete chart: nothing compiled, nothing kept, a new browser profile
page-warm       the same person a second time; `page-warm-new-browser`: with a browser that has never seen the page
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page

from benchmarks.browser import (
    browser,
    first_complete,
    free_port,
    fresh_cache,
    make_run,
    page_of,
    server,
    visitor,
    wait_until_all_over,
)
from benchmarks.report import Row, Target, note, row, show

PRESSES = 20
STARTS = 3
LIMITS_S = {"first-points": 0.3, "cached": 0.2, "cancelled": 0.3, "page-cold": 8.0, "page-warm": 4.0}
WORDS = {
    "first-points": "slider to a new run's first points", "cached": "slider to a kept result",
    "cancelled": "slider during a run to the new run's first points", "page-cold": "first start to a complete chart",
    "page-warm": "second start to a complete chart",
}  # fmt: skip
COUNT, EPOCHS = 0, 1  # sliders of the first experiment: how many rates, epochs
COUNTS = (5, 6, 7, 8)
FEWEST_EPOCHS, MOST_EPOCHS = 1, 6
PAUSE_S = 0.5  # between a finished frame and the next press, as a person would
SETTLE_S = 1.0  # of training before it is cancelled
WAIT_LIMIT_S = 120


def main() -> None:
    seconds: dict[str, list[float]] = {}
    try:
        with browser() as opened:
            _starts(opened, seconds)
            _presses(opened, seconds)
    finally:
        if seconds:  # what was measured before something went wrong is kept
            _report(seconds)


def _report(seconds: dict[str, list[float]]) -> None:
    rows = [row(name, values, "jax-epoch", 32, worst_s=max(values)) for name, values in seconds.items() if values]
    medians: dict[object, Row] = {r["name"]: r for r in rows}
    targets = [
        Target(WORDS[name], medians[name]["median_s"] if name in medians else None, limit, "s")  # pyright: ignore[reportArgumentType]
        for name, limit in LIMITS_S.items()
    ]
    show("interaction", rows, ("name", "median_s", "q1_s", "q3_s", "n", "worst_s"), targets)


def _presses(opened: Browser, seconds: dict[str, list[float]]) -> None:
    with fresh_cache() as cache, _ready(opened, cache) as page:
        for seen in _snake(page, "Training", "Done"):
            seconds.setdefault("first-points", []).append(seen["points"])
            seconds.setdefault("first-labels", []).append(seen["labels"])
        note("new positions")
        for seen in _snake_back(page):
            seconds.setdefault("cached", []).append(seen["points"])
        note("positions seen before")
        for seen in _cancelled(page):
            seconds.setdefault("cancelled", []).append(seen["points"])
            seconds.setdefault("cancelled-gone", []).append(seen["gone"])


def _starts(opened: Browser, seconds: dict[str, list[float]]) -> None:
    for _ in range(STARTS):
        with fresh_cache() as cache:
            port = free_port()
            with visitor(opened) as person, visitor(opened) as stranger:
                for name, who in (("page-cold", person), ("page-warm", person), ("page-warm-new-browser", stranger)):
                    began = time.time()
                    with make_run(cache, port) as address, page_of(who, address) as page:
                        at, state = first_complete(page)
                        seconds.setdefault(name, []).append(at - began)
                        note(f"{name}: {at - began:.1f} s ({state})")


@contextmanager
def _ready(opened: Browser, cache) -> Iterator[Page]:
    """A page on which everything has run, so that nothing but the slider's own run is measured."""
    with server(cache) as (_, address), visitor(opened) as person, page_of(person, address) as page:
        wait_until_all_over(page)
        yield page


def _press(page: Page, slider: int, key: str) -> dict:
    """Press a key on a slider of the first experiment; what the page then showed, and when."""
    thumb = page.locator(".lab").first.locator("marimo-slider").nth(slider).locator("[role=slider]")
    thumb.focus()
    page.evaluate("window.lab.arm()")
    page.keyboard.press(key)
    return page.evaluate("window.lab.seen")


def _move(page: Page, slider: int, key: str) -> None:
    """Press a key without a clock, and wait until the new run is over."""
    before = page.evaluate("window.lab.look()")
    page.locator(".lab").first.locator("marimo-slider").nth(slider).locator("[role=slider]").focus()
    page.keyboard.press(key)
    page.wait_for_function(
        "before => { const at = window.lab.look(); return at.axis + at.labels !== before.axis + before.labels && "
        "at.over && ['Done', 'From store'].includes(at.state) }",
        arg=before, timeout=1000 * WAIT_LIMIT_S,
    )  # fmt: skip
    time.sleep(PAUSE_S)


def _wait_over(page: Page) -> None:
    page.wait_for_function(
        "['Done', 'From store'].includes(window.lab.look()?.state) && window.lab.look().over",
        timeout=1000 * WAIT_LIMIT_S,
    )
    time.sleep(PAUSE_S)


def _checked(seen: dict, *states: str) -> dict:
    if seen["points"] is None or seen.get("state") not in states:
        raise RuntimeError(f"after a key press: expected {' or '.join(states)} with new lines, got {seen}")
    return seen


def _snake(page: Page, *states: str) -> Iterator[dict]:
    """Twenty positions not seen before: up and down the epochs, another number of rates at each turn."""
    for _ in range(2):  # from 3 epochs to 1
        _move(page, EPOCHS, "ArrowLeft")
    key = "ArrowRight"
    for _ in COUNTS:
        _move(page, COUNT, "ArrowRight")
        for _ in range(MOST_EPOCHS - FEWEST_EPOCHS):
            yield _checked(_press(page, EPOCHS, key), *states)
            _wait_over(page)
        key = "ArrowLeft" if key == "ArrowRight" else "ArrowRight"


def _snake_back(page: Page) -> Iterator[dict]:
    """The same way back: all these are kept."""
    key = "ArrowRight"  # an even number of turns: the way ended at one epoch
    for turn in range(len(COUNTS)):
        for _ in range(MOST_EPOCHS - FEWEST_EPOCHS):
            yield _checked(_press(page, EPOCHS, key), "From store")
            time.sleep(PAUSE_S)
        key = "ArrowLeft" if key == "ArrowRight" else "ArrowRight"
        if turn + 1 < len(COUNTS):
            _move(page, COUNT, "ArrowLeft")


def _cancelled(page: Page) -> Iterator[dict]:
    """Between 20 and 10 epochs of 16 rates, each left after a second of training."""
    for slider in (COUNT, EPOCHS):
        page.locator(".lab").first.locator("marimo-slider").nth(slider).locator("[role=slider]").focus()
        page.keyboard.press("End")
        time.sleep(PAUSE_S)
    for number in range(PRESSES):
        page.wait_for_function(
            "window.lab.look()?.state === 'Training' && window.lab.look().lines > 0", timeout=1000 * WAIT_LIMIT_S
        )
        time.sleep(SETTLE_S)
        yield _checked(_press(page, EPOCHS, "PageUp" if number % 2 else "PageDown"), "Training")
