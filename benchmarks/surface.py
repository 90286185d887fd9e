"""The surface of “When a GPU wins” in a real browser: from a key press on a slider to the new image.

card            a slider of the imagined card
networks        the number of networks trained at once
new-depth       a number of hidden layers that this server has not been asked for before

Each is measured with a left side known by its data sheet, as with an empty cache, and with a calibrated one, whose
steps are measured once before the browser starts.
"""

import shutil
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from playwright.sync_api import Browser, Page

from benchmarks.browser import POLL_MS, browser, class_server, fresh_cache, looking, page_of, visitor
from benchmarks.report import SECONDS, LeftOut, Row, Target, note, row, show
from lib.model.backends.registry import Runtime
from lib.sweeps.experiments.calibration import TrainingWay, measure_trials, trials
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.queue import Cancel, Request
from lib.ui.notebooks import notebook_of

SERVERS = 3
STORE = "results.sqlite"  # in a cache folder
PRESSES = 20
REDRAWN_S = 0.3
LIMIT_S = 60
FIRST, CARD = 0, 2  # sections with a surface
DEPTH, NETWORKS, LAUNCH = 0, 1, 0  # sliders of these sections
PAUSE_MS = 500  # between an image and the next press, like a person
WORDS = {"card": "slider of the imagined card to its surface", "networks": "networks at once to the surface"}
CALIBRATED = ", calibrated"  # suffix of row names
# Trains several networks in one program: if both sides trained sequentially, their number would change nothing.
BY = TrainingWay(Runtime(), True)

# The first image of a section's charts; `press` arms the watch, and the key press starts the clock.
WATCH = """
window.surface = {
  picture: section => [...document.querySelectorAll('.lab')[section].querySelectorAll('marimo-mime-renderer')]
    .map(e => e.shadowRoot?.querySelector('image')?.getAttribute('href')).find(Boolean),
  press: section => {
    const before = window.surface.picture(section);
    window.surface.took_s = null;
    addEventListener('keydown', () => {
      const began = performance.now(), look = () => {
        const now = window.surface.picture(section);
        if (now && now !== before) window.surface.took_s = (performance.now() - began) / 1000;
        else requestAnimationFrame(look);
      };
      look();
    }, {once: true, capture: true});
  },
};
"""


def main() -> None:
    seconds: dict[str, list[float]] = defaultdict(list)
    left_out = LeftOut()
    try:
        with browser() as opened, fresh_cache() as known:
            with left_out.unless_it_works("calibrated"):
                calibrate(Store(known / STORE), [BY])
            for number in range(SERVERS):
                for kind in ("", CALIBRATED):
                    with left_out.unless_it_works(f"server {number + 1} of {SERVERS}{kind}"), looking():
                        _on_a_new_server(opened, seconds, kind, known)
    finally:
        _report(seconds, left_out)  # keeps the results of an interrupted run


def calibrate(store: Store, ways: Sequence[TrainingWay]) -> None:
    """Measure each way's steps once, into a store.

    Raises:
        TrainingFailed: From the worker that measures.
    """
    engine, todo = Engine(), [(one, trials(one)) for one in ways]
    note(f"{', '.join(one.label for one in ways)}: measured for a calibration")
    try:
        for _ in measure_trials(todo, engine, store, Cancel(), Request(), rounds=1):
            pass
    finally:
        engine.close()


def _on_a_new_server(opened: Browser, seconds: dict[str, list[float]], kind: str, known: Path) -> None:
    with fresh_cache() as cache:
        if kind:
            shutil.copy(known / STORE, cache / STORE)
        with class_server(cache) as (_, address), visitor(opened) as person:
            person.add_init_script(WATCH)
            left = f"?win.left=here/{BY.address}" if kind else ""
            with page_of(person, address + notebook_of("when_a_gpu_wins").path.lstrip("/") + left) as page:
                page.get_by_role("button", name="Stop", exact=True).first.click(timeout=1000 * LIMIT_S)  # calibrating
                page.wait_for_function(
                    "[...document.querySelectorAll('.lab-state b')].some(e => e.textContent === 'Stopped')",
                    timeout=1000 * LIMIT_S,
                )
                stands_in = "stands in until it is" in page.locator(".lab").nth(FIRST).inner_text()
                if stands_in == bool(kind):
                    raise RuntimeError(f"expected a left side that is {'calibrated' if kind else 'not'}, got the other")
                there_and_back = ["ArrowRight", "ArrowLeft"] * (PRESSES // 2)
                seconds["card" + kind] += _presses(page, CARD, LAUNCH, there_and_back)
                seconds["networks" + kind] += _presses(page, FIRST, NETWORKS, there_and_back)
                seconds["new-depth" + kind] += _presses(page, FIRST, DEPTH, ["ArrowRight"] * 3)


def _presses(page: Page, section: int, slider: int, keys: Sequence[str]) -> list[float]:
    thumb = page.locator(".lab").nth(section).locator("marimo-slider").nth(slider).locator("[role=slider]")
    took_s = []
    for key in keys:
        page.wait_for_timeout(PAUSE_MS)
        page.wait_for_function(f"window.surface.picture({section})", timeout=1000 * LIMIT_S, polling=POLL_MS)
        thumb.focus()
        page.evaluate(f"window.surface.press({section})")
        page.keyboard.press(key)
        page.wait_for_function("window.surface.took_s !== null", timeout=1000 * LIMIT_S, polling=POLL_MS)
        took_s.append(page.evaluate("window.surface.took_s"))
    return took_s


def _report(seconds: dict[str, list[float]], left_out: LeftOut) -> None:
    rows: list[Row] = [row(name, values, worst_s=max(values)) for name, values in seconds.items() if values]
    targets = [
        Target.of(words + kind, seconds.get(name + kind, []), REDRAWN_S, "s")
        for kind in ("", CALIBRATED)
        for name, words in WORDS.items()
    ]
    show("surface", rows, ("name", *SECONDS, "worst_s"), targets, left_out)
