"""How often the rule that says faster is right on this machine: of 200 comparisons of equal steps, of 5 % and of 10 %
more work.

A step is a row of small matrix products, all on the same arrays: one more product in twenty is 5 % more work, whatever
the machine.
"""

import time
from collections import Counter
from collections.abc import Callable

import numpy as np

from benchmarks.report import Target, note, show
from lib.timing.comparison import Verdict, compare
from lib.timing.measurement import Config

N = 200
PRODUCTS, SIDE = 20, 48
CONFIG = Config(warm_up_s=0.02, max_time_s=2.0)
MORE = {"equal": 0, "slower-5": PRODUCTS // 20, "slower-10": PRODUCTS // 10}


def step_of(n_products: int) -> Callable[[], object]:
    a, b, out = (np.full((SIDE, SIDE), value, np.float32) for value in (0.5, 0.25, 0.0))

    def step() -> object:
        for _ in range(n_products):
            np.matmul(a, b, out)
        return out

    return step


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
