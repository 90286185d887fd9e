"""Where marimo and a `Filling` meet: begun and stopped by buttons or controls, painted into a cell while it fills."""

import sys
import time
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import marimo as mo

from lib.experiments.background import FAILED, Filling
from lib.pages import streaming
from lib.storage.store import Store
from lib.workers.cancel import Cancel
from lib.workers.engine import Engine
from lib.workers.notes import Note

FRAME_S = 0.25


class Stage:
    """One viewer's place for one filling: it ends when another is begun, by a button, or with the session."""

    def __init__(self, engine: Engine, store: Store, viewer: Hashable = None) -> None:
        self.engine, self.store = engine, store
        self.viewer = viewer or object()  # stages of one page share it: their runs then keep the page's order
        self.filling: Filling | None = None
        self.streams = streaming.streaming()
        self.asked: tuple = ()  # what the present filling was begun for, and what was known then
        self.began_with: tuple = ()
        self._cancel = Cancel()
        self._shown = [0]

    def stop(self) -> None:
        self._cancel.set()

    def begin(self, make: Callable[[Cancel], Iterator[Any | Note]]) -> Filling:
        """Start `make(cancel)` in a thread, in place of what ran."""
        self._cancel.set()
        self._cancel = cancel = Cancel()
        weakref.finalize(self, cancel.set)
        self.filling = Filling(lambda: make(cancel), cancel)
        return self.filling

    def next_showing(self) -> Callable[[], bool]:
        """Begin a showing; the answer says whether it is still the latest. It does not hold the stage."""
        self._shown[0] += 1
        shown, number = self._shown, self._shown[0]
        return lambda: shown[0] == number


def refuse(stage: Stage, controls: str, error: ValueError) -> None:
    """What ran is stopped, and what is wrong with the controls is shown in place of what they ask for."""
    stage.stop()
    stage.next_showing()
    streaming.refuse(controls, error)


def paint_while_it_fills(stage: Stage, filling: Filling, paint: Callable[[], int]) -> None:
    """Paint now, and again whenever there is news, until the end is painted or another showing took the place.

    `paint` draws what is there and returns the version that it drew. Where nobody watches, it is painted once, at the end.
    """
    latest = stage.next_showing()
    if not stage.streams:
        filling.thread.join()
        paint()
        if (now := filling.view()).state == FAILED:
            streaming.end_script(now.problem, 1)
        return
    painted = paint()
    if not filling.over_at(painted):  # it may have ended while it was painted
        mo.Thread(target=_keep_painting, args=(filling, paint, latest, painted), daemon=True).start()


def _keep_painting(filling: Filling, paint: Callable[[], int], latest: Callable[[], bool], painted: int) -> None:
    while not filling.over_at(painted):
        news = filling.wait_for_news(painted, 1.0)
        if not latest() or mo.current_thread().should_exit:
            return
        if news:
            painted = paint()
            time.sleep(FRAME_S)  # drawing takes a core that the measurement wants


def say(text: str) -> None:
    """To the terminal of who runs a notebook as a script."""
    if mo.app_meta().mode == "script":
        print(text, file=sys.stdout)
