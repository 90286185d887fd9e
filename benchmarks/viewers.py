"""A class on one server (`make class`): each viewer's wait, what is lost, and the cost of the server itself.

opened          all open the default page within 2 s, with nothing stored or compiled → every experiment's result
moved           then each moves one thumb of the first experiment's learning rates to one of 12 positions → its result.
                A single viewer goes through all 12 positions, to give the time without a class
closed          then each asks for 20 epochs, and all tabs close → no worker is busy any more; `server_cpu_s` covers
                the 10 s after that

`first_s` is when a moved control's cell showed anything new, `worst_s` the last viewer's wait, `lost` the viewers with
no result in time. `server_cpu_s` is the CPU time of the server's process without its workers (`workers_cpu_s`);
`peak_mb` is its peak resident memory, `mb` that at the end. `VIEWERS=1,5 make bench BENCH=viewers` sets other numbers.
"""

import math
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar, cast

import psutil

from benchmarks.browser import class_server, fresh_cache
from benchmarks.client import Lost, Viewer
from benchmarks.report import Row, Target, note, row, show
from lib.ui.notebooks import FIRST

VIEWERS = (1, 5, 20)
MOST_VIEWERS = 100
WITHIN_S = 2.0  # arrivals and moves are spread over this time
OPENED_LIMIT_S, MOVED_LIMIT_S, CLOSED_LIMIT_S = 240.0, 180.0, 150.0
CELL = "learning_rate"
LOW, HIGH = 3, 12  # initial positions of the learning rates' thumbs
POSITIONS = (*((low, HIGH) for low in range(HIGH) if low != LOW), (LOW, HIGH + 1))
MOST_EPOCHS = 19  # the slider's last position
TRAINING_S = 2.0  # before the tabs close
BUSY_SHARE, QUIET_S = 0.05, 3.0  # a worker below this share of a core for this long has stopped training
AFTER_S = 10.0
SAMPLE_S = 0.25
COLUMNS = (
    "name",
    "viewers",
    "n",
    "lost",
    "median_s",
    "p95_s",
    "worst_s",
    "first_s",
    "first_p95_s",
    "wall_s",
    "server_cpu_s",
    "workers_cpu_s",
    "peak_mb",
    "mb",
)

T = TypeVar("T")


def main() -> None:
    numbers = numbers_of_viewers(VIEWERS, MOST_VIEWERS)
    rows: list[Row] = []
    try:
        for viewers in numbers:
            with fresh_cache() as cache, class_server(cache, "--viewers", "10000") as (process, address):
                _one_class(viewers, process, address, rows)
    finally:
        if rows:  # keeps earlier results after a failure
            show("viewers", rows, COLUMNS, _targets(rows))


def numbers_of_viewers(usual: Sequence[int], most: int) -> Sequence[int]:
    """The class sizes from `VIEWERS`, or the usual ones if it is unset."""
    asked = os.environ.get("VIEWERS")
    if not asked:
        return usual
    numbers = [int(part) if part.strip().isdecimal() else 0 for part in asked.split(",")]
    if not all(1 <= number <= most for number in numbers):
        raise RuntimeError(f"VIEWERS: expected numbers from 1 to {most:,}, such as 1,5,20, got {asked}")
    return numbers


def _one_class(n: int, process: psutil.Process, address: str, rows: list[Row]) -> None:
    tabs: list[Viewer] = []

    def opened(_: int) -> Wait:
        began = time.monotonic()
        tab = Viewer(address + FIRST.path.lstrip("/"))
        tabs.append(tab)
        tab.wait(lambda tab: tab.all_finished, OPENED_LIMIT_S, "opened")
        return Wait(time.monotonic() - began)

    def moved(task: tuple[Viewer, tuple[int, int]]) -> Wait:
        tab, position = task
        move = tab.move(CELL, "Learning rates", list(position))
        first = move.first(MOVED_LIMIT_S)
        return Wait(move.finished(MOVED_LIMIT_S).at_s - move.at_s, first.at_s - move.at_s)

    try:
        with Usage(process) as usage:
            waits = _together(opened, range(n))
        rows.append(_row("opened", n, n, waits, usage))
        there = [tab for tab in tabs if CELL in tab.frames and not tab.problem]
        with Usage(process) as usage:
            if n == 1:
                waits = [
                    wait for position in POSITIONS for wait in _together(moved, [(tab, position) for tab in there])
                ]
            else:
                waits = _together(moved, [(tab, POSITIONS[k % len(POSITIONS)]) for k, tab in enumerate(there)])
        rows.append(_row("moved", n, len(POSITIONS) if n == 1 else n, waits, usage))
        rows.append(_closed(n, process, there))
    finally:
        for tab in tabs:
            tab.close()


@dataclass(frozen=True)
class Wait:
    result_s: float
    first_s: float | None = None


def _together(act: Callable[[T], Wait], tasks: Sequence[T]) -> list[Wait | Lost]:
    """Run each task in its own thread, starting evenly over `WITHIN_S`. A lost viewer gives a `Lost`."""

    def late(k: int) -> Wait | Lost:
        time.sleep(WITHIN_S * k / len(tasks))
        try:
            return act(tasks[k])
        except Lost as lost:
            note(f"lost: {lost}")
            return lost

    if not tasks:
        return []
    with ThreadPoolExecutor(len(tasks)) as pool:
        return list(pool.map(late, range(len(tasks))))


