"""Our backends against other people's, each in a process of its own: same network, images, order and precision.

Each with the number of threads that it is quickest with at this batch size, which a short search finds beforehand. In
turns: in each round every participant trains one epoch, in random order, while the others idle. So a
ratio is taken within a round, where the machine was the same for both, and its interval is that of the median of the
rounds' ratios. The first epoch, with what is compiled in it, is left out. Only `train_s` counts: no evaluation. Where a
library has the loop, every epoch has the order of the first.
"""

import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Protocol, cast

import numpy as np
import psutil

from benchmarks.peer import PEERS, Peer, unavailable
from benchmarks.peer.process import PeerFailed, PeerProcess
from benchmarks.report import RATIO, SECONDS, Row, Target, note, row, show
from lib.model.hardware.machine import usable_cores
from lib.model.spec import MAX_EPOCHS, Network, Training
from lib.sweeps.workers.queue import MachineLock
from lib.timing.comparison import median_interval

NETWORK = Network((128,))
ROUNDS = {32: 9, 512: 12, 4096: 12}  # nine are the least whose interval leaves the extremes out
SEARCH_ROUNDS, SEARCH_S = 3, 2.0  # whichever ends first: a long epoch tells enough by itself
LEARNING_RATE = 0.1
REFERENCE = "numpy"  # whose losses and accuracies the others' are held against
SAME_LOSS, SAME_ACCURACY = 1e-3, 0.01
SETTLE_S = 0.1  # the threads of most libraries look for more work for a while after their last
IDLE_SHARE = 0.05  # of one core, by all who wait: more than this is worth telling
READY_LIMIT_S, FIRST_LIMIT_S, REPETITION_LIMIT_S = 180, 240, 60
BEST_TARGETS = {32: 3.5, 512: 2.5, 4096: 2.2}
KERAS_TARGET = 8.0


class Asked(Protocol):
    """What the rounds need of a participant's process."""

    def ask(self, question: Mapping[str, object], limit_s: float) -> dict: ...


@dataclass
class Record:
    """What one participant did at one batch size."""

    epoch_s: list[float] = field(default_factory=list)  # one a round
    losses: list[float] = field(default_factory=list)  # of the first steps
    accuracies: dict[int, float] = field(default_factory=dict)  # by epoch
    busy_others: list[float] = field(default_factory=list)  # cores that the waiting ones used meanwhile
    failed: str | None = None


def main() -> None:
    gaps = {key: gap for key, peer in PEERS.items() if (gap := unavailable(peer)) is not None}
    missing = {key: f"{gap.reason}; {gap.remedy}" for key, gap in gaps.items()}
    rows: list[Row] = []
    with MachineLock():
        threads = best_threads([key for key in PEERS if key not in missing])
        for batch_size, rounds in ROUNDS.items():
            with started({key: (PEERS[key], counts[batch_size]) for key, counts in threads.items()}) as (field, failed):
                records = measure(field, batch_size, rounds, np.random.default_rng(batch_size))
            rows += rows_of(records, missing | failed, batch_size, threads)
            note(f"batch size {batch_size}: {rounds} rounds")
    columns = (
        "peer",
        "batch_size",
        *SECONDS,
        "threads",
        *RATIO,
        "accuracy",
        "epochs",
        "loss_difference",
        "same",
        "busy_others",
    )
    show("peers", rows, columns, targets(rows))
    for line in remarks(rows):
        print(f"  {line}")


def best_threads(keys: Sequence[str]) -> dict[str, dict[int, int]]:
    """The number of threads that each participant is quickest with, by batch size: one, two, four … or all cores."""
    cores, rng = usable_cores(), np.random.default_rng(0)
    found: dict[str, dict[int, int]] = {}
    for key in keys:
        counts = {str(n): (PEERS[key], n) for n in {cores, *(2**k for k in range(cores.bit_length()))}}
        with started(counts) as (field, _failed):
            found[key] = {
                batch_size: quickest(measure(field, batch_size, SEARCH_ROUNDS, rng, SEARCH_S), cores)
                for batch_size in ROUNDS
            }
        note(f"{PEERS[key].label}: threads by batch size {found[key]}")
    return found


