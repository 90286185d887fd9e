"""The stored data: learning curves with everything they depend on, and measurements with everything to judge them by.

A row of the store maps columns to values. Disks fail, and imports come from anywhere, so msgspec checks the values
against the types in `COLUMNS`; an invalid one raises ValueError, whose text says what was expected.
"""

import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta, ValidationError, convert, defstruct

from lib.model.backends.base import Epoch, no_parameters
from lib.model.backends.fingerprint import source_digest
from lib.model.backends.registry import ALL_DEVICES, PRECISIONS, TRAINERS, Runtime, versions
from lib.model.hardware.machine import clocks, machine_id, this_machine
from lib.model.spec import MAX_EPOCHS, N_CLASSES, N_PIXELS, DataSet, Network, Training
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
    FAILURE = "failure"  # of a measurement; has no seconds


@dataclass(frozen=True)
class Curve:
    """The result of one training, with the time and machine of measurement.

    `losses` is float32, (ceil(steps / every),): the loss of each step, or means over `every` steps.
    """

    first_call_s: float
    epochs: tuple[Epoch, ...]
    losses: np.ndarray
    measured_at: str = ""  # ISO 8601, UTC
    machine: str = ""
    every: int = 1
    together: int = 1  # networks that share the seconds equally
    warnings: tuple[str, ...] = ()  # why the seconds are unreliable

    def cut(self, n_epochs: int) -> "Curve":
        """Return the curve of the first `n_epochs`; equal to that of a shorter training, which is deterministic."""
        steps = sum(epoch.steps for epoch in self.epochs[:n_epochs])
        return replace(self, epochs=self.epochs[:n_epochs], losses=self.losses[: -(-steps // self.every)])

    def thinned(self, points: int) -> "Curve":
        """Average groups of steps, down to at most `points` losses; those of a diverged training may not be finite."""
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
        """Whether the curve covers a training of `n_epochs`: it is as long, or diverged earlier."""
        return len(self.epochs) >= n_epochs or (bool(self.epochs) and self.epochs[-1].diverged_step is not None)


_BEFORE = {"precision": "float32", "inputs": N_PIXELS, "classes": N_CLASSES}  # missing in records of older versions


def this_command() -> str:
    """Return this program's command line, without folders, at most 200 characters."""
    words = sys.orig_argv[1:]
    shown = [word if word.partition("/")[0] in TRAINERS else os.path.basename(word) for word in words]
    return " ".join(["python", *shown])[:200]


@dataclass(frozen=True)
class Record:
    """One measurement, with everything needed to judge it years later.

    The defaults describe this machine, code and moment. Seconds are of whole blocks, as in `Measurement`.
    """

    kind: str  # a `Kind`, or one of another version
    subject: Mapping[str, str | int | float]  # what was measured: backend, device, batch_size, …
    block_s: tuple[float, ...]  # in the order of measurement
    steps_per_block: int
    ended: str
    warnings: tuple[str, ...] = ()
    versions: str = ""
    machine: str = field(default_factory=machine_id)
    machine_line: str = field(default_factory=lambda: this_machine().line)
    sources: str = field(default_factory=source_digest)
    measured_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))
    clocks: str = field(default_factory=clocks)  # of the CPU and the graphics cards
    command: str = field(default_factory=this_command)

    @classmethod
    def of(
        cls, kind: str, subject: Mapping[str, str | int | float], measured: Measurement, versions: str = ""
    ) -> "Record":
        """Return the record of a measurement just made on this machine.

        Args:
            kind: A `Kind`.
            subject: What was measured, with names as in `SUBJECTS`.
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
        """Return a value of the subject, or its default in records of older versions."""
        return self.subject.get(name, _BEFORE.get(name))

    def is_about(self, subject: Mapping[str, object]) -> bool:
        """Whether the record's subject contains all of this one."""
        return all(self.says(name) == value for name, value in subject.items())

    @property
    def measurement(self) -> Measurement:
        return Measurement(self.block_s, self.steps_per_block, Ended[self.ended], warnings=self.warnings)

    @property
    def id(self) -> str:
        """First 32 hexadecimal digits of the content's SHA-256: equal content has the same id on every machine."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Key:
    """Everything that a curve depends on, except this machine and the source of `lib`, which `digest` adds.

    `digest` ignores the number of epochs, because a shorter training is the start of a longer one.
    """

    training: Training
    runtime: Runtime
    data_digest: str
    versions: str

    def digest(self) -> str:
        """SHA-256 of the key, this machine and the source of `lib`: 64 hexadecimal digits."""
        parts = (
            {name: value for name, value in self.training.described().items() if name != "epochs"},
            asdict(self.runtime),
            self.data_digest,
            self.versions,
            source_digest(),
            machine_id(),
        )
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def current(records: Sequence[Record], kind: Kind, subject: Mapping[str, object], runtime: Runtime) -> list[Record]:
    """Return the records of this kind, subject, machine, code and the runtime's current versions, oldest first."""
    here = (machine_id(), source_digest(), versions(runtime))
    found = [
        record
        for record in records
        if record.kind == kind
        and (record.machine, record.sources, record.versions) == here
        and record.is_about(subject)
    ]
    return sorted(found, key=lambda record: record.measured_at)


def undisturbed(records: Sequence[Record]) -> Sequence[Record]:
    """Return the records without warnings; all, if every record has some."""
    return [record for record in records if not record.warnings] or records


Row = Mapping[str, Any]

MAX_S = 1e9  # thirty years
MIN_S = 1e-12
MAX_NUMBER = 1e30  # operations or bytes per step
MAX_INTEGER = 2**53  # the largest that a JSON number holds exactly
LEAST_LOSS = -1e-3  # a mean cross-entropy is never negative, except for rounding

# These limits exclude NaN.
Seconds = Annotated[float, Meta(ge=0.0, le=MAX_S)]
Amount = Annotated[float, Meta(ge=0.0, le=MAX_NUMBER)]
Index = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Count = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]