def _closed(n: int, process: psutil.Process, tabs: Sequence[Viewer]) -> Row:
    """Close all tabs during trainings; measure how long workers stay busy and what the server does afterwards."""
    for tab in tabs:
        with suppress(Lost):
            tab.move(CELL, "Epochs", MOST_EPOCHS)
    time.sleep(TRAINING_S)
    for tab in tabs:
        tab.close()
    with Usage(process) as usage:
        ended_s = _quiet_after_s(usage)
    with Usage(process) as after:
        time.sleep(AFTER_S)
    waits = [Wait(ended_s) if ended_s is not None else Lost(f"workers were busy for {CLOSED_LIMIT_S:.0f} s")]
    return _row("closed", n, 1, waits, after) | {"wall_s": usage.wall_s, "workers_cpu_s": usage.workers_cpu_s}


def _quiet_after_s(usage: "Usage") -> float | None:
    """Seconds until the workers stopped working; None if not within the limit."""
    began = busy_until = time.monotonic()
    while time.monotonic() - began < CLOSED_LIMIT_S:
        before_s = usage.workers_cpu_s
        time.sleep(1.0)
        if usage.workers_cpu_s - before_s > BUSY_SHARE:
            busy_until = time.monotonic()
        elif time.monotonic() - busy_until > QUIET_S:
            return busy_until - began
    return None


class Usage:
    """CPU time and memory of a server and its workers, sampled every `SAMPLE_S`."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._over = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._workers_s: dict[int, tuple[float, float]] = {}  # each worker's CPU seconds at the start and now
        self.peak_mb = self.mb = self.workers_peak_mb = 0.0

    def __enter__(self) -> "Usage":
        self._began, self._server_s = time.monotonic(), _cpu_s(self._process)
        self._workers_s = {pid: (used_s, used_s) for pid, used_s, _ in self._workers()}
        self._sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._sampler.join()
        self.wall_s = time.monotonic() - self._began
        self.server_cpu_s = _cpu_s(self._process) - self._server_s

    @property
    def workers_cpu_s(self) -> float:
        """Includes workers that have ended."""
        return sum(now - first for first, now in list(self._workers_s.values()))

    def _sample(self) -> None:
        while True:
            over = self._over.wait(SAMPLE_S)
            self.mb = self._process.memory_info().rss / 1e6
            self.peak_mb = max(self.peak_mb, self.mb)
            workers_mb = 0.0
            for pid, used_s, mb in self._workers():
                first_s, _ = self._workers_s.get(pid, (0.0, 0.0))
                self._workers_s[pid] = first_s, used_s
                workers_mb += mb
            self.workers_peak_mb = max(self.workers_peak_mb, workers_mb)
            if over:
                return

    def _workers(self) -> Iterator[tuple[int, float, float]]:
        """Each worker's pid, CPU seconds and memory in MB, including processes that read files for a page."""
        for worker in self._process.children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it has just ended
                yield worker.pid, _cpu_s(worker), worker.memory_info().rss / 1e6


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _row(name: str, viewers: int, asked: int, waits: Sequence[Wait | Lost], usage: Usage) -> Row:
    """A row for `asked` waits. Viewers without a page to move on count as lost."""
    done = [wait for wait in waits if isinstance(wait, Wait)]
    result_s = [wait.result_s for wait in done]
    first_s = [wait.first_s for wait in done if wait.first_s is not None]
    note(f"{name}, {viewers}: {len(done)} of {asked} in {usage.wall_s:.0f} s")
    return row(
        name,
        result_s,
        viewers=viewers,
        lost=asked - len(done),
        p95_s=p95(result_s),
        worst_s=max(result_s, default=None),
        first_s=statistics.median(first_s) if first_s else None,
        firsts_s=first_s,
        first_p95_s=p95(first_s),
        wall_s=usage.wall_s,
        server_cpu_s=usage.server_cpu_s,
        workers_cpu_s=usage.workers_cpu_s,
        peak_mb=usage.peak_mb,
        mb=usage.mb,
    )


def p95(seconds: Sequence[float]) -> float | None:
    return statistics.quantiles(seconds, n=20, method="inclusive")[-1] if len(seconds) > 1 else None


def _targets(rows: Sequence[Row]) -> list[Target]:
    """Targets for the largest class, relative to one viewer alone. A lost wait counts as infinite."""
    most = max(viewers for viewers, _ in map(_key, rows))
    if most == 1:
        return []

    def figure(name: str, column: str, viewers: int = most) -> float | None:
        found = next((r for r in rows if _key(r) == (viewers, name)), None)
        return None if found is None else cast(float | None, found[column])

    def ratio(above: float | None, below: float | None) -> float | None:
        return above / below if above is not None and below else None

    moved = next((r for r in rows if _key(r) == (most, "moved")), None)
    firsts_s = [] if moved is None else cast(list[float], moved["firsts_s"])
    lost = [figure(name, "lost") for name in ("opened", "moved")]
    page_s, results_s = figure("opened", "worst_s"), figure("moved", "wall_s")
    if any(lost):
        page_s, results_s = page_s and math.inf, results_s and math.inf
    return [
        Target(f"the page of the last of {most}, times one alone", ratio(page_s, figure("opened", "worst_s", 1)), 1.3),
        Target(f"all results of {most} moves, times the 12 alone", ratio(results_s, figure("moved", "wall_s", 1)), 1.3),
        Target.of("moved to a first answer, median", firsts_s, 0.5, "s"),
        Target.of("moved to a first answer, 95th percentile", firsts_s, 1.0, "s", share=0.95),
        *(
            Target(
                f"server's processor, {name}, of wall time",
                ratio(figure(name, "server_cpu_s"), figure(name, "wall_s")),
                0.25,
            )
            for name in ("opened", "moved")
        ),
        Target.counted("lost", None if None in lost else sum(filter(None, lost)), 0),
        Target(
            "tabs closed to no worker busy",
            math.inf if figure("closed", "lost") else figure("closed", "worst_s"),
            5,
            "s",
        ),
    ]


def _key(row: Row) -> tuple[int, str]:
    return cast(int, row["viewers"]), cast(str, row["name"])