def quickest(records: Mapping[str, Record], otherwise: int) -> int:
    """The number of threads with the shortest epoch, which nothing else lengthened; `otherwise` where none trained."""
    trained = {int(count): min(r.epoch_s) for count, r in records.items() if r.epoch_s}
    return min(trained, key=trained.__getitem__, default=otherwise)


@contextmanager
def started(who: Mapping[str, tuple[Peer, int]]) -> Iterator[tuple[dict[str, PeerProcess], dict[str, str]]]:
    """The participants that start with this number of threads, started together to save time, and why the
    others do not."""
    with ExitStack() as stack:
        processes = {key: PeerProcess(peer, threads=threads) for key, (peer, threads) in who.items()}
        for process in processes.values():
            stack.callback(process.close)
        failed = {}
        for key, process in processes.items():
            try:
                process.answer(READY_LIMIT_S)
            except PeerFailed as error:
                failed[key] = str(error)
        yield {key: process for key, process in processes.items() if key not in failed}, failed


def measure(
    field: Mapping[str, Asked], batch_size: int, rounds: int, rng: np.random.Generator, enough_s: float = math.inf
) -> dict[str, Record]:
    """Train in turns, for a number of rounds, or until all together have trained for `enough_s`.

    A participant that fails is left out at this batch size; the others go on.
    """
    training = Training(NETWORK, LEARNING_RATE, batch_size, MAX_EPOCHS)
    start = start_of(training)
    records = {key: Record() for key in field}
    for key, record in records.items():
        _repetition(field, key, record, start, FIRST_LIMIT_S)
    for _ in range(rounds):
        for key in rng.permutation(sorted(field)):
            record = records[key]
            if record.failed is None and (answer := _repetition(field, key, record, {"do": "go"}, REPETITION_LIMIT_S)):
                record.epoch_s.append(answer["train_s"])
        if sum(sum(record.epoch_s) for record in records.values()) >= enough_s:
            break
    return records


def start_of(training: Training) -> dict[str, object]:
    """The question that begins a training."""
    return {
        "do": "start",
        "hidden": training.network.hidden,
        "learning_rate": training.learning_rate,
        "batch_size": training.batch_size,
        "epochs": training.epochs,
        "seed": training.seed,
    }


def _repetition(
    field: Mapping[str, Asked], key: str, record: Record, question: Mapping[str, object], limit_s: float
) -> dict | None:
    """One question to one participant; None where it failed."""
    time.sleep(SETTLE_S)
    others = [process.pid for other, process in field.items() if other != key and isinstance(process, PeerProcess)]
    before, busy_s = time.perf_counter(), _processor_s(others)
    try:
        answer = field[key].ask(question, limit_s)
    except PeerFailed as error:
        record.failed = str(error)
        return None
    record.busy_others.append((_processor_s(others) - busy_s) / max(time.perf_counter() - before, 1e-9))
    if question["do"] == "start":
        record.losses = answer["losses"]
    record.accuracies[answer["epoch"]] = answer["accuracy"]
    return answer


def _processor_s(pids: Sequence[int]) -> float:
    """Processor seconds that these processes have used; one that has ended uses none."""
    total_s = 0.0
    for pid in pids:
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.Error:
            continue
        total_s += times.user + times.system
    return total_s


def best_of_ours(records: Mapping[str, Record]) -> str | None:
    """Ours with the smallest median, among those that finished every round that anybody did."""
    most = max((len(record.epoch_s) for record in records.values()), default=0)
    ours = [key for key, r in records.items() if PEERS[key].ours and r.epoch_s and len(r.epoch_s) == most]
    return min(ours, key=lambda key: statistics.median(records[key].epoch_s), default=None)


def ratio_of(peer_s: Sequence[float], ours_s: Sequence[float]) -> tuple[float, float, float]:
    """Median of the rounds' ratios, peer to ours, and its interval.

    A peer that failed has fewer rounds: those count.
    """
    ratios = [peer / ours for peer, ours in zip(peer_s, ours_s, strict=False)]
    return (float(statistics.median(ratios)), *median_interval(ratios))


