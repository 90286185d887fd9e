"""Seconds per batch by feed: every feed of `notebooks/operations_and_feeds.py`.

Preprocessing is compiled code that releases the interpreter's lock, or Python code that holds it. `low_s` and `high_s`
enclose the median in 95 of 100 cases; so do the ends for the share of time that the step waits.
"""

import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.report import LeftOut, Row, note, row, show
from lib.sweeps.experiments.single_operations import Figures, PipelineTask, measure_pipelines, pipeline_tasks
from lib.sweeps.storage.records import Record
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.comparison import median_interval
from lib.timing.profiling.request import Pipeline

SETTINGS = Pipeline()  # the notebook's default rows, batch size and preprocessing
COLUMNS = (
    "backend",
    "feed",
    "holds_lock",
    "median_s",
    "low_s",
    "high_s",
    "data_s",
    "step_s",
    "waits",
    "waits_low",
    "waits_high",
    "first_batch_s",
)


def main() -> None:
    engine, left_out = Engine(), LeftOut()
    rows: list[Row] = []
    try:
        for holds_lock in (False, True):
            for task in pipeline_tasks(replace(SETTINGS, holds_lock=holds_lock), "cpu"):
                label = f"{task.pipeline.label}, {'Python' if holds_lock else 'compiled'} preprocessing"
                with left_out.unless_it_works(label):
                    rows.append(_row(engine, task))
                    note(f"{label}: {rows[-1]['median_s']:.3g} s a batch")
    finally:
        engine.close()
    show("pipeline", rows, COLUMNS, [], left_out)


def _row(engine: Engine, task: PipelineTask) -> Row:
    """Seconds per batch with a 95 % interval, and seconds of the data set and of the step alone.

    Raises:
        RuntimeError: It could not be measured; the text says why.
    """
    with tempfile.TemporaryDirectory() as folder:  # an empty store forces a new measurement
        store = Store(Path(folder) / "results.sqlite")
        events = list(measure_pipelines([task], engine, store, Cancel(), Request()))
    if reasons := [why for event in events if isinstance(event, tuple) for _, why in [event]]:
        raise RuntimeError(reasons[0])
    figures = task.found([event for event in events if isinstance(event, Record)])
    assert figures is not None, "all were measured"
    return _of(figures, task)


def _of(figures: Figures, task: PipelineTask) -> Row:
    low_s, high_s = median_interval(figures.both.step_s)
    waits, waits_low, waits_high = figures.share
    return row(
        "pipeline",
        figures.both.step_s.tolist(),
        task.runtime.backend,
        figures.pipeline.batch_size,
        feed=figures.pipeline.label,
        holds_lock=figures.pipeline.holds_lock,
        rows=figures.pipeline.rows,
        preprocessing_ms=figures.pipeline.preprocessing_ms,
        low_s=low_s,
        high_s=high_s,
        data_s=figures.data.median_s,
        step_s=figures.step.median_s,
        waits=waits,
        waits_low=waits_low,
        waits_high=waits_high,
        first_batch_s=figures.first.median_s,
    )
