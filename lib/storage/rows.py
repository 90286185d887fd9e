"""What lies in a row of the store, and whether it is sound: a disk may damage it, and an import may come from anybody.

A row is a mapping of column to value, as in the tables. What is not sound raises ValueError, which says what was
expected.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from datetime import datetime

import numpy as np

from lib.backends.base import Epoch, no_parameters
from lib.backends.registry import DEVICES
from lib.spec import MAX_EPOCHS, Network, Training
from lib.storage.records import Curve, Kind, Record
from lib.timing.measurement import Ended

Row = Mapping[str, object]

# The columns of each table, and the type of what lies in them.
COLUMNS: Mapping[str, Mapping[str, type]] = {
    "curves": {
        "key": str,
        "training": str,
        "backend": str,
        "device": str,
        "data": str,
        "sources": str,
        "versions": str,
        "machine": str,
        "measured_at": str,
        "first_call_s": float,
        "epochs": str,
        "losses": bytes,
        "n_bytes": int,
        "used_at": float,
        "every": int,
        "together": int,
        "warnings": str,
    },
    "measurements": {
        "id": str,
        "kind": str,
        "subject": str,
        "machine": str,
        "machine_line": str,
        "sources": str,
        "versions": str,
        "measured_at": str,
        "block_s": str,
        "steps_per_block": int,
        "ended": str,
        "warnings": str,
        "clocks": str,
        "command": str,
    },
}
# Columns that older versions did not have, since which version they are there, and what they stood for.
ADDED: Mapping[str, Mapping[str, tuple[int, object]]] = {
    "curves": {"every": (3, 1), "together": (3, 1), "warnings": (5, "[]")},
    "measurements": {"clocks": (4, ""), "command": (4, "")},
}
# What a measurement of a kind must say of its subject, or nothing can be made of it.
SUBJECTS: Mapping[str, tuple[str, ...]] = {
    Kind.RACE: ("backend", "device", "batch_size", "hidden"),
    Kind.ANATOMY: ("name", "work"),
    Kind.CEILING: ("library", "device", "name", "work"),
    Kind.MODELS: ("strategy", "device", "count"),
    Kind.SWEEP: ("method",),
    Kind.PACE: ("first_call_s",),
}
_WORDS = {"backend", "device", "hidden", "name", "library", "strategy", "method"}  # the other names above are numbers

MAX_S, MIN_S = (
    1e9,
    1e-12,
)  # no measurement is longer than thirty years, nor shorter than light needs for a hair's breadth
MAX_NUMBER = 1e30  # of operations or bytes in one step
MAX_INTEGER = 2**53  # what a JSON number holds exactly
LEAST_LOSS = -1e-3  # a mean cross-entropy is not negative, but rounded


def curve_of(row: Row) -> Curve:
    """A row of curves as what it stands for."""
    _check_columns("curves", row)
    _training(row["training"])
    losses = np.frombuffer(row["losses"], np.float32)  # type: ignore[call-overload]
    if (np.isfinite(losses) & (losses < LEAST_LOSS)).any():
        raise ValueError(f"expected losses from 0 on, got {np.nanmin(losses)}")
    seconds = number(row["first_call_s"], MAX_S, "seconds")
    number(row["used_at"], math.inf, "a time of last use")
    every, together = integer(row["every"], "steps a loss"), integer(row["together"], "networks trained together")
    return Curve(
        seconds,
        _epochs(row["epochs"]),
        losses,
        str(row["measured_at"]),
        str(row["machine"]),
        every,
        together,
        _warnings(row["warnings"]),
    )


def record_of(row: Row) -> Record:
    """A row of measurements as what it stands for."""
    _check_columns("measurements", row)
    subject, block_s = (read_json(row[name]) for name in ("subject", "block_s"))
    if not isinstance(subject, dict) or not isinstance(block_s, list):
        raise ValueError("expected a subject and a list of seconds")
    for value in subject.values():
        if not isinstance(value, str):
            number(value, MAX_NUMBER, "text or a number in the subject", -MAX_NUMBER)
    if row["ended"] not in Ended.__members__:
        raise ValueError(f"expected an end of {', '.join(Ended.__members__)}, got {brief(row['ended'])}")
    return Record(
        subject=subject,
        block_s=tuple(number(value, MAX_S, "seconds") for value in block_s),
        warnings=_warnings(row["warnings"]),
        steps_per_block=integer(row["steps_per_block"], "steps in a block"),
        **{
            name: row[name]
            for name in (
                "kind",
                "ended",
                "versions",
                "machine",
                "machine_line",
                "sources",
                "measured_at",
                "clocks",
                "command",
            )
        },  # type: ignore[arg-type]
    )


def check_kind(record: Record) -> None:
    """Refuse a measurement that lacks what its kind is read for: of its subject, and seconds that can be divided by."""
    subject, needed = record.subject, SUBJECTS.get(record.kind, ())
    for name in needed:
        if isinstance(subject.get(name), str) != (name in _WORDS) or name not in subject:
            raise ValueError(
                f"expected {name} as {'text' if name in _WORDS else 'a number'} in the subject ({record.kind}), "
                f"got {brief(subject.get(name, 'nothing'))}"
            )
    for name in ("batch_size", "count"):
        if name in needed:
            integer(subject[name], name)
    for name in ("work", "first_call_s", "evaluation_s"):
        if name in subject:
            number(subject[name], MAX_NUMBER, name, MIN_S if name == "work" else 0.0)
    if "hidden" in needed:
        Network.parse(str(subject["hidden"]))
    if "device" in needed and subject["device"] not in DEVICES:
        raise ValueError(f"expected a device of {', '.join(DEVICES)}, got {brief(subject['device'])}")
    if record.kind != Kind.FAILURE and not record.block_s:
        raise ValueError("expected seconds, got none")
    if record.kind == Kind.MODELS and len(record.block_s) != 3:
        raise ValueError(f"expected the quartiles of seconds, got {len(record.block_s)} values")
    for value in record.block_s if record.kind in (Kind.RACE, Kind.CEILING, Kind.MODELS, Kind.SWEEP) else ():
        number(value, MAX_S, "seconds", MIN_S)


def row_of(record: Record) -> dict[str, object]:
    """A measurement as a row."""
    texts = {"subject": json.dumps(dict(record.subject), sort_keys=True)}
    texts |= {name: json.dumps(getattr(record, name)) for name in ("block_s", "warnings")}
    return {name: texts.get(name, getattr(record, name)) for name in COLUMNS["measurements"]}


def epochs_text(curve: Curve) -> str:
    """A curve's epochs as they lie in a row."""
    return json.dumps([{k: v for k, v in vars(epoch).items() if k != "parameters"} for epoch in curve.epochs])


