"""The store as a portable JSON file, and back: `python -m lib.store export|import FILE.json`."""

import argparse
import base64
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from lib.store import SCHEMA_VERSION, Store

FORMAT = "less-overhead results"
# Which columns each table must have; what a file lacks or has beside them makes it no export of ours.
COLUMNS = {
    "curves": [
        "key",
        "training",
        "backend",
        "device",
        "data",
        "sources",
        "versions",
        "machine",
        "measured_at",
        "first_call_s",
        "epochs",
        "losses",
        "n_bytes",
        "used_at",
        "every",
        "together",
    ],
    "measurements": (
        [
            "id",
            "kind",
            "subject",
            "machine",
            "machine_line",
            "sources",
            "versions",
            "measured_at",
            "block_s",
            "steps_per_block",
            "ended",
            "warnings",
            "clocks",
            "command",
        ]
    ),
}


# Columns that older versions did not have, and what they stood for.
ADDED = {3: {"curves": {"every": 1, "together": 1}}, 4: {"measurements": {"clocks": "", "command": ""}}}


class NoExport(ValueError):
    """The file cannot be imported; the text says what was expected, what came and what to do."""


def export_to(path: Path, store: Store) -> int:
    """Write all rows, in the order of their keys; returns how many. The file appears whole or not at all."""
    tables = {name: [_portable(row) for row in store.rows(name)] for name in COLUMNS}
    content = {"format": FORMAT, "version": SCHEMA_VERSION, **tables}
    temporary = path.with_name(f"{path.name}.{os.getpid()}.writing")
    try:
        temporary.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return sum(map(len, tables.values()))


def import_from(path: Path, store: Store) -> tuple[int, int]:
    """Add a file's rows to the store; returns how many there were, and how many of them were new. Raises NoExport."""
    content = _read(path)
    added = {
        name: value for since, tables in ADDED.items() if content["version"] < since for name, value in tables.items()
    }
    tables = {
        name: [_checked(name, _migrated(row, added.get(name, {})), path) for row in content.get(name, [])]
        for name in COLUMNS
    }
    new = sum(store.merge(name, rows) for name, rows in tables.items())
    return sum(map(len, tables.values())), new


def _read(path: Path) -> dict:
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise NoExport(f"expected a file that can be read, got {path} ({error.strerror}); correct the name") from error
    except ValueError as error:
        raise NoExport(
            f"expected an export, but {path} is no JSON or was cut off ({error}); export it again"
        ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise NoExport(
            f"expected an export of this program, but {path} is another kind of file; export it with `python -m lib.store export`"
        )
    version = content.get("version")
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise NoExport(
            f"{path} was written by a newer version (schema {version}, this one knows {SCHEMA_VERSION}); update this program"
        )
    return content


def _migrated(row: object, added: dict) -> object:
    return added | row if isinstance(row, dict) else row


def _checked(table: str, row: object, path: Path) -> dict:
    if not isinstance(row, dict) or sorted(row) != sorted(COLUMNS[table]):
        got = ", ".join(sorted(row)) if isinstance(row, dict) else type(row).__name__
        raise NoExport(
            f"{path}: expected the columns {', '.join(sorted(COLUMNS[table]))} in {table}, got {got}; export it again"
        )
    if "losses" in row:
        try:
            row = row | {"losses": base64.b64decode(row["losses"], validate=True)}
        except (ValueError, TypeError) as error:
            raise NoExport(f"{path}: the losses of {row['key']} are damaged; export it again") from error
    return row


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
        text = str(error)
        print(text[:1].upper() + text[1:], file=sys.stderr)
        return 1
    if store.trouble:
        print(store.trouble, file=sys.stderr)
        return 1
    return 0