def _object(**fields: Any) -> Any:
    """Define the type of a JSON object with exactly these fields; an optional field is a pair of type and default."""
    found = [(name, *kind) if isinstance(kind, tuple) else (name, kind) for name, kind in fields.items()]
    return defstruct("Object", found, forbid_unknown_fields=True, kw_only=True)


# The columns of each table and their types; JSON_COLUMNS are stored as JSON text.
JSON_COLUMNS = {"training", "epochs", "subject", "block_s", "warnings"}
COLUMNS: Mapping[str, Mapping[str, Any]] = {
    "curves": {
        "key": str,
        "training": _object(
            network=_object(hidden=list[Count], n_inputs=(Count, N_PIXELS), n_classes=(Count, N_CLASSES)),
            learning_rate=float,
            batch_size=Index,
            epochs=Index,
            seed=Index,
            data=(_object(digest=str, n_train=Count, n_validation=Count, chance=Share), None),
        ),
        "backend": str,
        "device": str,
        "precision": str,
        "data": str,
        "sources": str,
        "versions": str,
        "machine": str,
        "measured_at": str,
        "first_call_s": Seconds,
        "epochs": Annotated[
            list[
                _object(
                    epoch=Index,
                    steps=Index,
                    validation_loss=float,  # NaN if the training diverged
                    validation_accuracy=Share,
                    train_s=Seconds,
                    evaluation_s=Seconds,
                    diverged_step=Index | None,
                )
            ],
            Meta(max_length=MAX_EPOCHS),
        ],
        "losses": bytes,
        "n_bytes": int,
        "used_at": Annotated[int, Meta(ge=0)] | Annotated[float, Meta(ge=0.0, le=sys.float_info.max)],
        "every": Count,
        "together": Count,
        "warnings": list[str],
    },
    "measurements": {
        "id": str,
        "kind": str,
        "subject": dict[str, str | Annotated[float, Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)]],
        "machine": str,
        "machine_line": str,
        "sources": str,
        "versions": str,
        "measured_at": str,
        "block_s": list[Seconds],
        "steps_per_block": Count,
        "ended": Literal[tuple(Ended.__members__)],
        "warnings": list[str],
        "clocks": str,
        "command": str,
    },
}
# Columns that older versions lack: the version that added each, and its value for older rows.
ADDED: Mapping[str, Mapping[str, tuple[int, object]]] = {
    "curves": {"every": (3, 1), "together": (3, 1), "warnings": (5, "[]"), "precision": (6, "float32")},
    "measurements": {"clocks": (4, ""), "command": (4, "")},
}
# Required names in the subject of each kind, and (`_EVERY_SUBJECT`) optional ones for all kinds.
_DEVICE, _WORK = Literal[ALL_DEVICES], Annotated[float, Meta(ge=MIN_S, le=MAX_NUMBER)]
SUBJECTS: Mapping[str, Mapping[str, Any]] = {
    Kind.RACE: {"backend": str, "device": _DEVICE, "batch_size": Count, "hidden": str},
    Kind.ANATOMY: {"name": str, "work": _WORK},
    Kind.CEILING: {"library": str, "device": _DEVICE, "name": str, "work": _WORK},
    Kind.MODELS: {"strategy": str, "device": _DEVICE, "count": Count},
    Kind.SWEEP: {"method": str},
    Kind.STEP_TIME: {"first_call_s": Amount},
    Kind.OPERATION: {"operation": str, "by": str, "device": _DEVICE, "size": Count, "name": str, "work": _WORK},
    Kind.PIPELINE: {"backend": str, "device": _DEVICE, "hidden": str, "name": str, "work": _WORK},
}
_EVERY_SUBJECT = {
    "work": _WORK,
    "first_call_s": Amount,
    "evaluation_s": Amount,
    "off_s": Amount,
    "first_accuracy": Share,
    "precision": Literal[PRECISIONS],
}


