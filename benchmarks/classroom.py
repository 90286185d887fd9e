"""A class of a hundred viewers on one server (`make class`), each moving a slider every five seconds.

precomputed     moved to a position whose trainings are stored → its complete result
live            moved to another position → its complete result; a viewer who moves on earlier must have seen its
                progress or its place in the queue (`told`)
browser         the same in one real browser, stored positions only: from the key press to the lines
turned away     viewers refused because the server is full, who reload that page every few seconds until the end
server          its peak memory, its growth in the second half, its workers' peak memory, and the runs still computing
                after all tabs are closed

`lost` counts moves with no answer, or answered by lines that the viewer never asked for: viewers must see only what
they asked for. A late result of the previous move does not count as an answer.
`VIEWERS=20 SECONDS=60 make bench BENCH=classroom` runs a smaller class; `VIEWERS=100,300` runs two in succession.
"""

import os
import random
import re
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import cast

import psutil

from benchmarks.browser import POLL_MS, browser, class_server, fresh_cache, looking, page_of, visitor
from benchmarks.client import FINISHED, Frame, Full, Lost, Viewer
from benchmarks.interaction import EPOCHS, press
from benchmarks.report import LeftOut, Row, Target, note, row, seconds_of, show
from benchmarks.viewers import AFTER_S, BUSY_SHARE, CELL, Usage, numbers_of_viewers, p95
from lib.cli.precompute import Position, train
from lib.formatting import format_rate
from lib.model.spec import RATE_STEPS, Network, Training
from lib.site.access import MAX_VIEWERS, REFRESH_S
from lib.sweeps.experiments.lines import rates_between
from lib.sweeps.storage.store import Store
from lib.sweeps.sweep import Finished
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Item
from lib.sweeps.workers.queue import Cancel, Request
from lib.ui.notebooks import FIRST

VIEWERS, MOST_VIEWERS, SECONDS = (100,), 1_000, 300
EVERY_S = 5.0
STORED_SHARE = 0.8
SEED = 17
COUNT, MOST_EPOCHS = 4, 10  # rates per position, and the most epochs requested
STORED = 24  # positions of the learning rates trained in advance
ARRIVE_EVERY_S, OPENED_LIMIT_S, TOLD_LIMIT_S = 0.6, 300.0, 1.0
USUAL_EPOCHS = 3
UNDER_WAY = ("waiting", "starting", "measuring", "training")
COLUMNS = (
    "name",
    "viewers",
    "n",
    "told",
    "lost",
    "median_s",
    "q1_s",
    "q3_s",
    "p95_s",
    "worst_s",
    "peak_mb",
    "growth_mb",
    "workers_peak_mb",
    "runs_left",
)
_CELL = re.compile("<t[hd][^>]*>([^<]*)</t[hd]>")
Ends = tuple[int, int]  # positions of the learning rates' two thumbs
USUAL_ENDS: Ends = (RATE_STEPS.index(0.001), RATE_STEPS.index(1.0))
ALL_ENDS = tuple(combinations(range(len(RATE_STEPS)), 2))


def main() -> None:
    classes = numbers_of_viewers(VIEWERS, MOST_VIEWERS)
    seconds = _asked("SECONDS", SECONDS, 3_600)
    rows, targets, left_out = list[Row](), list[Target](), LeftOut()
    try:
        for viewers in classes:
            found = _one_class(viewers, seconds, left_out)
            rows += found
            targets += _targets(viewers, found)
    finally:
        if rows:  # keeps earlier results after a failure
            show("classroom", rows, COLUMNS, targets, left_out)


def _one_class(viewers: int, seconds: int, left_out: LeftOut) -> list[Row]:
    with fresh_cache() as cache:
        stored = random.Random(SEED).sample(ALL_ENDS, STORED)
        _store(stored, cache)
        with class_server(cache) as (process, address):
            lesson = Lesson(address + FIRST.path.lstrip("/"), stored, viewers, seconds)
            with ThreadPoolExecutor(viewers + 1) as pool, Usage(process) as usage:
                attending = [pool.submit(lesson.attend, number) for number in range(viewers)]
                looks = pool.submit(lesson.look, left_out)
                half_mb = _halfway_mb(lesson, usage)
                looks.result()
                for lesson_of_one in attending:
                    lesson_of_one.result()
                end_mb = usage.mb  # before tabs close, because freed memory would hide the growth
                lesson.close()
            left = runs_left(process)
    return [
        *(_row(name, viewers, lesson.came[name]) for name in ("precomputed", "live", "browser")),
        row("turned away", [], viewers=viewers, told=lesson.turned_away),
        row(
            "server",
            [],
            viewers=viewers,
            peak_mb=usage.peak_mb,
            growth_mb=end_mb - half_mb,
            workers_peak_mb=usage.workers_peak_mb,
            runs_left=left,
        ),
    ]


