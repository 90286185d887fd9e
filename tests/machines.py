"""Exports of imaginary machines, for tests of code that reads exports: from a real store, with invented figures."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from lib.model.backends.base import Epoch, no_parameters
from lib.model.backends.registry import Runtime, versions
from lib.model.spec import Network, Training
from lib.sweeps.experiments.backend_race import EPOCHS_TRIED, RATES_TRIED, SEEDS, TUNED_ON
from lib.sweeps.storage.records import Curve, Key, Kind, Record
from lib.sweeps.storage.store import Store, export_to
from lib.timing.measurement import Ended, Measurement

CARD, PROCESSOR = "Eniac · 8 cores · 16 GiB · Imaginary 9000", "Colossus · 4 cores · AVX2 · 8 GiB · no GPU"
SIZES = (1, 32, 256, 512, 4096)
# Seconds of each part of a step; the parts add up.
PARTS = dict(
    zip(
        ("step", "busy", "returns", "transfer", "many", "many-tiny", "python", "call"),
        (1e-4, 1e-4, 1e-5, 1e-5, 7e-5, 1e-5, 1e-5, 8e-5),
        strict=True,
    )
)


def records(line: str, epoch_s: float, runtimes: list[Runtime], warnings: tuple[str, ...] = ()) -> list[Record]:
    """A race with epochs of about `epoch_s`, each runtime twice as slow as the last; and one step's parts."""
    found = []

    def add(kind: str, subject: dict, blocks: tuple[float, ...], runtime: Runtime) -> None:
        record = Record.of(kind, subject, Measurement(blocks, 1, Ended.CAP, warnings=warnings), versions(runtime))
        found.append(replace(record, machine=line[:5], machine_line=line, measured_at="2026-11-01T10:00:00+00:00"))

    for number, runtime in enumerate(runtimes):
        of = runtime.subject
        seconds = epoch_s * 2**number
        networks = [(Network((128,)), size) for size in SIZES] + [
            (Network.parse(t), 32) for t in ("256", "128→64", "256→128→64")
        ]
        for network, size in networks:
            subject = of | {
                "batch_size": size,
                "hidden": network.label,
                "evaluation_s": 0.01,
                "first_call_s": 0.5,
                "scaled": 0,
            }
            for times in (0.95, 1.0, 1.05):  # three repetitions
                add(Kind.RACE, subject, (times * seconds,), runtime)
        for part, part_s in PARTS.items():
            subject = {
                "examination": "parts",
                "by": runtime.backend,
                "device": runtime.device,
                "hidden": "128",
                "batch_size": 32,
                "name": part,
                "work": 1.0,
            }
            add(Kind.ANATOMY, subject, (part_s,) * 3, runtime)
        for count in (1, 8):
            for strategy in ("sequential", "vmap"):
                subject = {
                    "strategy": strategy,
                    "device": runtime.device,
                    "count": count,
                    "batch_size": 32,
                    "hidden": "128",
                }
                add(Kind.MODELS, subject, (0.01 / count, 0.01 / count, 0.01 / count), runtime)
    return found


def write(path: Path, line: str, epoch_s: float, runtimes: list[Runtime], curves: bool = False, **options) -> Path:
    store = Store(path.with_suffix(".sqlite"))
    for record in records(line, epoch_s, runtimes, **options):
        store.add(record)
    if curves:
        for size in (32, 4096):
            for rate in RATES_TRIED[size]:
                for seed in (TUNED_ON, *SEEDS):
                    training = Training(Network((128,)), rate, size, EPOCHS_TRIED[size], seed)
                    epochs = tuple(
                        Epoch(e, 1, 0.2, 0.9 + 0.01 * (e + (size == 32)), 0.1, 0.01, no_parameters)
                        for e in range(EPOCHS_TRIED[size])
                    )
                    store.put(Key(training, Runtime(), "mnist", "v"), Curve(0.1, epochs, np.zeros(0, np.float32)))
    export_to(path, store, {"machine": line})
    if curves:
        content = json.loads(path.read_text())
        for row in content["curves"]:
            row["machine"] = line[:5]
        path.write_text(json.dumps(content))
    return path