def curve_of(row: Row) -> Curve:
    """Return the curve in a row, after checking it; its epochs have no parameters.

    Raises:
        ValueError: The row is invalid.
    """
    found = _read("curves", row)
    said = found["training"]
    Training(**said | {"network": Network(**said["network"]), "data": DataSet(**said.get("data", {}))})
    losses = np.frombuffer(found["losses"], np.float32)
    if (np.isfinite(losses) & (losses < LEAST_LOSS)).any():
        raise ValueError(f"expected losses of 0 or more, got {np.nanmin(losses)}")
    return Curve(
        epochs=tuple(Epoch(**epoch, parameters=no_parameters) for epoch in found["epochs"]),
        losses=losses,
        warnings=tuple(found["warnings"]),
        **{name: found[name] for name in ("first_call_s", "measured_at", "machine", "every", "together")},
    )


def record_of(row: Row) -> Record:
    """Return the measurement in a row, after checking all but the requirements of its kind (`check_kind`).

    Raises:
        ValueError: The row is invalid.
    """
    found: dict[str, Any] = {name: value for name, value in _read("measurements", row).items() if name != "id"}
    return Record(block_s=tuple(found.pop("block_s")), warnings=tuple(found.pop("warnings")), **found)


def check_kind(record: Record) -> None:
    """Check that a measurement has what its kind requires: names in its subject, and positive seconds.

    Raises:
        ValueError: Something is missing, or out of range.
    """
    subject, needed = record.subject, SUBJECTS.get(record.kind, {})
    for name, kind in {**_EVERY_SUBJECT, **needed}.items():
        if name in subject:
            checked(subject[name], kind, name)
        elif name in needed:
            raise ValueError(f"expected {name} in the subject ({record.kind}), got nothing")
    if "hidden" in needed:
        Network.parse(str(subject["hidden"]))
        if subject["backend"] in TRAINERS:  # other versions may have more backends
            Runtime(*(str(record.says(name)) for name in ("backend", "device", "precision")))
    if record.kind != Kind.FAILURE and not record.block_s:
        raise ValueError("expected seconds, got none")
    if record.kind == Kind.MODELS and len(record.block_s) != 3:
        raise ValueError(f"expected three quartiles of seconds, got {len(record.block_s)} values")
    if record.kind in (Kind.RACE, Kind.CEILING, Kind.MODELS, Kind.SWEEP) and min(record.block_s) < MIN_S:
        raise ValueError(f"expected seconds of {MIN_S:g} or more, got {min(record.block_s)}")


def row_of(record: Record) -> dict[str, object]:
    texts = {name: json.dumps(getattr(record, name), sort_keys=True) for name in ("subject", "block_s", "warnings")}
    return {name: texts.get(name, getattr(record, name)) for name in COLUMNS["measurements"]}


def epochs_text(curve: Curve) -> str:
    return json.dumps([{k: v for k, v in vars(epoch).items() if k != "parameters"} for epoch in curve.epochs])


def _read(table: str, row: Row) -> dict[str, Any]:
    found = {name: _read_json(row[name]) if name in JSON_COLUMNS else row[name] for name in COLUMNS[table]}
    for name, kind in COLUMNS[table].items():
        checked(found[name], kind, name)
    "".join(text for text in row.values() if isinstance(text, str)).encode()  # raises on lone surrogates
    datetime.fromisoformat(found["measured_at"])
    return found


def _read_json(text: object) -> Any:
    """Parse JSON, including NaN and Infinity, which Python writes and msgspec rejects.

    Raises ValueError also if it is nested too deeply, or cannot be encoded again.
    """
    if not isinstance(text, str):
        raise ValueError(f"expected text, got {brief(text)}")
    try:
        value = json.loads(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return value


def checked(value: Any, kind: Any, name: str) -> Any:
    """Return the value unchanged if msgspec accepts it as this type (with limits in `Annotated`).

    Raises:
        ValueError: The value is of another type; the text names the column, and the place inside it.
    """
    try:
        convert(value, kind)
    except ValidationError as error:
        raise ValueError(f"{name}: {brief(str(error))}, got {brief(value)}") from error
    return value


def brief(value: object) -> str:
    """Format a value for an error message: one printable line, at most 60 characters and an ellipsis."""
    text = value if isinstance(value, str) and value.isprintable() else ascii(value)
    return text if len(text) <= 60 else text[:60] + "…"