def rows_of(
    records: Mapping[str, Record], missing: Mapping[str, str], batch_size: int, threads: Mapping[str, Mapping[int, int]]
) -> list[Row]:
    """A row for each participant, those that could not run included."""
    best = best_of_ours(records)
    rows = []
    for key, peer in PEERS.items():
        record = records.get(key, Record(failed=missing.get(key, "it did not take part")))
        facts = row("peers", record.epoch_s, None, batch_size)
        facts |= {
            "peer": key,
            "label": peer.label,
            "ours": peer.ours,
            "best_of_ours": key == best,
            "threads": threads[key][batch_size] if key in threads else None,
            "unavailable": record.failed,
            "peer_versions": peer.versions,
            "epoch_s": record.epoch_s,
            "busy_others": statistics.median(record.busy_others) if record.busy_others else None,
        }
        if record.epoch_s and best is not None:
            facts |= dict(zip(RATIO, ratio_of(record.epoch_s, records[best].epoch_s), strict=True))
        rows.append(facts | sameness(record, records.get(REFERENCE)))
    return rows


def sameness(record: Record, reference: Record | None) -> Row:
    """How far losses and accuracy are from the reference's after the same steps, and whether that is the same
    training."""
    epoch = max(record.accuracies, default=None)
    accuracy = None if epoch is None else record.accuracies[epoch]
    facts: Row = {"accuracy": accuracy, "epochs": None if epoch is None else epoch + 1}
    common = [e for e in record.accuracies if reference is not None and e in reference.accuracies]
    if reference is None or not common or not record.losses:
        return facts | {"loss_difference": None, "accuracy_difference": None, "same": None}
    loss = max(abs(a - b) for a, b in zip(record.losses, reference.losses, strict=False))
    difference = record.accuracies[max(common)] - reference.accuracies[max(common)]
    same = loss <= SAME_LOSS and abs(difference) <= SAME_ACCURACY
    return facts | {"loss_difference": loss, "accuracy_difference": difference, "same": same}


def targets(rows: Sequence[Row]) -> list[Target]:
    """What the design promises, against the peer that comes nearest."""
    found = []
    for batch_size, limit in BEST_TARGETS.items():
        others = [r for r in rows if r["batch_size"] == batch_size and not r["ours"] and "ratio" in r]
        nearest = min(others, key=lambda r: cast(float, r["ratio"]), default=None)
        label = "none measured" if nearest is None else nearest["label"]
        found.append(_over(f"batch size {batch_size}, our best over the best peer ({label})", nearest, limit))
    keras = (r for r in rows if (r["peer"], r["batch_size"]) == ("keras-tensorflow", 32) and "ratio" in r)
    return [*found, _over("batch size 32, our best over Keras on TensorFlow", next(keras, None), KERAS_TARGET)]


def _over(what: str, peer: Row | None, limit: float) -> Target:
    return Target.in_row(what, peer, RATIO, limit, "×", True)


def remarks(rows: Sequence[Row]) -> list[str]:
    """Who was our best, who is missing and why, and what would make a figure doubtful."""
    found = [f"Our best at batch size {r['batch_size']}: {r['label']}" for r in rows if r["best_of_ours"]]
    failures: dict[tuple[object, object], list[str]] = {}
    for r in rows:
        if r["unavailable"]:
            failures.setdefault((r["label"], r["unavailable"]), []).append(str(r["batch_size"]))
        if r["same"] is False:
            found.append(
                f"{r['label']}, batch size {r['batch_size']}: not the same training (loss {r['loss_difference']:.2g}, "
                f"accuracy {r['accuracy_difference']:+.2g} from {REFERENCE}'s); its seconds cannot be compared"
            )
        if isinstance(busy := r["busy_others"], float) and busy > IDLE_SHARE:
            found.append(
                f"{r['label']}, batch size {r['batch_size']}: those who waited used {busy:.2f} cores meanwhile"
            )
    found += [f"{label}, batch size {', '.join(sizes)}: {why}" for (label, why), sizes in failures.items()]
    return found
