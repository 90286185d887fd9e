"""This machine's best float32 product rate: `python -m benchmarks.ceiling` answers each line of its standard input.

It multiplies two 2048² matrices by XLA, in a process with the JAX worker's environment, so that the floor and the
figures compared with it use the same library, threads and instructions.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from os import environ
from pathlib import Path

from lib.model.backends.registry import Runtime, worker_environment

SIDE = 2048
REPEATS = 20


class Ceiling:
    def __init__(self, process: subprocess.Popen) -> None:
        self._process = process
        self.flops_per_s = 0.0

    def measure(self) -> None:
        assert self._process.stdin is not None, "opened with pipes"
        assert self._process.stdout is not None, "opened with pipes"
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the process that measures the product rate ended; its message is above")
        self.flops_per_s = max(self.flops_per_s, float(answer))


@contextmanager
def ceiling() -> Iterator[Ceiling]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.ceiling"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parent.parent,
        env=environ | worker_environment(Runtime(), None),
    )
    try:
        yield Ceiling(process)
    finally:
        process.kill()
        process.communicate()


def _answer() -> None:
    import jax
    import numpy as np

    rng = np.random.default_rng(0)
    a, b = (jax.device_put(rng.standard_normal((SIDE, SIDE), np.float32)) for _ in range(2))
    product = jax.jit(lambda a, b: a @ b)
    product(a, b).block_until_ready()
    for _ in sys.stdin:
        best_s = float("inf")
        for _ in range(REPEATS):
            before = time.perf_counter()
            product(a, b).block_until_ready()
            best_s = min(best_s, time.perf_counter() - before)
        print(2 * SIDE**3 / best_s, flush=True)


if __name__ == "__main__":
    _answer()
