"""The options of a notebook that is run as a script: the settings of its page.

A wrong option is reported in one sentence, with exit status 2.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from lib.ui.url_state import Setting, nearest, shown


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"{message[:1].upper()}{message[1:]}. See {self.prog} --help.", file=sys.stderr)
        raise SystemExit(2)


def given(settings: Mapping[str, Setting], words: Sequence[str], program: str) -> dict[str, str]:
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
