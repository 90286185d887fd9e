"""How a notebook was opened: the viewer's role, and the settings from its address or from a script's options."""

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
    """`TEACHER` or `PUPIL`, from the server's request.

    Without that, viewers are pupils under `make class`, else teachers: in the editor, in a script. Under `make run`,
    which serves one person, every viewer is a teacher.
    """
    served, request = os.environ.get(SERVED), mo.app_meta().request
    unsaid = PUPIL if served == "run" else TEACHER
    meta = request.meta if request is not None and served != APP else {}
    return TEACHER if meta.get("role", unsaid) == TEACHER else PUPIL


def streaming() -> bool:
    """Whether a viewer watches live: in the editor or under `marimo run`, not in a script, export or test."""
    meta = mo.app_meta()
    return meta.mode in ("edit", "run") and meta.request is not None


def opened(name: str, settings: Mapping[str, Setting]) -> Address:
    """The checked settings of the notebook's address, or of the script's options.

    Raises:
        SystemExit: An option of the script cannot be used (status 2).
    """
    if streaming():
        address = Address(mo.query_params(), mo.cli_args().to_dict())
    elif Path(sys.argv[0]).stem == name:
        address = Address(arguments=script_options(settings, sys.argv[1:], f"{name}.py"))
    else:  # run by another program, such as a test
        address = Address()
    address.check(settings)
    # Before each run of cells, marimo 0.25 searches a file of every installed package for other ways to run them: a
    # third of the time of a slider move, and far more with a hundred viewers.
    if not hasattr(registry.entry_points, "cache_info"):
        registry.entry_points = cache(registry.entry_points)
    return address


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"{message[:1].upper()}{message[1:]}. See {self.prog} --help.", file=sys.stderr)
        raise SystemExit(2)


def script_options(settings: Mapping[str, Setting], words: Sequence[str], program: str) -> dict[str, str]:
    """The text of each setting given on the command line, by name.

    Args:
        settings: The allowed settings, by name.
        words: The command line without the program; marimo's own leading `--` is allowed.
        program: The program's name in messages.

    Raises:
        SystemExit: An option or a value is invalid (status 2), or help was requested (status 0).
    """
    parser = _Parser(prog=program, allow_abbrev=False, description="Settings are the same as in the page's address.")
    for setting in settings.values():
        meaning = f"{setting.expected}; default {setting.usual}".replace("%", "%%")
        parser.add_argument(f"--{setting.name}", metavar="VALUE", help=meaning, default=argparse.SUPPRESS)
    # marimo's own syntax is `notebook.py -- --name value`.
    found, unknown = parser.parse_known_args(words[1:] if words[:1] == ["--"] else words)
    if unknown:
        name = unknown[0].partition("=")[0]
        parser.error(
            f"expected an option of {program}, got {shown(name)}{nearest(name, [f'--{name}' for name in settings])}"
        )
    for name, said in vars(found).items():
        try:
            settings[name].read(said)
        except ValueError as error:
            parser.error(f"--{name} {shown(said)}: {error}")
    return vars(found)
