"""What is stored: trainings' curves with what they depend on, and measurements with what is needed to judge them."""

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum

import numpy as np

from lib.model.backends.base import Epoch
from lib.model.backends.fingerprint import source_digest
from lib.model.backends.registry import TRAINERS, Runtime
from lib.model.hardware.machine import clocks, machine_id, this_machine
from lib.model.spec import N_CLASSES, N_PIXELS, Training
from lib.timing.measurement import Ended, Measurement


class Kind(StrEnum):
    """What was measured. Stored files hold these values, so they never change."""

    RACE = "race"
    ANATOMY = "anatomy"
    CEILING = "ceiling"
    MODELS = "models"
    SWEEP = "sweep"
    STEP_TIME = "pace"
    OPERATION = "operation"
    PIPELINE = "pipeline"
    FAILURE = "failure"  # to measure something: it has no seconds


@dataclass(frozen=True)
class Curve:
    """One training: its epochs and losses, and when and where it was timed.

    `losses` is float32, (steps / every,) rounded up: the loss of each step, or means of `every` steps.
    """

    first_call_s: float
    epochs: tuple[Epoch, ...]
    losses: np.ndarray
    measured_at: str = ""  # ISO 8601, UTC
    machine: str = ""
    every: int = 1
    together: int = 1  # networks that shared the seconds equally
    warnings: tuple[str, ...] = ()  # why its seconds are untrustworthy

    def cut(self, n_epochs: int) -> "Curve":
        """The curve as if training, which is deterministic, had ended after at most `n_epochs`."""
        steps = sum(epoch.steps for epoch in self.epochs[:n_epochs])
        return replace(self, epochs=self.epochs[:n_epochs], losses=self.losses[: -(-steps // self.every)])

    def thinned(self, points: int) -> "Curve":
        """The curve with at most `points` losses, as means of groups of steps; not finite where training diverged."""
        width = -(-len(self.losses) // points)
        if width <= 1:
            return self
        full = len(self.losses) // width * width
        with np.errstate(over="ignore"):
            means = self.losses[:full].reshape(-1, width).mean(axis=1)
        rest = self.losses[full:]
        means = np.append(means, rest.mean()).astype(np.float32) if rest.size else means
        return replace(self, losses=means, every=width * self.every)

    def lasts(self, n_epochs: int) -> bool:
        """Whether it holds all of a training of `n_epochs`: it is as long, or diverged before."""
        return len(self.epochs) >= n_epochs or (bool(self.epochs) and self.epochs[-1].diverged_step is not None)


_BEFORE = {
    "precision": "float32",
    "inputs": N_PIXELS,
    "classes": N_CLASSES,
}  # what records of older versions lack


def this_command() -> str:
    """This program's command line, without folders, at most 200 characters."""
    words = list(getattr(sys, "orig_argv", sys.argv))[1:]
    shown = [word if word.partition("/")[0] in TRAINERS else os.path.basename(word) for word in words]
    return " ".join(["python", *shown])[:200]


@dataclass(frozen=True)
class Record:
    """One measurement, with everything needed to judge it years later.

    By default it is of this machine, code and moment. Seconds are of whole blocks, as in `Measurement`.
    """

    kind: str  # a `Kind`, or another version's
    subject: Mapping[str, str | int | float]  # what was measured: backend, device, batch_size, …
    block_s: tuple[float, ...]  # seconds of each block, in the order of measurement
    steps_per_block: int
    ended: str
    warnings: tuple[str, ...] = ()
    versions: str = ""
    machine: str = field(default_factory=machine_id)
    machine_line: str = field(default_factory=lambda: this_machine().line)
    sources: str = field(default_factory=source_digest)
    measured_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))
    clocks: str = field(default_factory=clocks)  # of the processor and the graphics cards at that time
    command: str = field(default_factory=this_command)

    @classmethod
    def of(
        cls, kind: str, subject: Mapping[str, str | int | float], measured: Measurement, versions: str = ""
    ) -> "Record":
        """The record of a measurement made just now on this machine.

        Args:
            kind: A `Kind`.
            subject: What was measured, with names as in `lib.sweeps.storage.rows.SUBJECTS`.
            measured: Its blocks are stored unchanged.
            versions: Of the libraries used.
        """
        return cls(
            kind,
            dict(subject),
            measured.block_s,
            measured.steps_per_block,
            measured.ended.name,
            measured.warnings,
            versions,
        )

    def says(self, name: str) -> str | int | float | None:
        """The subject's value of this name, or what an older version meant without it."""
        return self.subject.get(name, _BEFORE.get(name))

    def is_about(self, subject: Mapping[str, object]) -> bool:
        """Whether its subject agrees with this one; it may say more."""
        return all(self.says(name) == value for name, value in subject.items())

    @property
    def measurement(self) -> Measurement:
        return Measurement(self.block_s, self.steps_per_block, Ended[self.ended], warnings=self.warnings)

    @property
    def id(self) -> str:
        """First 32 hexadecimal digits of the content's SHA-256: equal content has one id on every machine."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Key:
    """Everything that a curve depends on, besides this machine and the source of `lib`.

    The number of epochs is not part of it: a shorter training is the start of a longer one.
    """

    training: Training
    runtime: Runtime
    data_digest: str
    versions: str

    def digest(self) -> str:
        """SHA-256 of all of it, of this machine and of the source of `lib`; 64 hexadecimal digits."""
        parts = (
            {name: value for name, value in self.training.described().items() if name != "epochs"},
            asdict(self.runtime),
            self.data_digest,
            self.versions,
            source_digest(),
            machine_id(),
        )
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
