"""Export this machine's stored results to a file, or import a file into the store:

python -m lib.cli.store export FILE.json
python -m lib.cli.store import FILE.json
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lib.formatting import sentence
from lib.sweeps.storage.records import COLUMNS
from lib.sweeps.storage.store import NoExport, Store, export_to, import_from


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lib.cli.store", description=__doc__)
    parser.add_argument("what", choices=("export", "import"))
    parser.add_argument("file", type=Path)
    options = parser.parse_args(arguments)
    store = Store()
    try:
        if options.what == "export":
            if not any(store.rows(table) for table in COLUMNS):
                why = store.trouble.rstrip(".") or "expected results to export, but none are stored"
                raise NoExport(f"{why}; {options.file} is unchanged")
            print(f"{export_to(options.file, store):,} rows written to {options.file}")
        else:
            rows, new = import_from(options.file, store)
            print(f"{rows:,} rows read from {options.file}, {new:,} of them new")
    except (NoExport, OSError) as error:
        print(sentence(error), file=sys.stderr)
        return 1
    if store.trouble:  # the store's file was unreadable, so a new one was used
        print(store.trouble, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
