"""How a notebook was opened: by whom, and with which values, of its address or of a script's options."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NoReturn

import marimo as mo
from marimo._entrypoints import registry

from lib.ui.notebooks import APP, SERVED
from lib.ui.url_state import Address, Setting, nearest, shown

TEACHER, PUPIL = "teacher", "pupil"


def role() -> str:
    """`TEACHER` or `PUPIL`, as the server says with the request that opened the page.

    Where it says nothing, whoever looks is a pupil under `make class`, else the teacher: in the editor, in a script.
    Under `make run`, which is for one person, everybody is.
    """
    served = os.environ.get(SERVED)
    if served == APP:
        return TEACHER
    request = mo.app_meta().request
    unsaid = PUPIL if served == "run" else TEACHER
    said = request.meta.get("role", unsaid) if request is not None else unsaid
    return TEACHER if said == TEACHER else PUPIL


def streaming() -> bool:
    """Whether somebody watches: a page in the editor or under `marimo run`, not a script, export or test."""
    meta = mo.app_meta()
    return meta.mode in ("edit", "run") and meta.request is not None


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
        address = Address(arguments=script_options(settings, sys.argv[1:], f"{name}.py"))
    else:  # another program runs it, such as a test
        address = Address()
    address.check(settings)
    # Before each run of cells, marimo 0.25 looks in a file of every installed package for another way to run them: a
    # third of the time that a moved slider takes, and with a hundred viewers far more.
    if not hasattr(registry.entry_points, "cache_info"):
        registry.entry_points = cache(registry.entry_points)
    return address


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"{message[:1].upper()}{message[1:]}. See {self.prog} --help.", file=sys.stderr)
        raise SystemExit(2)


def script_options(settings: Mapping[str, Setting], words: Sequence[str], program: str) -> dict[str, str]:
    """The text of each setting that the command line gives, by name.

    Args:
        settings: What may be given, by name.
        words: Of the command line, without the program; marimo's own `--` in front is allowed.
        program: Its name in messages.

    Raises:
        SystemExit: A word is not an option, or a value cannot be used (status 2), or help was asked for (status 0).
    """
    parser = _Parser(prog=program, allow_abbrev=False, description="The settings are those in the page's address.")
    for setting in settings.values():
        meaning = f"{setting.expected}; usually {setting.usual}".replace("%", "%%")
        parser.add_argument(f"--{setting.name}", metavar="VALUE", help=meaning, default=argparse.SUPPRESS)
    # marimo's own way is `notebook.py -- --name value`.
    found, unknown = parser.parse_known_args(words[1:] if words[:1] == ["--"] else words)
    if unknown:
        name = unknown[0].partition("=")[0]
        parser.error(
            f"expected options of {program}, got {shown(name)}{nearest(name, [f'--{name}' for name in settings])}"
        )
    for name, said in vars(found).items():
        try:
            settings[name].read(said)
        except ValueError as error:
            parser.error(f"--{name} {shown(said)}: {error}")
    return vars(found)
