"""The three experiments of the articles: as this notebook runs them, and as the articles' own loop does.

Ours: wall seconds of the whole sweep, evaluation included, by warm workers, nothing from the store. Theirs: one epoch
  of each training (a fifth of one at batch size 1), scaled to three; the rows say so.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import article
from benchmarks.report import LeftOut, Row, Target, note, row, show
from lib.backends.registry import Runtime, unavailable
from lib.experiments import mnist_training
from lib.experiments.mnist_training import Experiment
from lib.experiments.published import ARTICLE_ARCHITECTURES
from lib.sweeps.events import Finished
from lib.sweeps.sweep import Options, updates
from lib.workers.cancel import Cancel
from lib.workers.engine import Engine, MachineLock

EPOCHS = 3
REPEATS = 5
LIMIT_S = 900
TIMES_FASTER = 25

OURS = {
    "learning-rate": mnist_training.learning_rate((0.001, 0.01, 0.1, 1.0), epochs=EPOCHS, batch_size=32, hidden="128"),
    "batch-size": mnist_training.batch_size((1, 32, 256), epochs=EPOCHS, rate=0.01, hidden="128"),
    "depth": mnist_training.depth(ARTICLE_ARCHITECTURES, epochs=EPOCHS, rate=0.1, batch_size=32),
}


def main() -> None:
    left_out, theirs = LeftOut(), {}
    ours = _ours(left_out)
    with left_out.unless_it_works("the article's loop"):
        theirs = _theirs()
    rows = [entry for name in OURS for entry in (ours.get(name), theirs.get(name)) if entry is not None]
    for name in ours:
        if name in theirs:
            ours[name]["times_faster"] = _s(theirs[name]) / _s(ours[name])
    ratio = None
    if len(theirs) == len(ours) == len(OURS):
        total, other = (sum(_s(table[name]) for name in OURS) for table in (ours, theirs))
        ratio = other / total
        rows += [
            row("all", [total], "jax-epoch", method="ours", times_faster=ratio) | {"n": None},
            row("all", [other], "keras-tensorflow", method="article", scaled=True) | {"n": None},
        ]
    columns = ("name", "method", "backend", "median_s", "q1_s", "q3_s", "n", "scaled", "best_accuracy", "times_faster")
    show(
        "experiments",
        rows,
        columns,
        [Target("all three together, times faster", ratio, TIMES_FASTER, "×", True)],
        left_out,
    )
    print("  scaled: one epoch of each training measured (a fifth of one at batch size 1), times three")


def _s(entry: Row) -> float:
    value = entry["median_s"]
    assert isinstance(value, float), "each experiment was timed"
    return value


def _ours(left_out: LeftOut) -> dict[str, Row]:
    engine = Engine()
    seconds: dict[str, list[float]] = {name: [] for name in OURS}
    accuracies: dict[str, float] = {}
    try:
        for name, experiment in OURS.items():
            with left_out.unless_it_works(f"{name}, warming up"):
                _run(engine, experiment)
                note(f"{name}: compiled and warm")
        for number in range(REPEATS):
            for name, experiment in OURS.items():
                with left_out.unless_it_works(f"{name}, round {number + 1}"):
                    spent_s, accuracies[name] = _run(engine, experiment)
                    seconds[name].append(spent_s)
    finally:
        engine.close()
    return {
        name: row(name, values, "jax-epoch", method="ours", epochs=EPOCHS, scaled=False, best_accuracy=accuracies[name])
        for name, values in seconds.items()
        if values
    }


def _run(engine: Engine, experiment: Experiment) -> tuple[float, float]:
    """Wall seconds of the sweep, and the best validation accuracy in it."""
    began, finished = time.perf_counter(), []
    for update in updates(experiment.items, engine, None, Cancel(), Options(experiment.strategy)):
        if isinstance(update, Finished):
            finished.append(update.curve.epochs[-1].validation_accuracy)
    spent_s = time.perf_counter() - began
    if len(finished) != len(experiment.items):
        raise RuntimeError(f"{experiment.name}: {len(finished)} of {len(experiment.items)} trainings finished")
    return spent_s, max(finished)


def _theirs() -> dict[str, Row]:
    """The articles' loop; empty where TensorFlow is not installed."""
    if (gap := unavailable(Runtime("keras-tensorflow"))) is not None:
        note(f"the article's loop cannot run here: {gap.reason}; {gap.remedy}")
        return {}
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "GRPC_VERBOSITY": "ERROR"}
    environment = os.environ | quiet | {"KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, "-m", "benchmarks.article"]
    root = Path(__file__).resolve().parent.parent
    note("the article's loop, by Keras on TensorFlow")
    with MachineLock():  # one timed thing at a time on this machine
        done = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    if done.returncode:
        raise RuntimeError(f"the article's loop ended with status {done.returncode}: {done.stderr[-500:]}")
    trainings = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    rows = {}
    for name in article.EXPERIMENTS:
        mine = [t for t in trainings if t["experiment"] == name]
        total_s = sum(t["first_s"] + EPOCHS * t["epoch_s"] for t in mine)
        rows[name] = row(
            name,
            [total_s],
            "keras-tensorflow",
            method="article",
            epochs=EPOCHS,
            scaled=True,
            epochs_measured=1,
            best_accuracy=None,
            trainings=mine,
            median_epoch_s=statistics.median(t["epoch_s"] for t in mine),
        )
    return rows
