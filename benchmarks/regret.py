"""How much slower the strategy that `auto` picks is than the best one, on twenty different sweeps.

Each strategy makes each sweep twice, in turns; its time is the shorter of the two. What was picked is judged by that
strategy's own time, and the second choice, where processes are not at hand, by its own. What choosing took, with
measuring, stands beside. Sweeps of less than `lib.sweeps.cost_model.WORTH_S` are not among them: for these `auto` does
not choose, but trains one after another.
"""

import math
import random
import time
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.report import LeftOut, Row, Target, note, row, show
from benchmarks.sweeps import JAX, timed
from lib.spec import MAX_EPOCHS, Network, Training
from lib.sweeps.cost_model import nominal_s
from lib.sweeps.events import Picked
from lib.sweeps.strategies import POOLED
from lib.sweeps.sweep import Options, updates
from lib.workers.cancel import Cancel
from lib.workers.engine import Engine
from lib.workers.messages import Item

STRATEGIES = ("sequential", "vmap", "padded", "sharded", "processes", "stacks")
ROUNDS = 2
NOMINAL_S = 1.7  # of each sweep one after another, before anything is measured
SWEEPS = 20


def sweeps(seed: int = 0) -> list[list[Training]]:
    """Twenty sweeps of seconds each: few or many networks, alike or mixed, of small or large batches."""
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
            timed(engine, [Training(epochs=1)] * 2, JAX, "processes")
        for number, trainings in enumerate(sweeps()):
            what = f"sweep {number + 1} of {SWEEPS}"
            with left_out.unless_it_works(what):
                last = _regret(engine, number, trainings)
                rows.append(last)
                times = ", ".join(f"{strategy} {last[f'{strategy}_s']:.2f}" for strategy in STRATEGIES)
                note(f"{what}: picked {last['picked']}, regret {last['regret']:.2f}; seconds by {times}")
    finally:
        engine.close()
    regrets, inside = ([float(r[name]) for r in rows] for name in ("regret", "regret_inside"))  # type: ignore[arg-type]
    about = ("number", "networks", "shapes", "picked", "best", "regret", "picked_inside", "regret_inside", "choosing_s")
    columns = (*about, *(f"{strategy}_s" for strategy in STRATEGIES))
    longest_s = max((float(r["choosing_s"]) for r in rows), default=None)  # type: ignore[arg-type]
    targets = [
        Target.of("median regret", regrets, 1.1),
        Target.counted("worst regret of these sweeps", max(regrets, default=None), 1.5),
        Target.of("median regret without processes", inside, 1.1),
        Target.counted("worst regret of these sweeps without processes", max(inside, default=None), 1.5),
        Target.counted("choosing, the longest of these", longest_s, 1.0, "s"),
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
    inside = {strategy: s for strategy, s in picked.expected_s.items() if strategy not in POOLED}
    second = min(inside, key=inside.__getitem__)  # what it picks where processes are not at hand
    best_inside_s = min(s for strategy, s in best_s.items() if strategy not in POOLED)
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
        regret=best_s[picked.strategy] / best_s[best],
        picked_inside=second,
        regret_inside=best_s[second] / best_inside_s,
        choosing_s=choosing_s,
        **{f"{strategy}_s": spent for strategy, spent in best_s.items()},
    )


def _picked(engine: Engine, trainings: Sequence[Training]) -> tuple[Picked, float]:
    """What `auto` says, and what it took to say it: measuring included, trainings not."""
    cancel, began = Cancel(), time.perf_counter()
    for update in updates([Item(training) for training in trainings], engine, None, cancel, Options()):
        if isinstance(update, Picked):
            cancel.set()
            return update, time.perf_counter() - began
    raise RuntimeError("nothing was picked")
