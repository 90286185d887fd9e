"""The cost of drawing: an epoch timed while a browser shows its lines, against the same epoch without a viewer.

In random order, the page repeats its first experiment (“Run again”), and this process's own worker runs the same
trainings while the page is idle. `ratio` is the median of the rounds' ratios, with its interval.
"""

import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from playwright.sync_api import Page

from benchmarks.browser import POLL_MS, browser, fresh_cache, looking, page_of, server, visitor, wait_until_all_over
from benchmarks.report import RATIO, LeftOut, Row, Target, note, row, show
from lib.model.backends.registry import BACKENDS, Runtime, unavailable, versions
from lib.model.data.mnist import load_test
from lib.model.spec import Network, Training
from lib.sweeps.experiments.lines import epoch_s, rates_between
from lib.sweeps.storage.records import Key
from lib.sweeps.storage.store import Store
from lib.sweeps.sweep import Finished, Options, updates
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Item
from lib.sweeps.workers.queue import Cancel
from lib.timing.comparison import compared

BACKEND_KEYS = ("jax-epoch", "numba")
RATES, BATCH_SIZE, EPOCHS = (0.1, 1.0, 2), 32, 20
ROUNDS = 9  # the smallest number whose interval excludes the extremes
LIMIT = 1.03
WAIT_LIMIT_S = 120
OVER = "['Done', 'Saved result'].includes(document.querySelector('.lab .lab-state b')?.textContent)"
UNDER_WAY = OVER.replace("['Done', 'Saved result']", "['Training']")
COLUMNS = ("backend", "drawn_s", "alone_s", "n", *RATIO)


def main() -> None:
    rows, left_out = list[Row](), LeftOut()
    with browser() as opened:
        for backend in BACKEND_KEYS:
            label = BACKENDS[backend].label
            if (gap := unavailable(Runtime(backend))) is not None:
                left_out.append(f"{label}: {gap.reason}; {gap.remedy}")
                continue
            trainings = [Training(Network(), rate, BATCH_SIZE, EPOCHS) for rate in rates_between(*RATES)]
            items = [Item(training, Runtime(backend)) for training in trainings]
            query = f"?rate.range={RATES[0]:g},{RATES[1]:g}&rate.count={RATES[2]}&rate.epochs={EPOCHS}"
            with left_out.unless_it_works(label), looking(), fresh_cache() as cache, server(cache) as (_, address):
                with visitor(opened) as person:
                    with page_of(person, f"{address}{query}&rate.backend={backend}") as page:
                        wait_until_all_over(page)
                        rows.append(measure(items, lambda page=page: _run_again(page), cache / "results.sqlite"))
                        note(f"{label}: {rows[-1]['ratio']:.3f} times as long while it is drawn")
    show("drawn", rows, COLUMNS, targets(rows), left_out)


def measure(items: Sequence[Item], run_drawn: Callable[[], None], stored: Path) -> Row:
    """A row for trainings that `run_drawn` repeats on a page, which stores them in `stored`."""
    drawn_s, alone_s, rng = list[float](), list[float](), random.Random(0)
    engine = Engine()
    try:
        _alone_s(engine, items)  # the worker starts and compiles
        for _ in range(ROUNDS):
            for is_drawn in rng.sample((True, False), 2):
                if is_drawn:
                    run_drawn()
                    drawn_s.append(_drawn_s(items, stored))
                else:
                    alone_s.append(_alone_s(engine, items))
    finally:
        engine.close()
    found = compared(drawn_s, alone_s, paired=True)
    medians = {"drawn_s": statistics.median(drawn_s), "alone_s": statistics.median(alone_s)}
    interval = dict(zip(RATIO, (found.ratio, found.low, found.high), strict=True))
    return row("drawn", drawn_s, items[0].runtime.backend, BATCH_SIZE, **medians, **interval)


def targets(rows: list[Row]) -> list[Target]:
    return [
        Target.in_row(f"{r['backend']}, an epoch while it is drawn over one that is not", r, RATIO, LIMIT, "×")
        for r in rows
    ]


def _run_again(page: Page) -> None:
    page.locator(".lab").first.get_by_role("button", name="Run again").click()
    for state in (UNDER_WAY, OVER):
        page.wait_for_function(state, timeout=1000 * WAIT_LIMIT_S, polling=POLL_MS)


def _drawn_s(items: Sequence[Item], stored: Path) -> float:
    """Seconds of the median epoch in the page's last run."""
    *_, facts = load_test()
    keys = [Key(item.training, item.runtime, facts.digest, versions(item.runtime)) for item in items]
    return statistics.median(s for curve in Store(stored).get_all(keys).values() for s in epoch_s(curve.epochs))


def _alone_s(engine: Engine, items: Sequence[Item]) -> float:
    """Seconds of the median epoch of the same trainings without a viewer."""
    found: list[float] = []
    for update in updates(items, engine, None, Cancel(), Options(fresh=True)):
        if isinstance(update, Finished):
            found += list(epoch_s(update.curve.epochs))
    return statistics.median(found)
