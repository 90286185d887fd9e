"""The cost of another process's busy core: seconds per epoch with and without it, by backend and thread settings.

In each round every setting trains alone and then next to a process that keeps one core busy, in a new random order.
Both times are compared with the same round's epoch alone with the workers' settings: `alone_times` is the cost of a
setting on an idle machine, `busy_times` the cost of the busy core with it, as medians of the rounds' ratios with
intervals. A round in which anything else disturbed a time (`Watch`) does not count for that setting.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import numpy as np

from benchmarks.peer import PEERS, unavailable
from benchmarks.peer.process import PeerProcess
from benchmarks.peers import FIRST_LIMIT_S, NETWORK, READY_LIMIT_S, REPETITION_LIMIT_S, start_of
from benchmarks.report import LeftOut, Row, Target, note, show
from lib.model.spec import MAX_EPOCHS, N_TRAIN, Training
from lib.sweeps.workers.queue import MachineLock
from lib.timing.comparison import Comparison, compared
from lib.timing.measurement import Watch

BATCH_SIZES = (32, 512)
ROUNDS = 9  # the smallest number whose interval excludes the extremes
MOST_ROUNDS = 2 * ROUNDS
SETTLE_S = 0.1  # lets the scheduler place the new process and other threads go to sleep
FOREIGN_LIMIT_S = 120.0  # it ends by itself even if the benchmark dies
BUSY_LIMIT = 2.2
AS_IT_IS, ONE_THREAD = "as it is", "one thread"
_COMMON = (AS_IT_IS, ONE_THREAD)
# Two libraries let us set how threads wait. OpenBLAS, in NumPy's wheel, has its own threads, which keep their core for
# 2ⁿ ticks, n from 4 to 30, by default 28 (OpenBLAS, driver/others/blas_server.c). OpenMP is GCC's in PyTorch's wheel,
# so that Intel's KMP_BLOCKTIME should do nothing. The threads of XLA and TensorFlow sleep; our Numba kernels choose
# how long they wait.
SETTINGS: Mapping[str, tuple[str, ...]] = {
    "numpy": (*_COMMON, *(f"OPENBLAS_THREAD_TIMEOUT={ticks}" for ticks in (4, 14, 18)), "OMP_WAIT_POLICY=PASSIVE"),
    "torch-eager": (
        *_COMMON,
        "OMP_WAIT_POLICY=PASSIVE",
        *(f"GOMP_SPINCOUNT={spins}" for spins in (1_000, 10_000)),
        "KMP_BLOCKTIME=0",
    ),
    "jax-epoch": _COMMON,
    "numba": _COMMON,
    "keras-tensorflow": _COMMON,
}


def variables(setting: str) -> dict[str, str]:
    """The environment variable of a setting written as “NAME=value”; empty for other settings."""
    name, sign, value = setting.partition("=")
    return {name: value} if sign else {}


@dataclass
class Pairs:
    """Seconds per epoch of one setting, by round: alone, and next to the busy process."""

    alone_s: dict[int, float] = field(default_factory=dict)
    busy_s: dict[int, float] = field(default_factory=dict)


def main() -> None:
    rows, left_out = [], LeftOut()
    with MachineLock():
        for key, settings in SETTINGS.items():
            if (gap := unavailable(PEERS[key])) is not None:
                left_out.append(f"{PEERS[key].label}: {gap.reason}; {gap.remedy}")
                continue
            for batch_size in BATCH_SIZES:
                with left_out.unless_it_works(f"{PEERS[key].label}, batch size {batch_size}"):
                    rows += rows_of(key, batch_size, measure(key, settings, batch_size))
                    note(f"{PEERS[key].label}, batch size {batch_size}")
    columns = (
        "backend",
        "setting",
        "batch_size",
        "alone_s",
        "busy_s",
        "alone_times",
        "alone_low",
        "alone_high",
        "busy_times",
        "busy_low",
        "busy_high",
        "n",
    )
    show("busy", rows, columns, targets(rows), left_out)


@contextmanager
def a_busy_core() -> Iterator[None]:
    """Keep one core busy with an unrelated process during this block, for at most `FOREIGN_LIMIT_S`."""
    code = f"import time; end = time.monotonic() + {FOREIGN_LIMIT_S}\nwhile time.monotonic() < end: pass"
    process = subprocess.Popen([sys.executable, "-S", "-c", code], start_new_session=True)
    try:
        time.sleep(SETTLE_S)
        yield
    finally:
        process.kill()
        process.wait()


def measure(key: str, settings: Sequence[str], batch_size: int) -> dict[str, Pairs]:
    """Train with the settings in turns until each has `ROUNDS` undisturbed pairs, for at most `MOST_ROUNDS`."""
    processes = {name: PeerProcess(PEERS[key], variables(name), 1 if name == ONE_THREAD else None) for name in settings}
    found, rng = {name: Pairs() for name in settings}, np.random.default_rng(batch_size)
    try:
        for process in processes.values():
            process.answer(READY_LIMIT_S)
        for process in processes.values():
            process.ask(start_of(Training(NETWORK, 0.1, batch_size, MAX_EPOCHS)), FIRST_LIMIT_S)
        for number in range(MOST_ROUNDS):
            if min(len(pairs.busy_s) for pairs in found.values()) >= ROUNDS:
                break
            for name in rng.permutation(sorted(settings)):
                _one_round(processes[name], found[name], number, N_TRAIN // batch_size)
    finally:
        for process in processes.values():
            process.close()
    return found


def _one_round(process: PeerProcess, pairs: Pairs, number: int, steps_per_epoch: int) -> None:
    with suppress(_Disturbed):
        alone_s = _epoch_s(process, steps_per_epoch)
        pairs.alone_s[number] = alone_s
        with a_busy_core():
            pairs.busy_s[number] = _epoch_s(process, steps_per_epoch)


class _Disturbed(Exception):
    """Another program ran during the measurement."""


def _epoch_s(process: PeerProcess, steps_per_epoch: int) -> float:
    time.sleep(SETTLE_S)
    watch = Watch()  # the busy process is our child, so it does not count as a disturbance
    answer = process.ask({"do": "go"}, REPETITION_LIMIT_S)
    if watch.so_far().flags:
        raise _Disturbed
    return answer["train_s"] / answer["steps"] * steps_per_epoch


def rows_of(key: str, batch_size: int, found: Mapping[str, Pairs]) -> list[Row]:
    """A row per setting.

    Raises:
        RuntimeError: A setting had no undisturbed round.
    """
    rows: list[Row] = []
    for name, pairs in found.items():
        alone = _ratio(pairs.alone_s, found[AS_IT_IS].alone_s)
        busy = _ratio(pairs.busy_s, found[AS_IT_IS].alone_s)
        if alone is None or busy is None:
            raise RuntimeError(f"{name}: other programs disturbed each of {MOST_ROUNDS} rounds")
        rows.append(
            {
                "name": "busy",
                "backend": key,
                "setting": name,
                "batch_size": batch_size,
                "alone_s": statistics.median(pairs.alone_s.values()),
                "busy_s": statistics.median(pairs.busy_s.values()),
                "alone_times": alone.ratio,
                "alone_low": alone.low,
                "alone_high": alone.high,
                "busy_times": busy.ratio,
                "busy_low": busy.low,
                "busy_high": busy.high,
                "n": busy.n,
            }
        )
    return rows


def _ratio(first: Mapping[int, float], second: Mapping[int, float]) -> Comparison | None:
    common = [number for number in first if number in second]
    if not common:
        return None
    return compared([first[number] for number in common], [second[number] for number in common], paired=True)


def targets(rows: list[Row]) -> list[Target]:
    """Limits for the settings that workers use; the others only show what they would gain."""
    shipped = {(r["backend"], r["batch_size"]): r for r in rows if r["setting"] == AS_IT_IS}
    columns = ("busy_times", "busy_low", "busy_high")
    return [
        Target.in_row(
            f"{key}, batch size {batch_size}, beside a busy core, over alone",
            shipped.get((key, batch_size)),
            columns,
            BUSY_LIMIT,
            "×",
        )
        for key in SETTINGS
        for batch_size in BATCH_SIZES
    ]
