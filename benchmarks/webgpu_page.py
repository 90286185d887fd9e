"""The page “Your GPU” in Chromium with its software adapter: the reader's wait, and the frame rate.

first-figure        seconds from opening the page to the first point of a curve
of these, marimo's  until the page's own script begins
longest-task        of the main thread, after the first figure; 0 if none took 50 ms, the least that browsers report
frame               from one frame to the next, after the first figure
"""

from collections import defaultdict
from itertools import pairwise

import numpy as np

from benchmarks.browser import FLAGS, WITH_WEBGPU, browser, class_server, fresh_cache, looking, page_of, visitor
from benchmarks.report import LeftOut, Row, Target, note, row
from lib.model.hardware.webgpu import SOFTWARE
from lib.ui.notebooks import notebook_of

OPENINGS = 3
TRAINING_S = 5.0
LIMIT_S = 60
FIRST_FIGURE_S, LONGEST_TASK_S = 2.0, 0.05
FRAMES_PER_S = 59  # 60, with a margin for the browser's rounded clock
COLUMNS = ("frames_per_s", "frames_per_s_5th_percentile")

WATCH = """
window.watched = {tasks: [], frames: [], began: null};
new PerformanceObserver((list) => {
  for (const { startTime, duration } of list.getEntries()) watched.tasks.push([startTime, duration]);
}).observe({ type: 'longtask', buffered: true });
const context = HTMLCanvasElement.prototype.getContext;
HTMLCanvasElement.prototype.getContext = function (...asked) {
  watched.began ??= performance.now();
  return context.apply(this, asked);
};
(function frame(now) { watched.frames.push(now); requestAnimationFrame(frame); })(performance.now());
window.first = () => performance.getEntriesByName('first figure')[0]?.startTime;
"""


def measured(left_out: LeftOut) -> tuple[list[Row], list[Target]]:
    seconds: dict[str, list[float]] = defaultdict(list)
    flags = (*(flag for flag in FLAGS if flag != "--disable-gpu"), *WITH_WEBGPU)
    with left_out.unless_it_works("the page"), browser(flags) as opened, fresh_cache() as cache:
        with class_server(cache) as (_, address):
            where = address + notebook_of("your_gpu").path.lstrip("/")
            for number in range(OPENINGS + 1):
                found = _watched(opened, where)
                if number:  # the first opening makes the server load the images
                    for name, values in found.items():
                        seconds[name] += values
    rows = [row(name, values, page="your_gpu", adapter=SOFTWARE) for name, values in seconds.items()]
    frames = sorted(seconds["frame"])
    if not frames:
        return rows, []
    per_s = [1 / frame for frame in frames]
    rows[list(seconds).index("frame")] |= dict(zip(COLUMNS, np.quantile(per_s, (0.5, 0.05)).tolist(), strict=True))
    targets = [
        Target.of("first figure after the page is opened", seconds["first-figure"], FIRST_FIGURE_S, "s"),
        Target.counted(
            "longest task of the main thread while it trains", max(seconds["longest-task"]), LONGEST_TASK_S, "s"
        ),
        Target.of("frames a second while it trains, median", per_s, FRAMES_PER_S, at_least=True),
        Target.of("frames a second while it trains, 5th percentile", per_s, FRAMES_PER_S, at_least=True, share=0.05),
    ]
    return rows, targets


def _watched(opened, where: str) -> dict[str, list[float]]:
    with looking(), visitor(opened) as person:
        person.add_init_script(WATCH)
        with page_of(person, where) as page:
            page.wait_for_function("window.first()", timeout=1000 * LIMIT_S)
            page.wait_for_timeout(1000 * TRAINING_S)
            first, found = page.evaluate("[first(), watched]")
    tasks = [lasted for at, lasted in found["tasks"] if at >= first]
    frames = [at for at in found["frames"] if at >= first]
    note(f"page: first figure {first / 1000:.1f} s, {len(frames)} frames in {TRAINING_S:.0f} s")
    milliseconds = {
        "first-figure": [first],
        "of these, marimo's": [found["began"]],
        "longest-task": [max(tasks, default=0.0)],
        "frame": [after - before for before, after in pairwise(frames)],
    }
    return {name: [value / 1000 for value in values] for name, values in milliseconds.items()}
