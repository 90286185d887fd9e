"""Sweeps by each strategy: against the article's two loops, by the number of networks, and with padding.

Ours run whole and warm: programs compiled, processes started, nothing from the store. The articles' loops run once,
whole.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import psutil

from benchmarks.article_sweep import EPOCHS, RATES
from benchmarks.report import SECONDS, LeftOut, Row, Target, note, row, seconds_of, show
from lib.model.backends.packing import Shape
from lib.model.backends.registry import Runtime, unavailable
from lib.model.spec import Network, Training
from lib.sweeps.experiments.published import ARTICLE_ARCHITECTURES
from lib.sweeps.storage.store import Store
from lib.sweeps.sweep import Finished, Options, quickest_runtime, updates
from lib.sweeps.workers.engine import Engine, MachineLock
from lib.sweeps.workers.messages import Item
from lib.sweeps.workers.queue import Cancel
from lib.timing.comparison import Comparison, compared

ROUNDS = 3
COUNTS = (1, 4, 16, 64, 256)
JAX, NUMBA = Runtime(), Runtime("numba")
STRATEGIES: Mapping[Runtime, Sequence[str]] = {
    JAX: ("sequential", "processes", "vmap", "sharded", "stacks"),
    NUMBA: ("sequential", "processes", "cores"),
}
AT_64 = 64
LIMIT_S = 900
ARTICLE = [Training(learning_rate=rate, batch_size=32, epochs=EPOCHS) for rate in RATES]
DEPTHS = [Training(Network.parse(text), 0.1, 32, 3) for text in ARTICLE_ARCHITECTURES]


def main() -> None:
    engine, left_out = Engine(), LeftOut()
    try:
        article = [*_article(engine, left_out), *_theirs(left_out)]
        by_count = _by_count(engine, left_out)
        methods = ("sequential", "padded", "sharded", "processes", "stacks", "auto")
        padded = _rounds(engine, left_out, "padded", DEPTHS, JAX, methods, 1.0)
    finally:
        engine.close()
    columns = ("name", "backend", "method", "networks", *SECONDS, "picked", "best_accuracy", "per_s", "extra_mb_each")
    show("sweeps", [*article, *by_count, *padded], columns, _targets(article, by_count, padded), left_out)


_FOLDER = tempfile.TemporaryDirectory(prefix="less-overhead-bench-")  # removed at the end


@cache
def _store() -> Store:
    """This run's store; nothing is served from it."""
    return Store(Path(_FOLDER.name) / "results.sqlite")


def timed(
    engine: Engine, trainings: Sequence[Training], runtime: Runtime, strategy: str, max_waste: float | None = None
) -> tuple[float, str, float]:
    """Wall seconds of a sweep, including the choice of strategy; the strategy used; and the best accuracy."""
    options = Options(strategy, fresh=True) if max_waste is None else Options(strategy, max_waste=max_waste, fresh=True)
    began, picked, best = time.perf_counter(), strategy, 0.0
    for update in updates([Item(training, runtime) for training in trainings], engine, _store(), Cancel(), options):
        if isinstance(update, Finished):
            picked = update.strategy
            best = max(best, update.curve.epochs[-1].validation_accuracy)
    return time.perf_counter() - began, picked, best


def _rounds(
    engine: Engine,
    left_out: LeftOut,
    name: str,
    trainings: Sequence[Training],
    runtime: Runtime,
    methods: Sequence[str],
    max_waste: float | None = None,
) -> list[Row]:
    found: dict[str, list[tuple[float, str, float]]] = {method: [] for method in methods}
    for method in methods:  # compiles and starts processes, which depends on shapes, not on epochs
        with left_out.unless_it_works(f"{name}, {runtime.backend}, {method}, warming up"):
            timed(engine, [replace(training, epochs=1) for training in trainings], runtime, method, max_waste)
    for number in range(ROUNDS):
        for method in methods:
            with left_out.unless_it_works(f"{name}, {runtime.backend}, {method}, round {number + 1}"):
                found[method].append(timed(engine, trainings, runtime, method, max_waste))
    note(f"{name}, {runtime.backend}: {', '.join(methods)}")
    return [
        row(
            name,
            [s for s, _, _ in runs],
            runtime.backend,
            32,
            method=method,
            networks=len(trainings),
            picked=", ".join(dict.fromkeys(p for _, p, _ in runs)),
            best_accuracy=max(b for _, _, b in runs),
        )
        for method, runs in found.items()
        if runs
    ]


def _article(engine: Engine, left_out: LeftOut) -> list[Row]:
    methods = ("sequential", "processes", "vmap", "sharded", "stacks", "auto")
    by_jax = _rounds(engine, left_out, "article", ARTICLE, JAX, methods)
    return by_jax + _rounds(engine, left_out, "article", ARTICLE, NUMBA, ("sequential", "processes", "auto"))


