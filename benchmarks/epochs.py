"""Seconds per epoch of 784→128→10 by backend and batch size, against the floor set by the matrix products.

Only training counts (`train_s` of the backends: no evaluation, no compilation), without the first epoch of each round.
Two rounds over all backends keep a slow minute of the machine from hitting a single one. The floor is that of float32
products, even for bfloat16 rows.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import cast

from benchmarks.ceiling import Ceiling, ceiling
from benchmarks.report import LeftOut, Row, Target, note, row, seconds_of, show
from lib.model.backends.base import Epoch, Steps
from lib.model.backends.registry import BACKENDS, PRECISIONS, Runtime, usable_runtimes
from lib.model.spec import N_TRAIN, Network, Training
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Job, Progress
from lib.sweeps.workers.queue import Cancel
from lib.timing.comparison import Comparison, compared

BATCH_SIZES = (1, 32, 128, 512, 1024, 2048, 4096)
ROUNDS = 2
EPOCHS = 5  # per round: one untimed, four timed
BUDGET_S = 5.0  # ends a slow backend's round, after at least two timed epochs
PART_S = 4.0  # per round, for Keras at batch size 1, whose epoch takes a minute
NETWORK = Network((128,))
FLOOR_RATIO_LIMITS = {32: 2.5, 512: 1.7, 1024: 1.7, 2048: 1.7, 4096: 1.7}
SMALLEST_STEP_LIMIT_S = 20e-6
WITHOUT_ZEROS_TIMES_FASTER = {1: 3.0, 32: 1.6, 512: 1.5, 4096: 1.5}  # than JAX's epoch, on an AMD CPU
WITHOUT_ZEROS_STEP_LIMIT_S = 4e-6


def main() -> None:
    runtimes = [one for one in usable_runtimes() if one.device == "cpu" and BACKENDS[one.backend].whole_epochs]
    seconds: dict[tuple[Runtime, int], list[float]] = defaultdict(list)
    accuracies: dict[tuple[Runtime, int], float] = {}
    engine, left_out = Engine(), LeftOut()
    try:
        with ceiling() as product:
            for number in range(ROUNDS):
                for batch_size in BATCH_SIZES:
                    product.measure()
                    for runtime in runtimes:
                        key = (runtime, batch_size)
                        with left_out.unless_it_works(f"{runtime.label}, batch size {batch_size}, round {number + 1}"):
                            found, accuracy = _measure(engine, runtime, batch_size)
                            seconds[key] += found
                            accuracies[key] = accuracy or accuracies.get(key, 0.0)
                    note(f"round {number + 1} of {ROUNDS}, batch size {batch_size}")
            product.measure()
    finally:
        engine.close()
    rows = [
        _row(runtime, size, seconds, accuracies, product)
        for runtime in runtimes
        for size in BATCH_SIZES
        if seconds[runtime, size]
    ]
    print(f"\nBest 2048³ float32 product by XLA: {product.flops_per_s / 1e9:.0f} GFLOP/s")
    columns = (
        "backend",
        "precision",
        "batch_size",
        "median_s",
        "q1_s",
        "q3_s",
        "best_s",
        "n",
        "step_s",
        "floor_s",
        "ratio_to_floor",
        "accuracy",
        "scaled",
    )
    show("epochs", rows, columns, _targets(rows), left_out)


def _partly(runtime: Runtime, batch_size: int) -> bool:
    return batch_size == 1 and BACKENDS[runtime.backend].module == "with_keras"


def _measure(engine: Engine, runtime: Runtime, batch_size: int) -> tuple[list[float], float | None]:
    if _partly(runtime, batch_size):
        return _measure_part(engine, runtime, batch_size), None
    cancel, epochs = Cancel(), []
    training = Training(NETWORK, 0.1 if batch_size >= 32 else 0.01, batch_size, EPOCHS)
    for message in engine.run([Job(runtime, (training,))], cancel):
        if isinstance(message, Progress) and isinstance(message.event, Epoch):
            epochs.append(message.event)
            if len(epochs) >= 3 and sum(epoch.train_s for epoch in epochs) > BUDGET_S:
                cancel.set()
    return [epoch.train_s for epoch in epochs[1:]], epochs[-1].validation_accuracy


def _measure_part(engine: Engine, runtime: Runtime, batch_size: int) -> list[float]:
    """Seconds per epoch, extrapolated from each second of steps; the first message warms up and is left out."""
    cancel, found = Cancel(), []
    steps, train_s, parts = 0, 0.0, 0
    until = time.monotonic() + 10 * PART_S
    for message in engine.run([Job(runtime, (Training(NETWORK, 0.01, batch_size, 1),))], cancel):
        if not (isinstance(message, Progress) and isinstance(message.event, Steps)):
            continue
        parts += 1
        if parts == 1:
            continue
        steps, train_s = steps + len(message.event.losses), train_s + message.event.train_s
        if train_s >= 1.0:
            found.append(train_s / steps * (N_TRAIN // batch_size))
            steps, train_s = 0, 0.0
        if len(found) >= PART_S or time.monotonic() > until:
            cancel.set()
    return found


def _row(runtime: Runtime, batch_size: int, seconds: dict, accuracies: dict, product: Ceiling) -> Row:
    steps = N_TRAIN // batch_size
    floor_s = NETWORK.step_flops(batch_size) * steps / product.flops_per_s
    result = row("epochs", seconds[runtime, batch_size], runtime.backend, batch_size)
    median_s = result["median_s"]
    assert isinstance(median_s, float), "it has timed epochs"
    return result | {
        "precision": runtime.precision,
        "best_s": min(seconds[runtime, batch_size]),
        "step_s": median_s / steps,
        "floor_s": floor_s,
        "ratio_to_floor": median_s / floor_s,
        "accuracy": accuracies[runtime, batch_size] or None,
        "scaled": _partly(runtime, batch_size),
        "product_flops_per_s": product.flops_per_s,
    }


def _targets(rows: list[Row]) -> list[Target]:
    found = {(r["backend"], r["batch_size"]): r for r in rows if r["precision"] == PRECISIONS[0]}

    def over(backend: str, size: int, divisor: Callable[[Row], float]) -> list[float]:
        one = found.get((backend, size))
        return [] if one is None else [s / divisor(one) for s in seconds_of(one)]

    def times_faster(size: int) -> Comparison | None:
        both = [seconds_of(found.get((key, size))) for key in ("jax-epoch", "numba")]
        return compared(*both, paired=False) if all(both) else None

    return [
        *(
            Target.of(f"jax-epoch, batch size {size}, times the floor", over("jax-epoch", size, _floor_s), limit)
            for size, limit in FLOOR_RATIO_LIMITS.items()
        ),
        _step("jax-epoch", over("jax-epoch", 1, _steps), SMALLEST_STEP_LIMIT_S),
        *(
            Target.ratio(f"batch size {size}, jax-epoch over numba", times_faster(size), limit, "×", True)
            for size, limit in WITHOUT_ZEROS_TIMES_FASTER.items()
        ),
        _step("numba", over("numba", 1, _steps), WITHOUT_ZEROS_STEP_LIMIT_S),
    ]


def _floor_s(row: Row) -> float:
    return cast(float, row["floor_s"])


def _steps(row: Row) -> float:
    return N_TRAIN // cast(int, row["batch_size"])


def _step(backend: str, steps_s: Sequence[float], limit_s: float) -> Target:
    return Target.of(f"{backend}, batch size 1, a step", [1e6 * s for s in steps_s], 1e6 * limit_s, "μs")
