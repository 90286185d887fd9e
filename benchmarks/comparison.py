"""How often the rule for “faster” is right here: 200 comparisons each of equal steps, 5 % and 10 % more work.

A step is a series of small matrix products on the same arrays, so one more product in twenty is 5 % more work on any
machine.
"""

import random
import time
from collections import Counter
from collections.abc import Callable

import numpy as np

from benchmarks.report import Target, note, show
from lib.timing.comparison import Comparison, Verdict, compared
from lib.timing.measurement import Clock, Config, Meter, Step, Sync, no_wait

N = 200
PRODUCTS, SIDE = 20, 48
CONFIG = Config(warm_up_s=0.02, max_time_s=2.0)
LOOKS = (9, 14, 22, 35, 55, 86, 135, 212, 332, 520)  # numbers of pairs, growing by a factor of about 1.6
MORE = {"equal": 0, "slower-5": PRODUCTS // 20, "slower-10": PRODUCTS // 10}


def step_of(n_products: int) -> Callable[[], object]:
    a, b, out = (np.full((SIDE, SIDE), value, np.float32) for value in (0.5, 0.25, 0.0))

    def step() -> object:
        for _ in range(n_products):
            np.matmul(a, b, out)
        return out

    return step


def compare(
    first: Step,
    second: Step,
    *,
    sync: Sync | tuple[Sync, Sync] = no_wait,
    config: Config | None = None,
    clock: Clock = time.perf_counter,
    seed: int = 0,
) -> Comparison:
    """Measure two steps in pairs of blocks until it is decided which is faster.

    Also stops after twice `max_time_s`, or after the last look. `sync` waits for a step's result: one function for
    both, or one for each. `seed` determines the order within each pair.
    """
    config = config or Config()
    syncs = sync if isinstance(sync, tuple) else (sync, sync)
    meters = [Meter(step, wait, config, clock) for step, wait in zip((first, second), syncs, strict=True)]
    began, rng = clock(), random.Random(seed)
    for meter in meters:
        meter.warm_up()
        meter.find_block_size()
    pairs = 0
    while True:
        pairs += 1
        for meter in rng.sample(meters, 2):
            meter.block()
        over = pairs == LOOKS[-1] or clock() - began >= 2 * config.max_time_s
        if over or pairs in LOOKS:
            # Running out of time adds one look.
            one, other = (np.array(meter.blocks) / meter.steps_per_block for meter in meters)
            found = compared(one, other, True, looks=len(LOOKS) + 1)
            if over or found.verdict is not Verdict.UNCLEAR:
                return found


def main() -> None:
    rows = []
    for name, more in MORE.items():
        usual, other = step_of(PRODUCTS), step_of(PRODUCTS + more)
        first, second = (other, usual) if more else (usual, usual)
        found, pairs, ratios, began = Counter[Verdict](), [], [], time.perf_counter()
        for seed in range(N):
            comparison = compare(first, second, config=CONFIG, seed=seed)
            found[comparison.verdict] += 1
            pairs.append(comparison.n)
            ratios.append(comparison.ratio)
        note(f"{name}: {time.perf_counter() - began:.0f} s")
        words = {verdict.name.lower(): found[verdict] for verdict in Verdict}
        rows.append(
            {"name": name, "n": N, **words, "ratio": float(np.median(ratios)), "pairs": float(np.median(pairs))}
        )
    equal, five, ten = rows
    targets = [
        Target.share("equal steps called faster or slower", equal["faster"] + equal["slower"], N, 0.05),
        Target.share("5 % more work found", five["slower"], N, 0.9, at_least=True),
        Target.share("10 % more work found", ten["slower"], N, 0.99, at_least=True),
        Target.counted("more work called faster", five["faster"] + ten["faster"], 0),
    ]
    show("comparison", rows, ("name", "n", "faster", "slower", "same", "unclear", "ratio", "pairs"), targets)