def _theirs(left_out: LeftOut) -> list[Row]:
    if unavailable(Runtime("keras-tensorflow")) is not None:
        return []
    found = []
    for method in ("sequential", "pool"):
        with left_out.unless_it_works(f"the article's sweep, {method}"):
            found.append(_their_sweep(method))
    return found


def _their_sweep(method: str) -> Row:
    note(f"the article's sweep, {method}: minutes")
    command = [sys.executable, "-m", "benchmarks.article_sweep", method]
    environment = os.environ | {
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "KERAS_BACKEND": "tensorflow",
    }
    with MachineLock():  # only one measurement at a time on this machine
        done = subprocess.run(
            command,
            cwd=Path(__file__).resolve().parent.parent,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"the article's sweep ended with status {done.returncode}: {done.stderr[-500:]}")
    answer = json.loads(done.stdout.splitlines()[-1])
    best = max(answer["accuracies"].values())
    return row(
        "article",
        [answer["wall_s"]],
        "keras-tensorflow",
        32,
        method=f"keras-{method}",
        networks=len(RATES),
        best_accuracy=best,
    )


def _by_count(engine: Engine, left_out: LeftOut) -> list[Row]:
    """Networks per second, one epoch at batch size 32, and the peak memory per additional network."""
    found = []
    for runtime, strategy in ((runtime, strategy) for runtime, able in STRATEGIES.items() for strategy in able):
        first_bytes = 0.0
        for count in COUNTS:
            trainings = [Training(learning_rate=float(rate), epochs=1) for rate in np.geomspace(0.01, 0.3, count)]
            with left_out.unless_it_works(f"{count} networks, {runtime.backend}, {strategy}"):
                timed(engine, trainings[: min(count, 16)], runtime, strategy)
                with _peak_memory() as peak:
                    seconds, _, best = timed(engine, trainings, runtime, strategy)
                first_bytes = first_bytes or peak[0]
                each = (peak[0] - first_bytes) / (count - 1) / 1e6 if count > 1 else None
                found.append(
                    row(
                        "count",
                        [seconds],
                        runtime.backend,
                        32,
                        method=strategy,
                        networks=count,
                        per_s=count / seconds,
                        best_accuracy=best,
                        extra_mb_each=each,
                    )
                )
        note(f"1 to {COUNTS[-1]} networks, {runtime.backend}, {strategy}")
    return found


@contextmanager
def _peak_memory() -> Iterator[list[float]]:
    """Peak resident bytes of this process and its descendants, sampled ten times a second."""
    peak, over = [0.0], Cancel()

    def watch() -> None:
        while not over.wait(0.1):
            total = 0
            for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
                try:
                    total += process.memory_info().rss
                except psutil.Error:
                    continue
            peak[0] = max(peak[0], total)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


def _asked(runtime: Runtime) -> str:
    """The label, and whether `sweep` uses this runtime without being asked."""
    return f"{runtime.label} ({'unasked' if runtime == quickest_runtime() else 'asked for'})"


def _targets(article: Sequence[Row], by_count: Sequence[Row], padded: Sequence[Row]) -> list[Target]:
    theirs = {str(r["method"]): seconds_of(r) for r in article}
    auto_s_by = {r["backend"]: seconds_of(r) for r in article if r["method"] == "auto"}

    def times(other: str, ours: Runtime) -> Comparison | None:
        both = theirs.get(other, []), auto_s_by.get(ours.backend, [])
        return compared(*both, paired=False) if all(both) else None

    def per_s(ours: Runtime) -> float | None:
        of_64 = [r for r in by_count if r["networks"] == AT_64 and r["backend"] == ours.backend]
        return max((float(r["per_s"]) for r in of_64), default=None)  # type: ignore[arg-type]

    by_numba, by_jax = per_s(NUMBA), per_s(JAX)
    allowed = Shape.of([Network((128,))]).place_bytes(32) / 1e6
    each = (float(r["extra_mb_each"]) for r in by_count if r["networks"] == COUNTS[-1])  # type: ignore[arg-type]
    most = max(each, default=None)
    of_padded = {str(r["method"]): seconds_of(r) for r in padded}
    auto_s, best_s = of_padded.pop("auto", []), min(of_padded.values(), key=statistics.median, default=[])
    return [
        *(
            Target.ratio(f"auto, {_asked(ours)}, beside Keras {words}", times(other, ours), limit, "×", True)
            for ours in (JAX, NUMBA)
            for other, words, limit in (
                ("keras-sequential", "one after another", 30),
                ("keras-pool", "by multiprocessing.Pool", 15),
            )
        ),
        Target(
            f"{AT_64} networks: Numba's best way beside JAX's",
            by_numba / by_jax if by_numba and by_jax else None,
            3,
            "×",
            True,
        ),
        Target(f"memory of each of {COUNTS[-1]} networks more", most, allowed, "MB"),
        Target.ratio(
            "four architectures: what auto picked beside the best",
            compared(auto_s, best_s, paired=False) if auto_s and best_s else None,
            1.5,
        ),
    ]
