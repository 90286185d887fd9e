"""How much slower the strategy that `auto` picks is than the best one, on twenty different sweeps.

Each strategy runs each sweep twice, in turns; its time is the shorter of the two. The pick is judged by its strategy's
own time, and so is the second choice, made without processes. The interval of the worst regret comes from the two times
of both strategies. The time to choose is listed too. Sweeps shorter than `lib.sweeps.sweep.WORTH_S` are left out: for
them `auto` does not choose, but trains sequentially.
"""

import math
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from benchmarks.report import LeftOut, Row, Target, note, row, show
from benchmarks.sweeps import JAX, timed
from lib.model.hardware.machine import usable_cores
from lib.model.spec import MAX_EPOCHS, Network, Training
from lib.sweeps.sweep import POOLED, Options, Picked, nominal_s, updates
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Item
from lib.sweeps.workers.queue import Cancel
from lib.timing.comparison import compared

STRATEGIES = ("sequential", "vmap", "padded", "sharded", "processes", "stacks")
ROUNDS = 2
NOMINAL_S = 1.7  # estimated seconds of each sweep, trained sequentially
SWEEPS = 20


def sweeps(seed: int = 0) -> list[list[Training]]:
    """Twenty sweeps of seconds each: few or many networks, uniform or mixed, with small or large batches."""
    rng = random.Random(seed)
    found = []
    for number in range(SWEEPS):
        count = (2, 4, 8, 16, 32)[number % 5]
        size = (32, 512, 128, 2048)[number % 4]
        widths = (16, 64, 128, 256)[: 1 + number % 4] if number % 2 else ((32, 128, 256)[number % 3],)
        depths = (1, 2) if number % 3 == 0 else (1,)
        sizes = (size, 256) if number % 7 == 6 else (size,)
        seeds = (0, 1) if number % 5 == 4 else (0,)
        trainings = [
            Training(
                Network((rng.choice(widths),) * rng.choice(depths)),
                10 ** rng.uniform(-2, -0.5),
                rng.choice(sizes),
                1,
                rng.choice(seeds),
            )
            for _ in range(count)
        ]
        epochs = math.ceil(NOMINAL_S / nominal_s(trainings))
        found.append([replace(training, epochs=min(epochs, MAX_EPOCHS)) for training in trainings])
    return found


def main() -> None:
    engine, rows, left_out = Engine(), [], LeftOut()
    try:
        with left_out.unless_it_works("warming up"):
            timed(engine, [Training(epochs=1, seed=seed) for seed in range(usable_cores())], JAX, "processes")
        for number, trainings in enumerate(sweeps()):
            what = f"sweep {number + 1} of {SWEEPS}"
            with left_out.unless_it_works(what):
                last = _regret(engine, number, trainings)
                rows.append(last)
                times = ", ".join(f"{strategy} {last[f'{strategy}_s']:.2f}" for strategy in STRATEGIES)
                note(f"{what}: picked {last['picked']}, regret {last['regret']:.2f}; seconds by {times}")
    finally:
        engine.close()
    about = ("number", "networks", "shapes", "picked", "best", "regret", "picked_inside", "regret_inside", "choosing_s")
    columns = (*about, *(f"{strategy}_s" for strategy in STRATEGIES))
    longest_s = max((float(r["choosing_s"]) for r in rows), default=None)  # type: ignore[arg-type]
    targets = [
        *(
            target
            for name, words in (("regret", ""), ("regret_inside", " without processes"))
            for target in (
                Target.of(f"median regret{words}", [cast(float, r[name]) for r in rows], 1.1),
                Target.in_row(f"worst regret of these sweeps{words}", _worst(rows, name), _ends(name), 1.5),
            )
        ),
        Target("choosing, the longest of these", longest_s, 1.0, "s"),
    ]
    show("regret", rows, columns, targets, left_out)


def _regret(engine: Engine, number: int, trainings: Sequence[Training]) -> Row:
    picked, choosing_s = _picked(engine, trainings)
    seconds: dict[str, list[float]] = {strategy: [] for strategy in STRATEGIES}
    for _ in range(ROUNDS):
        for strategy in STRATEGIES:
            seconds[strategy].append(timed(engine, trainings, JAX, strategy)[0])
    best_s = {strategy: min(spent) for strategy, spent in seconds.items()}
    best = min(best_s, key=best_s.__getitem__)
    best_inside = min((one for one in best_s if one not in POOLED), key=best_s.__getitem__)
    inside = {strategy: s for strategy, s in picked.expected_s.items() if strategy not in POOLED}
    second = min(inside, key=inside.__getitem__)  # its pick without processes
    return row(
        "regret",
        [best_s[best]],
        "jax-epoch",
        trainings[0].batch_size,
        number=number + 1,
        networks=len(trainings),
        shapes=len({(t.network, t.batch_size) for t in trainings}),
        picked=picked.strategy,
        best=best,
        picked_inside=second,
        choosing_s=choosing_s,
        **_regret_of("regret", seconds[picked.strategy], seconds[best]),
        **_regret_of("regret_inside", seconds[second], seconds[best_inside]),
        **{f"{strategy}_s": spent for strategy, spent in best_s.items()},
    )


def _ends(name: str) -> tuple[str, str, str]:
    return name, f"{name}_low", f"{name}_high"


def _regret_of(name: str, picked_s: Sequence[float], best_s: Sequence[float]) -> Row:
    """The ratio of the shorter times, with an interval from all of them; exactly 1 if the best was picked."""
    found = compared(picked_s, best_s, paired=False)
    ends = (1.0, 1.0) if picked_s is best_s else (max(1.0, found.low), found.high)  # nothing beats the best
    return dict(zip(_ends(name), (min(picked_s) / min(best_s), *ends), strict=True))


def _worst(rows: Sequence[Row], name: str) -> Row | None:
    return max(rows, key=lambda r: cast(float, r[name]), default=None)


def _picked(engine: Engine, trainings: Sequence[Training]) -> tuple[Picked, float]:
    cancel, began = Cancel(), time.perf_counter()
    for update in updates([Item(training) for training in trainings], engine, None, cancel, Options()):
        if isinstance(update, Picked):
            cancel.set()
            return update, time.perf_counter() - began
    raise RuntimeError("nothing was picked")
