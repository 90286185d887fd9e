"""The articles' three experiments, as this notebook runs them and by the articles' own loop.

Ours: wall seconds of the whole sweep, including evaluation, with warm workers and nothing from the store, by the
  page's default backend and by the one that skips zeros. Theirs: one epoch of each training (a fifth of one at batch
  size 1), scaled to three; the rows say so.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from benchmarks import article
from benchmarks.report import SECONDS, LeftOut, Row, Target, note, row, show
from lib.model.backends.registry import Runtime, unavailable
from lib.model.spec import Network, Training
from lib.sweeps.experiments.mnist_training import Experiment
from lib.sweeps.experiments.published import ARTICLE_ARCHITECTURES
from lib.sweeps.sweep import Finished, Options, updates
from lib.sweeps.workers.engine import Engine, MachineLock
from lib.sweeps.workers.messages import Item
from lib.sweeps.workers.queue import Cancel

EPOCHS = 3
REPEATS = 5
LIMIT_S = 900
TIMES_FASTER = {"jax-epoch": 25, "numba": 50}  # targets
THEIRS = "keras-tensorflow"

_NETWORKS = [Network.parse(written) for written in ARTICLE_ARCHITECTURES]
_TRAININGS = {
    "learning rate": [Training(Network(), rate, 32, EPOCHS) for rate in (0.001, 0.01, 0.1, 1.0)],
    "batch size": [Training(Network(), 0.01, size, EPOCHS) for size in (1, 32, 256)],
    "hidden layers": [Training(network, 0.1, 32, EPOCHS) for network in _NETWORKS],
}
_EXPERIMENTS = [Experiment.by(axis, map(Item, trainings)) for axis, trainings in _TRAININGS.items()]
OURS = {experiment.name: experiment for experiment in _EXPERIMENTS}


def main() -> None:
    left_out, theirs = LeftOut(), {}
    ours = _ours(left_out)
    with left_out.unless_it_works("the article's loop"):
        theirs = _theirs()
    rows, targets = [], []
    for backend, limit in TIMES_FASTER.items():
        mine = {name: entry for (name, by), entry in ours.items() if by == backend}
        for name in mine.keys() & theirs.keys():
            mine[name]["times_faster"] = _s(theirs[name]) / _s(mine[name])
        ratio = None
        if len(mine) == len(theirs) == len(OURS):
            total_s, other_s = (sum(map(_s, table.values())) for table in (mine, theirs))
            ratio = other_s / total_s
            rows.append(row("all", [total_s], backend, method="ours", times_faster=ratio) | {"n": None})
        targets.append(Target(f"all three together by {backend}, times faster", ratio, limit, "×", True))
    if len(theirs) == len(OURS):
        total_s = sum(map(_s, theirs.values()))
        rows.append(row("all", [total_s], THEIRS, method="article", scaled=True) | {"n": None})
    rows = [*ours.values(), *theirs.values(), *rows]
    rows.sort(key=lambda entry: [*OURS, "all"].index(str(entry["name"])))
    columns = ("name", "method", "backend", *SECONDS, "scaled", "best_accuracy", "times_faster")
    show("experiments", rows, columns, targets, left_out)
    print("  scaled: one epoch of each training measured (a fifth of one at batch size 1), times three")


def _s(entry: Row) -> float:
    value = entry["median_s"]
    assert isinstance(value, float), "each experiment was timed"
    return value


def _ours(left_out: LeftOut) -> dict[tuple[str, str], Row]:
    engine = Engine()
    asked = {(name, backend): _by(backend, OURS[name]) for name in OURS for backend in TIMES_FASTER}
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in asked}
    accuracies: dict[tuple[str, str], float] = {}
    try:
        for (name, backend), experiment in asked.items():
            with left_out.unless_it_works(f"{name} by {backend}, warming up"):
                _run(engine, experiment)
                note(f"{name} by {backend}: compiled and warm")
        for number in range(REPEATS):
            for key, experiment in asked.items():
                with left_out.unless_it_works(f"{' by '.join(key)}, round {number + 1}"):
                    spent_s, accuracies[key] = _run(engine, experiment)
                    seconds[key].append(spent_s)
    finally:
        engine.close()
    return {
        (name, backend): row(
            name, values, backend, method="ours", epochs=EPOCHS, scaled=False, best_accuracy=accuracies[name, backend]
        )
        for (name, backend), values in seconds.items()
        if values
    }


def _by(backend: str, experiment: Experiment) -> Experiment:
    items = tuple(replace(item, runtime=Runtime(backend)) for item in experiment.items)
    return replace(experiment, items=items)


def _run(engine: Engine, experiment: Experiment) -> tuple[float, float]:
    began, finished = time.perf_counter(), []
    for update in updates(experiment.items, engine, None, Cancel(), Options(experiment.strategy)):
        if isinstance(update, Finished):
            finished.append(update.curve.epochs[-1].validation_accuracy)
    spent_s = time.perf_counter() - began
    if len(finished) != len(experiment.items):
        raise RuntimeError(f"{experiment.name}: {len(finished)} of {len(experiment.items)} trainings finished")
    return spent_s, max(finished)


def _theirs() -> dict[str, Row]:
    """Rows of the articles' loop; empty if TensorFlow is not installed."""
    if (gap := unavailable(Runtime(THEIRS))) is not None:
        note(f"the article's loop cannot run here: {gap.reason}; {gap.remedy}")
        return {}
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "GRPC_VERBOSITY": "ERROR"}
    environment = os.environ | quiet | {"KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, "-m", "benchmarks.article"]
    root = Path(__file__).resolve().parent.parent
    note("the article's loop, by Keras on TensorFlow")
    with MachineLock():  # only one measurement at a time on this machine
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
            THEIRS,
            method="article",
            epochs=EPOCHS,
            scaled=True,
            epochs_measured=1,
            best_accuracy=None,
            trainings=mine,
            median_epoch_s=statistics.median(t["epoch_s"] for t in mine),
        )
    return rows
