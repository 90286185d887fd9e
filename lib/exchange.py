"""The store as a portable JSON file, and back: `python -m lib.store export|import FILE.json`.

An export is read as text, checked row by row, and brought to this version; nothing of a file that is not sound is taken.
"""

import argparse
import base64
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from lib.records import Record
from lib.store import SCHEMA_VERSION, Store, record_of
from lib.timing import Ended

FORMAT = "less-overhead results"
# Which columns each table must have; what a file lacks or has beside them makes it no export of ours.
COLUMNS = {
    "curves": (
        "key", "training", "backend", "device", "data", "sources", "versions", "machine", "measured_at", "first_call_s", "epochs",
        "losses", "n_bytes", "used_at", "every", "together",
    ),
    "measurements": (
        "id", "kind", "subject", "machine", "machine_line", "sources", "versions", "measured_at", "block_s", "steps_per_block",
        "ended", "warnings", "clocks", "command",
    ),
}  # fmt: skip

# Columns that older versions did not have, and what they stood for.
ADDED = {3: {"curves": {"every": 1, "together": 1}}, 4: {"measurements": {"clocks": "", "command": ""}}}

Rows = list[dict]


class NoExport(ValueError):
    """The file cannot be imported; the text says what was expected, what came and what to do."""


def sentence(error: Exception) -> str:
    """An error's text as a sentence; a file's name at its start stays as it is."""
    text = str(error).rstrip(".")
    first = text.split(" ")[0]
    return (text if "." in first else text[:1].upper() + text[1:]) + "."


@dataclass(frozen=True)
class Export:
    """A sound file's content: rows by table, as they lie in a store, and what was noted about the whole."""

    tables: Mapping[str, Rows]
    about: Mapping[str, object] = field(default_factory=dict)

    @property
    def records(self) -> list[Record]:
        return [record_of(tuple(row[name] for name in COLUMNS["measurements"])) for row in self.tables["measurements"]]


def export_to(path: Path, store: Store, about: Mapping[str, object] | None = None, with_losses: bool = True) -> int:
    """Write all rows, in the order of their keys; returns how many. The file appears whole or not at all.

    `about`: what to note of the whole, such as the command that made it. Without losses of each step, curves have only their epochs.
    """
    less = {} if with_losses else {"losses": b"", "n_bytes": 0}
    tables = {
        name: [_portable(row | (less if name == "curves" else {})) for row in store.rows(name)] for name in COLUMNS
    }
    noted = {"about": dict(about)} if about else {}
    content = {"format": FORMAT, "version": SCHEMA_VERSION, **noted, **tables}
    temporary = path.with_name(f"{path.name}.{os.getpid()}.writing")
    try:
        temporary.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return sum(map(len, tables.values()))


def import_from(path: Path, store: Store) -> tuple[int, int]:
    """Add a file's rows to the store; returns how many there were, and how many of them were new. Raises NoExport."""
    tables = read_export(path).tables
    new = sum(store.merge(name, rows) for name, rows in tables.items())
    return sum(map(len, tables.values())), new


def read_export(path: Path) -> Export:
    """A file's content, checked. Raises NoExport."""
    try:
        text = path.read_text()
    except OSError as error:
        raise NoExport(f"expected a file that can be read, got {path} ({error.strerror}); correct the name") from error
    except UnicodeDecodeError as error:
        raise NoExport(f"expected an export, but {path} is no text; choose another file") from error
    return parse_export(text, str(path))


def parse_export(text: str, name: str) -> Export:
    """The content of a file of this name, checked. Raises NoExport."""
    content = _content(text, name)
    tables = {}
    for table, columns in COLUMNS.items():
        added: dict = {}
        for since, by_table in ADDED.items():
            added |= by_table.get(table, {}) if content["version"] < since else {}
        rows = content.get(table, [])
        if not isinstance(rows, list):
            raise NoExport(f"{name}: expected rows in {table}, got {type(rows).__name__}; export it again")
        tables[table] = [_checked(table, columns, added | row if isinstance(row, dict) else row, name) for row in rows]
    about = content.get("about", {})
    return Export(tables, about if isinstance(about, dict) else {})


def _content(text: str, name: str) -> dict:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise NoExport(
            f"expected an export, but {name} is no JSON or was cut off ({error}); export it again"
        ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise NoExport(
            f"expected an export of this program, but {name} is another kind of file; export it with `python -m lib.store export`"
        )
    version = content.get("version")
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise NoExport(
            f"{name} was written by a newer version (schema {version}, this one knows {SCHEMA_VERSION}); update this program"
        )
    return content


def _checked(table: str, columns: Sequence[str], row: object, name: str) -> dict:
    if not isinstance(row, dict) or sorted(row) != sorted(columns):
        got = ", ".join(sorted(row)) if isinstance(row, dict) else type(row).__name__
        raise NoExport(
            f"{name}: expected the columns {', '.join(sorted(columns))} in {table}, got {got}; export it again"
        )
    row = {column: row[column] for column in columns}
    try:
        datetime.fromisoformat(row["measured_at"])
        if table == "measurements":
            _check_measurement(row)
        else:
            _check_curve(row)
            row["losses"] = base64.b64decode(row["losses"], validate=True)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        which = row.get("subject") or row.get("training")
        raise NoExport(
            f"{name}: in {table}, the row of {str(which)[:120]} is damaged ({error}); export it again"
        ) from error
    return row


def _check_measurement(row: dict) -> None:
    subject, block_s, warnings = (json.loads(row[column]) for column in ("subject", "block_s", "warnings"))
    if not isinstance(subject, dict) or not isinstance(warnings, list) or not isinstance(block_s, list):
        raise ValueError("expected a subject, a list of seconds and a list of warnings")
    _check_seconds(block_s)
    if row["ended"] not in Ended.__members__:
        raise ValueError(f"expected an end of {', '.join(Ended.__members__)}, got {row['ended']}")
    if not isinstance(row["steps_per_block"], int) or row["steps_per_block"] < 1:
        raise ValueError(f"expected 1 or more steps in a block, got {row['steps_per_block']}")


def _check_curve(row: dict) -> None:
    epochs = json.loads(row["epochs"])
    _check_seconds([row["first_call_s"], *(epoch[name] for epoch in epochs for name in ("train_s", "evaluation_s"))])


def _check_seconds(values: Sequence[object]) -> None:
    for value in values:
        if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise ValueError(f"expected seconds from 0 on, got {value}")


def _portable(row: dict) -> dict:
    return {
        name: base64.b64encode(value).decode() if isinstance(value, bytes) else value for name, value in row.items()
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lib.store", description=__doc__)
    parser.add_argument("what", choices=("export", "import"))
    parser.add_argument("file", type=Path)
    options = parser.parse_args(arguments)
    store = Store()
    try:
        if options.what == "export":
            print(f"{export_to(options.file, store):,} rows written to {options.file}")
        else:
            rows, new = import_from(options.file, store)
            print(f"{rows:,} rows read from {options.file}, {new:,} of them new")
    except (NoExport, OSError) as error:
        print(sentence(error), file=sys.stderr)
        return 1
    if store.trouble:
        print(store.trouble, file=sys.stderr)
        return 1
    return 0