def _asked(name: str, usual: int, most: int) -> int:
    said = os.environ.get(name) or str(usual)
    if not said.isdecimal() or not 1 <= int(said) <= most:
        raise RuntimeError(f"{name}: expected a whole number from 1 to {most:,}, got {said}; choose one in between")
    return int(said)


def _rates(ends: Ends) -> tuple[float, ...]:
    low, high = ends
    return rates_between(RATE_STEPS[low], RATE_STEPS[high], COUNT)


def _store(every: Sequence[Ends], cache: Path) -> None:
    """Train these positions as `make precompute` does, before the class starts."""
    rates = {rate for ends in every for rate in _rates(ends)}
    items = tuple(Item(Training(Network((128,)), rate, 32, MOST_EPOCHS)) for rate in sorted(rates))
    began, engine = time.monotonic(), Engine()
    try:
        done = train(Position("rate", 0, items), engine, Store(cache / "results.sqlite"), Cancel(), Request())
        found = sum(isinstance(one, Finished) for one in done)
    finally:
        engine.close()
    if found < len(items):
        raise RuntimeError(f"expected {len(items)} trainings to be stored, got {found}; look at the terminal")
    note(f"{len(items)} trainings of {MOST_EPOCHS} epochs stored in {time.monotonic() - began:.0f} s")


@dataclass
class Came:
    """Outcomes of moves: seconds to each result, moves told to wait, and lost moves."""

    seconds: list[float] = field(default_factory=list)
    told: int = 0
    lost: int = 0


@dataclass
class Lesson:
    """A class that moves sliders for a while, and the outcomes by row name."""

    address: str
    stored: Sequence[Ends]
    viewers: int
    seconds: float
    came: dict[str, Came] = field(default_factory=lambda: {name: Came() for name in ("precomputed", "live", "browser")})
    begun: threading.Event = field(default_factory=threading.Event)
    ends_at: float = 0.0
    turned_away: int = 0
    _here: int = 0
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _tabs: list[Viewer] = field(default_factory=list)

    def attend(self, number: int) -> None:
        """Run one viewer: open the page, wait for the others, then move a slider every `EVERY_S`."""
        time.sleep(ARRIVE_EVERY_S * number)
        try:
            tab = self._opened()
        except Full:
            return self._wait_outside()
        except BaseException:
            self._arrive()  # or the others would wait forever
            raise
        self._arrive()
        if tab is not None:
            time.sleep(EVERY_S * number / self.viewers)
            self._take_part(tab, random.Random(SEED + number))

    def _opened(self) -> Viewer | None:
        try:
            tab = Viewer(self.address)
            self._tabs.append(tab)
            tab.wait(lambda tab: CELL in tab.frames and tab.frames[CELL].state in FINISHED, OPENED_LIMIT_S, "opened")
        except Lost as lost:
            note(f"lost: {lost}")
            with self._guard:
                self.came["precomputed"].lost += 1
            return None
        return tab

    def _wait_outside(self) -> None:
        """Reload until the end, as the server's “full” page does."""
        with self._guard:
            self.turned_away += 1
        self._arrive()
        while time.monotonic() < self.ends_at:
            with suppress(Full):
                Viewer(self.address).close()
            time.sleep(REFRESH_S)

    def _arrive(self) -> None:
        """Wait for the other viewers; the last to arrive starts the lesson."""
        with self._guard:
            self._here += 1
            if self._here == self.viewers:
                note(f"{self.viewers - self.turned_away} viewers are there, {self.turned_away} were turned away")
                self.ends_at = time.monotonic() + self.seconds
                self.begun.set()
        self.begun.wait()

    def _take_part(self, tab: Viewer, rng: random.Random) -> None:
        ends, epochs, asked = USUAL_ENDS, USUAL_EPOCHS, _Asked(tab)
        while (tick := time.monotonic()) < self.ends_at:
            name = "precomputed" if rng.random() < STORED_SHARE else "live"
            if name == "precomputed" and ends in self.stored and rng.random() < 0.5:
                epochs = rng.choice([other for other in range(1, MOST_EPOCHS + 1) if other != epochs])
                moved, value = "Epochs", epochs - 1
            else:
                among = self.stored if name == "precomputed" else ALL_ENDS
                ends = rng.choice([other for other in among if other != ends])
                moved, value = "Learning rates", list(ends)
            # Wait for stored results; otherwise move on at the next tick.
            limit_s = OPENED_LIMIT_S if name == "precomputed" else EVERY_S
            with self._counted(name) as seconds:
                seconds.append(asked.answer(moved, value, _rates(ends), limit_s))
            time.sleep(max(0.0, tick + EVERY_S - time.monotonic()))

    @contextmanager
    def _counted(self, name: str) -> Iterator[list[float | None]]:
        """Count the outcome put into the list: seconds to the result, or None if told to wait; lost if empty."""
        came, waited = self.came[name], list[float | None]()
        try:
            yield waited
        except Lost as lost:
            note(f"lost, {name}: {lost}")
        with self._guard:
            came.seconds += [took_s for took_s in waited if took_s is not None]
            came.told += waited.count(None)
            came.lost += not waited

    def look(self, left_out: LeftOut) -> None:
        """Run one real browser in the class, which moves the default position's epochs back and forth."""
        with left_out.unless_it_works("browser"), looking(), browser() as opened, visitor(opened) as person:
            with page_of(person, self.address) as page:
                page.wait_for_function("window.lab.complete !== null", timeout=1000 * OPENED_LIMIT_S, polling=POLL_MS)
                self.begun.wait()
                keys = ["ArrowLeft", "ArrowRight"]  # one step below the default epochs, and back
                while (tick := time.monotonic()) < self.ends_at:
                    with self._counted("browser") as seconds:
                        seen = press(page, EPOCHS, keys[0])
                        keys.reverse()
                        if seen["points"] is None or seen.get("state") != "Saved result":
                            raise Lost(f"expected a saved result, got {seen}")
                        seconds.append(seen["points"])
                    time.sleep(max(0.0, tick + EVERY_S - time.monotonic()))

    def close(self) -> None:
        for tab in self._tabs:
            tab.close()


