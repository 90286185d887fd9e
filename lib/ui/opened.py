"""The values that a notebook was opened with: its address, or the options of its script, checked."""

import sys
from collections.abc import Mapping
from pathlib import Path

import marimo as mo

from lib.ui import entry_points, options
from lib.ui.stage import streaming
from lib.ui.url_state import Address, Setting


def opened(name: str, settings: Mapping[str, Setting]) -> Address:
    """The values that a notebook was opened with: its address, or the script's options, checked.

    Args:
        name: Of the notebook, without `.py`.
        settings: Its settings, by name.

    Raises:
        SystemExit: An option of the script cannot be used (status 2).
    """
    if streaming():
        address = Address(mo.query_params(), mo.cli_args().to_dict())
    elif Path(sys.argv[0]).stem == name:
        address = Address(arguments=options.given(settings, sys.argv[1:], f"{name}.py"))
    else:  # another program runs it, such as a test
        address = Address()
    address.check(settings)
    entry_points.read_once()
    return address