def _training(text: object) -> Training:
    values = read_json(text)
    if not isinstance(values, dict) or sorted(values) != sorted(asdict(Training())):
        raise ValueError(f"expected a training, got {brief(values)}")
    network = values.pop("network")
    hidden = network.get("hidden") if isinstance(network, dict) and len(network) == 1 else None
    if not isinstance(hidden, list):
        raise ValueError(f"expected a network's hidden layers, got {brief(network)}")
    rate = number(values.pop("learning_rate"), MAX_NUMBER, "a learning rate")
    widths = tuple(integer(width, "neurons in a layer") for width in hidden)
    return Training(Network(widths), rate, **{name: integer(value, name, 0) for name, value in values.items()})


def _warnings(text: object) -> tuple[str, ...]:
    warnings = read_json(text)
    if not isinstance(warnings, list) or not all(isinstance(warning, str) for warning in warnings):
        raise ValueError(f"expected a list of warnings in words, got {brief(text)}")
    return tuple(warnings)


def _epochs(text: object) -> tuple[Epoch, ...]:
    rows = read_json(text)
    if not isinstance(rows, list) or len(rows) > MAX_EPOCHS:
        raise ValueError(f"expected up to {MAX_EPOCHS} epochs, got {brief(rows)}")
    return tuple(_epoch(row) for row in rows)


def _epoch(row: object) -> Epoch:
    names = {field.name for field in fields(Epoch)} - {"parameters"}
    if not isinstance(row, dict) or set(row) != names:
        raise ValueError(f"expected an epoch's {', '.join(sorted(names))}, got {brief(row)}")
    if type(row["validation_loss"]) not in (int, float):  # not a number where a training diverged
        raise ValueError(f"expected a validation loss, got {brief(row['validation_loss'])}")
    for name in ("train_s", "evaluation_s"):
        number(row[name], MAX_S, "seconds")
    number(row["validation_accuracy"], 1.0, "an accuracy")
    integer(row["epoch"], "the number of an epoch", 0)
    integer(row["steps"], "steps in an epoch", 0)
    if row["diverged_step"] is not None:
        integer(row["diverged_step"], "the step of the divergence", 0)
    return Epoch(**row, parameters=no_parameters)


def _check_columns(table: str, row: Row) -> None:
    for name, kind in COLUMNS[table].items():
        value = row[name]
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise ValueError(f"expected {kind.__name__} in the column {name}, got {brief(value)}")
        if isinstance(value, str):
            value.encode()  # half of a pair of characters, which nothing can write
    datetime.fromisoformat(str(row["measured_at"]))


def read_json(text: object) -> object:
    """A JSON text's value.

    Raises ValueError also for what is nested too deeply, and for what cannot be written as text again.
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


def number(value: object, most: float, what: str, least: float = 0.0) -> float:
    """The value, if it is a finite number within these limits."""
    if type(value) not in (int, float) or not least <= value <= most or value == math.inf:  # type: ignore[operator]
        limits = f", at most {most:g}" if isinstance(value, int | float) and value > most else f" from {least:g} on"
        raise ValueError(f"expected {what}{limits}, got {brief(value)}")
    return value  # type: ignore[return-value]


def integer(value: object, what: str, least: int = 1) -> int:
    """The value, if it is a whole number from `least` on that every reader can hold."""
    if type(value) is not int or not least <= value <= MAX_INTEGER:
        raise ValueError(f"expected {least} or more {what}, got {brief(value)}")
    return value


def brief(value: object) -> str:
    """A value in an error's sentence: short, on one line, and nothing that a terminal cannot show."""
    text = value if isinstance(value, str) and value.isprintable() else ascii(value)
    return text if len(text) <= 60 else text[:60] + "…"
