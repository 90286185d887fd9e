"""The store as a portable JSON file, and back: `python -m lib.cli.store export|import FILE.json`.

An export is checked row by row and brought to this version; a damaged file is refused whole.
"""

import base64
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from lib.cache_folder import replaced
from lib.model.hardware.optional import Meta
from lib.sweeps.storage.records import ADDED, COLUMNS, Record, Seconds, brief, check_kind, checked, curve_of, record_of
from lib.sweeps.storage.store import SCHEMA_VERSION, Store

FORMAT = "less-overhead results"
# Notes on the whole are for people, except for these numbers, which pages calculate with.
MAX_PRICE = 1000.0  # dollars an hour
_ABOUT = {"took_s": Seconds, "price_per_h": Annotated[float, Meta(ge=0.0, le=MAX_PRICE)]}
Rows = list[dict]


class NoExport(ValueError):
    """The file cannot be imported; the text says what was expected, what came and what to do."""


@dataclass(frozen=True)
class Export:
    """A valid file's content: each table's rows, as in a store, and the notes on the whole."""

    tables: Mapping[str, Rows]
    about: Mapping[str, object] = field(default_factory=dict)

    @property
    def records(self) -> list[Record]:
        return [record_of(row) for row in self.tables["measurements"]]


def export_to(path: Path, store: Store, about: Mapping[str, object] | None = None, with_losses: bool = True) -> int:
    """Write a store's sound rows to a file, in the order of their keys; the file appears whole or not at all.

    Args:
        path: Replaced if it exists.
        store: What is exported.
        about: Notes on the whole, such as the command that made it.
        with_losses: Export curves with the losses of each step, or only their epochs.

    Returns:
        The number of rows.

    Raises:
        StoreUnusable: The store cannot be read.
        OSError: The file cannot be written.
    """
    less = {"curves": {} if with_losses else {"losses": b"", "n_bytes": 0}}
    tables = {name: [_portable(row | less.get(name, {})) for row in store.rows(name)] for name in COLUMNS}
    content = {"format": FORMAT, "version": SCHEMA_VERSION, **({"about": dict(about)} if about else {}), **tables}
    with replaced(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    return sum(map(len, tables.values()))


def import_from(path: Path, store: Store) -> tuple[int, int]:
    """Add a file's rows to the store, all or none.

    Args:
        path: An export of this version or an older one.
        store: Gets the rows that it lacks; none is replaced.

    Returns:
        How many rows the file has, and how many of them were new.

    Raises:
        NoExport: The file cannot be read, or is damaged.
        StoreUnusable: The store cannot be written.
    """
    tables = read_export(path).tables
    return sum(map(len, tables.values())), store.merge(tables)


def read_export(path: Path) -> Export:
    """A file's content, checked.

    Raises:
        NoExport: The file cannot be read, or is damaged.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise NoExport(f"expected a file that can be read, got {path} ({error.strerror}); correct the name") from error
    except UnicodeDecodeError as error:
        raise NoExport(f"expected an export, but {path} is no text; choose another file") from error
    return parse_export(text, str(path))


def parse_export(text: str, name: str) -> Export:
    """The content of an export's text, checked; `name` is the file's, for errors.

    Raises:
        NoExport: The text is no valid export.
    """
    try:
        content = json.loads(text)
    except RecursionError as error:
        raise NoExport(f"expected an export, but {name} is nested too deeply for one; choose another file") from error
    except ValueError as error:
        raise NoExport(
            f"expected an export, but {name} is no JSON or was cut off ({error}); export it again"
        ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise NoExport(
            f"expected an export of this program, but {name} is another kind of file; export it with `python -m"
            " lib.cli.store export`"
        )
    version = content.get("version")
    if type(version) is not int or version > SCHEMA_VERSION:
        raise NoExport(
            f"{name} was written by a newer version (schema {brief(version)}, this one knows {SCHEMA_VERSION}); update"
            " this program"
        )
    tables: dict[str, Rows] = {}
    for table in COLUMNS:
        rows = content.get(table, [])
        if not isinstance(rows, list):
            raise NoExport(f"{name}: expected rows in {table}, got {type(rows).__name__}; export it again")
        added = {column: value for column, (since, value) in ADDED[table].items() if version < since}
        tables[table] = [_checked(table, added | row if isinstance(row, dict) else row, name) for row in rows]
    about = content.get("about", {})
    _check_about(about, name)
    return Export(tables, about)


def _check_about(about: object, name: str) -> None:
    try:
        if not isinstance(about, dict):
            raise ValueError(f"expected notes by name, got {brief(about)}")
        for name, kind in _ABOUT.items():
            checked(about.get(name, 0.0), kind, name)
        json.dumps(about, ensure_ascii=False).encode()
    except ValueError as error:
        raise NoExport(f"{name}: its notes are damaged ({error}); export it again") from error


def _checked(table: str, row: object, name: str) -> dict:
    """A file's row as the store holds it; raises NoExport if it is damaged."""
    columns = COLUMNS[table]
    if not isinstance(row, dict) or row.keys() != columns.keys():
        got = brief(", ".join(sorted(row))) if isinstance(row, dict) else type(row).__name__
        raise NoExport(
            f"{name}: expected the columns {', '.join(sorted(columns))} in {table}, got {got}; export it again"
        )
    try:
        if table == "measurements":
            check_kind(record_of(row))
        else:
            row["losses"] = base64.b64decode(row["losses"], validate=True)
            row["n_bytes"] = len(row["losses"])
            row["used_at"] = min(checked(row["used_at"], COLUMNS[table]["used_at"], "used_at"), time.time())
            curve_of(row)
    except (ValueError, TypeError) as error:
        which = row["subject"] if table == "measurements" else row["training"]
        raise NoExport(
            f"{name}: in {table}, the row of {brief(which)} is damaged ({error}); export it again"
        ) from error
    return row


def _portable(row: dict) -> dict:
    return {
        name: base64.b64encode(value).decode() if isinstance(value, bytes) else value for name, value in row.items()
    }
