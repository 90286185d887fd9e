"""Where marimo and the runs meet: a run streams into its cell, ends when a control moves, and can be stopped.

Where nobody watches (a script, an export, a test) the run happens in the foreground.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import marimo as mo

from lib import formatting
from lib.sweeps.experiments.background import BackgroundTask, View, Watchable
from lib.sweeps.workers.notes import State
from lib.ui import layout, pacing
from lib.ui.stage import Showing, Stage
from lib.ui.views.chart import Chart

# The first frames follow quickly, later ones ever more slowly: drawing takes a core for as long as a frame is due, and
# the training that is being timed wants that core.
FIRST_FRAME_S, LATER_FRAME_S, SLOWER = 0.15, 0.6, 1.3
TIMED_FRAME_S = 2.0  # where seconds are what is asked for, it is drawn seldom: a race from the start, other tasks soon


def refuse(stage: Stage, controls: str, error: ValueError) -> None:
    """Stop what runs, and show what is wrong with the controls in its place; a script ends with exit status 2.

    Args:
        stage: What is stopped.
        controls: HTML of the controls.
        error: Its text is a sentence for the person.
    """
    stage.stop()
    stage.next_showing()
    mo.output.replace(layout.refused(controls, error))
    end_script(formatting.sentence(error), 2)


def end_script(sentence: str, status: int) -> None:
    """Where a notebook runs as a script, print why it cannot go on, and exit with this status; else do nothing."""
    if mo.app_meta().mode == "script":
        print(sentence, file=sys.stderr)
        raise SystemExit(status)


def say(text: str) -> None:
    """Print to standard output, where a notebook runs as a script."""
    if mo.app_meta().mode == "script":
        print(text)


def painted(view: View, content: str, sentence: str) -> int:
    """Put HTML into the cell, and return the version that it shows; a script prints the sentence at the end."""
    mo.output.replace(mo.Html(content))
    if view.over:
        say(sentence)
    return view.version


def paint_figures(
    now: View, figures: Mapping[str, Chart | str], line: str, sentence: str, below: str, controls: str
) -> int:
    """Put figures by their captions, state line, sentence and what is below into the cell, as `painted` does."""
    result = f"{layout.figures(figures)}{line}{layout.sentence(sentence)}{below}"
    return painted(now, layout.page(controls, result).text, sentence)


def paint_while_it_runs(
    stage: Stage, task: BackgroundTask, paint: Callable[[], int], news: Watchable | None = None
) -> None:
    """Paint now and at every change, until the end is painted or another showing has begun.

    Where nobody watches, it is painted once, at the end; a script whose task failed ends with exit status 1.

    Args:
        stage: Where it is shown.
        task: What is watched.
        paint: Draws the present state, and returns the version that it drew.
        news: What is watched in place of the task, and follows it and others.
    """
    if not stage.streams:
        task.wait_for_end()
    paint_at_changes(stage, news or task, paint)
    if not stage.streams and (now := task.view()).state is State.FAILED:
        end_script(now.problem, 1)


def paint_at_changes(stage: Stage, watched: Watchable, paint: Callable[[], int]) -> None:
    """Paint now and, where somebody watches, at every change, as `paint_while_it_runs` does; it may never end."""
    showing, version = stage.next_showing(), paint()
    if stage.streams:
        frames_s = slower(FIRST_FRAME_S, TIMED_FRAME_S)
        mo.Thread(target=_keep_painting, args=(watched, paint, showing, version, frames_s), daemon=True).start()


def slower(first_s: float, last_s: float) -> Iterator[float]:
    """Seconds of one frame after another: each is `SLOWER` times as long as the one before, up to the last.

    >>> frames_s = slower(1.0, 1.5)
    >>> [next(frames_s) for _ in range(4)]
    [1.0, 1.3, 1.5, 1.5]
    """
    frame_s = first_s
    while True:
        yield frame_s
        frame_s = min(SLOWER * frame_s, last_s)


def _keep_painting(
    watched: Watchable,
    paint: Callable[[], int],
    showing: Showing,
    painted: int,
    frames_s: Iterator[float],
    rest: Callable[[float], object] | None = None,
) -> None:
    """After version `painted`, paint what is new.

    Not before the frame is over: drawing takes a core that the measurement wants. `rest` waits for so many seconds, or
    for what no frame holds up; that is the end, unless it is given.
    """
    rest = rest or watched.wait_for_end
    while not watched.over_at(painted):
        news = watched.wait_for_news(painted, 1.0)
        if not showing.is_latest or mo.current_thread().should_exit:
            return
        if news:
            rest(pacing.shared.turn_in_s(time.monotonic()))  # the end waits neither for its turn
            painted = showing.draw(partial(pacing.shared.draw, paint)) or painted
            rest(next(frames_s))  # nor for its frame