class _Asked:
    """A viewer's requests, and how they were answered."""

    def __init__(self, tab: Viewer) -> None:
        self._tab = tab
        # Valid contents of a frame: the answer to a recent move may arrive late.
        self._lately = deque([_shown(tab.frames[CELL])], maxlen=3)

    def answer(self, moved: str, value: object, rates: Sequence[float], limit_s: float) -> float | None:
        """Move a control. Return seconds to its complete result, or None if only its progress was shown."""
        asked = tuple(format_rate(rate) for rate in rates)
        self._lately.append(asked)
        move = self._tab.move(CELL, moved, value)
        try:
            frame = move.finished(limit_s, partial(self._is_of, asked))
        except Lost:
            if self._tab.problem:
                raise
            self._tab.wait(lambda tab: self._is_told(asked, tab.frames[CELL]), TOLD_LIMIT_S, "told what happens")
            return None
        return frame.at_s - move.at_s

    def _is_told(self, asked: tuple[str, ...], frame: Frame) -> bool:
        """Whether a frame answers the request: a result, its place in the queue, or its progress."""
        says = frame.state in FINISHED or (frame.state in UNDER_WAY and bool(frame.words))
        return self._is_of(asked, frame) and says

    def _is_of(self, asked: tuple[str, ...], frame: Frame) -> bool:
        if (shown := _shown(frame)) not in self._lately:
            raise Lost(
                f"expected the rates {', '.join(asked)}, got {', '.join(shown)}, which were not asked for lately"
            )
        return shown == asked


def _shown(frame: Frame) -> tuple[str, ...]:
    """The rates in the result's table."""
    cells = _CELL.findall(frame.html.rpartition("lab-table")[2])  # the last table; earlier ones belong to charts
    columns = cells.index("state") + 1
    return tuple(cells[columns::columns])


def _halfway_mb(lesson: Lesson, usage: Usage) -> float:
    """The server's memory halfway through the lesson, in MB."""
    lesson.begun.wait()
    time.sleep(lesson.seconds / 2)
    return usage.mb


def runs_left(process: psutil.Process) -> int:
    """Count the workers that still compute `AFTER_S` after all tabs were closed."""
    time.sleep(AFTER_S)
    workers = process.children(recursive=True)
    before_s = [sum(worker.cpu_times()[:2]) for worker in workers]
    time.sleep(1.0)
    return sum(
        sum(worker.cpu_times()[:2]) - was_s > BUSY_SHARE for worker, was_s in zip(workers, before_s, strict=True)
    )


def _row(name: str, viewers: int, came: Came) -> Row:
    return row(
        name,
        came.seconds,
        viewers=viewers,
        lost=came.lost,
        told=came.told,
        p95_s=p95(came.seconds),
        worst_s=max(came.seconds, default=None),
    )


def _targets(viewers: int, rows: Sequence[Row]) -> list[Target]:
    stored, live, seen, _, server = rows
    everything = [cast(int, one["lost"]) for one in (stored, live, seen)]
    of = f"{viewers} viewers:"
    # In a class above the limit, the refused viewers use the same two cores as the measured ones.
    soon = [
        Target.of(f"{of} moved to what is stored", seconds_of(stored), 0.3, "s"),
        Target.of(f"{of} moved to what is stored, 95th percentile", seconds_of(stored), 1.0, "s", share=0.95),
    ]
    return [
        *(soon if viewers <= MAX_VIEWERS else []),
        Target.counted(f"{of} lost", sum(everything), 0),
        Target(f"{of} the server's memory at most", cast(float, server["peak_mb"]), 1536, "MB"),
        Target(f"{of} what it grows by in the second half", cast(float, server["growth_mb"]), 50, "MB"),
        Target.counted(f"{of} runs that go on after all have gone", cast(int, server["runs_left"]), 0),
    ]
