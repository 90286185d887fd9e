"""Export the results stored on this machine to a file, and import them again:

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
    """Export or import, and return the exit status: 1 where the file cannot be used.

    Args:
        arguments: Words of the command line; None for those of this program.

    Raises:
        SystemExit: The words cannot be read (status 2), or ask for help (status 0).
    """
    parser = argparse.ArgumentParser(prog="python -m lib.cli.store", description=__doc__)
    parser.add_argument("what", choices=("export", "import"))
    parser.add_argument("file", type=Path)
    options = parser.parse_args(arguments)
    store = Store()
    try:
        if options.what == "export":
            if not any(store.rows(table) for table in COLUMNS):
                why = store.trouble.rstrip(".") or "expected results to export, but none are kept"
                raise NoExport(f"{why}; {options.file} is left as it is")
            print(f"{export_to(options.file, store):,} rows written to {options.file}")
        else:
            rows, new = import_from(options.file, store)
            print(f"{rows:,} rows read from {options.file}, {new:,} of them new")
    except (NoExport, OSError) as error:
        print(sentence(error), file=sys.stderr)
        return 1
    if store.trouble:  # the store's file could not be read, and a new one took the import
        print(store.trouble, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
