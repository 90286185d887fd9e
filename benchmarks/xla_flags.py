"""What XLA's own flags would change: epochs of our compiled program with each, against those with a worker's flags.

Each in a process of its own, in turns, as in `peers`. `ratio` is the median of the rounds' ratios to a worker's own
flags, with its interval and the verdict of the one rule (`lib.timing.comparison`). A flag counts only where it trains
the same: losses of the first steps within `ROUNDING`, as in the agreement tests.
"""

from collections.abc import Mapping
from contextlib import ExitStack

import numpy as np

from benchmarks.peer import PEERS
from benchmarks.peer.process import PeerProcess, environment
from benchmarks.peers import READY_LIMIT_S, Record, measure
from benchmarks.report import RATIO, SECONDS, LeftOut, Row, note, row, show
from lib.sweeps.workers.queue import MachineLock
from lib.timing.comparison import Verdict, compared

BACKEND = "jax-epoch"
BATCH_SIZES = (1, 32, 512, 4096)
ROUNDS = 9  # the least whose interval leaves the extremes out
ROUNDING = 1e-5
AS_IT_IS, ONE_THREAD = "as it is", "one thread"
# A worker's own are in `lib.model.backends.environment_variables`; of two for the same thing the last counts. Where
# what is
# given once more differs from what is, the machine was not quiet.
FLAGS: Mapping[str, str] = {
    AS_IT_IS: "",
    "as it is, once more": "--xla_cpu_experimental_ynn_fusion_type=-reduce",
    "YNN off": "--xla_cpu_experimental_ynn_fusion_type=",
    "vectors of 512 bits": "--xla_cpu_prefer_vector_width=512",
    "oneDNN": "--xla_cpu_experimental_onednn_custom_call=true --xla_cpu_use_onednn=false"
    " --xla_cpu_experimental_ynn_fusion_type=invalid --xla_cpu_use_xnnpack=false",
    ONE_THREAD: "",
}


def main() -> None:
    rows: list[Row] = []
    left_out = LeftOut()
    with MachineLock(), ExitStack() as stack:
        field: dict[str, PeerProcess] = {}
        for name in FLAGS:
            process = started(name)
            stack.callback(process.close)
            with left_out.unless_it_works(name):
                process.answer(READY_LIMIT_S)
                field[name] = process
        for batch_size in BATCH_SIZES:
            records = measure(field, batch_size, ROUNDS, np.random.default_rng(batch_size))
            rows += rows_of(records, batch_size, left_out)
            note(f"batch size {batch_size}")
    columns = ("setting", "batch_size", *SECONDS, *RATIO, "verdict", "loss_difference", "same", "accuracy")
    show("xla_flags", rows, columns, [], left_out)
    for line in remarks(rows):
        print(f"  {line}")


def started(setting: str) -> PeerProcess:
    """A process that trains with the flags of this setting, over a worker's own; it is not ready yet."""
    peer, threads = PEERS[BACKEND], 1 if setting == ONE_THREAD else None
    flags = f"{environment(peer, threads=threads)['XLA_FLAGS']} {FLAGS[setting]}".strip()
    return PeerProcess(peer, {"XLA_FLAGS": flags}, threads)


def rows_of(records: Mapping[str, Record], batch_size: int, left_out: LeftOut) -> list[Row]:
    """A row for each setting that trained in all rounds; the others are left out by name."""
    rows, base = [], records.get(AS_IT_IS, Record(failed="it did not start"))
    if base.failed is not None:
        left_out.append(f"batch size {batch_size}: nothing to compare with: {base.failed}")
        return []
    for name, record in records.items():
        if record.failed is not None:
            left_out.append(f"{name}, batch size {batch_size}: {record.failed}")
            continue
        found = compared(record.epoch_s, base.epoch_s, paired=True)
        difference = max(abs(a - b) for a, b in zip(record.losses, base.losses, strict=True))
        rows.append(
            row("xla_flags", record.epoch_s, BACKEND, batch_size)
            | {
                "setting": name,
                "flags": FLAGS[name],
                "ratio": found.ratio,
                "ratio_low": found.low,
                "ratio_high": found.high,
                "verdict": found.verdict.value,
                "loss_difference": difference,
                "same": difference <= ROUNDING,
                "accuracy": record.accuracies[max(record.accuracies)] if record.accuracies else None,
            }
        )
    return rows


def remarks(rows: list[Row]) -> list[str]:
    """What changes results, and what wins."""
    found = []
    for r in rows:
        what = f"{r['setting']}, batch size {r['batch_size']}"
        if not r["same"]:
            found.append(f"{what}: not the same training: losses differ by {r['loss_difference']:.2g}")
        elif r["verdict"] == Verdict.FASTER.value:
            found.append(f"{what}: {r['ratio']:.2f} times the time ({r['ratio_low']:.2f} to {r['ratio_high']:.2f})")
    return found
