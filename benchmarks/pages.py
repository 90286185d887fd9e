"""Seconds from opening a page, with an empty store, to its figures.

first-figure    a chart or a table shows figures; the only row for most pages
own-figure      the first section has its first measurement of this machine
first-section   the page's first section has ended
page            all of its sections have ended
again           the same, when the page is opened with everything stored
"""

from collections import defaultdict
from urllib.parse import urljoin

from playwright.sync_api import Page

from benchmarks.browser import browser, free_port, fresh_cache, looking, make_run, page_of, visitor
from benchmarks.report import SECONDS, LeftOut, Row, Target, note, row, show
from lib.sweeps.workers.messages import State
from lib.ui.notebooks import FIRST, notebook_of

PAGES = ("operations_and_feeds", "inside_a_step")  # pages that measure all their sections on opening
WITH_A_FIGURE = (FIRST.name, "which_library", "when_a_gpu_wins", "many_networks")
OPENINGS = 3
FIRST_FIGURE_S, OWN_FIGURE_S, FIRST_SECTION_S = 4.0, 10.0, 60.0
LIMIT_S = 240
REST_S = 3.0  # once all sections have been over this long, no more are expected
OVER = [str(state) for state in State if state.over]

# Seconds since the page began to load at which each first held; for `all`, since when it has held.
WATCH = """
window.came = {figure: null, own: null, section: null, all: null};
setInterval(() => {
  const now = performance.now() / 1000, came = window.came;
  const states = [...document.querySelectorAll('.lab-state b')].map(e => e.textContent);
  const charts = [...document.querySelectorAll('marimo-mime-renderer, marimo-anywidget')];
  const drawn = document.querySelector('.ways-mark') || charts.some(e => e.shadowRoot?.querySelector(
    '.mark-line.role-mark path, .mark-rect.role-mark path, .mark-symbol.role-mark path, .race-others'));
  if (drawn) came.figure ??= now;
  if (document.querySelector('.lab-state progress')?.value > 0) came.own ??= now;
  if (OVER.includes(states[0])) came.section ??= now;
  if (states.length && states.every(one => OVER.includes(one))) came.all ??= now; else came.all = null;
  window.rested = came.all !== null && now - came.all > REST_S;
}, 50);
"""


def main() -> None:
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    left_out = LeftOut()
    try:
        with browser() as opened:
            for number in range(OPENINGS):
                for name in (*WITH_A_FIGURE, *PAGES):
                    with left_out.unless_it_works(f"{name}, opening {number + 1} of {OPENINGS}"), looking():
                        _open(opened, name, seconds)
    finally:
        _report(seconds, left_out)  # keeps the results of an interrupted run


def _open(opened, name: str, seconds: dict[tuple[str, str], list[float]]) -> None:
    with fresh_cache() as cache, make_run(cache, free_port()) as address, visitor(opened) as person:
        person.add_init_script(WATCH.replace("OVER", str(OVER)).replace("REST_S", str(REST_S)))
        where = urljoin(address, notebook_of(name).path)
        with page_of(person, where) as page:
            came = _came(page, name in PAGES)
        names = {"figure": "first-figure", "own": "own-figure", "section": "first-section", "all": "page"}
        for at, what in names.items():
            if came[at] is not None:
                seconds[name, what].append(came[at])
        if name in PAGES:
            with page_of(person, where) as page:
                seconds[name, "again"].append(_came(page)["all"])
    note(f"{name}: {', '.join(f'{what} {at:.1f} s' for what, at in came.items() if at is not None)}")


def _came(page: Page, wholly: bool = True) -> dict:
    page.wait_for_function("window.rested" if wholly else "window.came.figure", timeout=1000 * LIMIT_S, polling=200)
    return page.evaluate("window.came")


def _report(seconds: dict[tuple[str, str], list[float]], left_out: LeftOut) -> None:
    rows: list[Row] = [row(what, values, page=name, worst_s=max(values)) for (name, what), values in seconds.items()]
    limits = {
        "first-figure": (FIRST_FIGURE_S, (*WITH_A_FIGURE, *PAGES)),
        "own-figure": (OWN_FIGURE_S, PAGES),
        "first-section": (FIRST_SECTION_S, PAGES),
    }
    targets = [
        Target.of(f"{name}, {what}", seconds.get((name, what), []), limit_s, "s")
        for what, (limit_s, names) in limits.items()
        for name in names
    ]
    show("pages", rows, ("page", "name", *SECONDS, "worst_s"), targets, left_out)
