"""Serve the notebooks: `python -m lib.cli.launch app|edit|run --port 2718`.

`app` serves them as pages for one user; `edit` starts marimo's editor and accepts its options; `run` serves the site
for a class.
"""

import argparse
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lib import ROOT, python_path
from lib.formatting import sentence
from lib.model.backends.registry import Runtime
from lib.sweeps.workers.engine import shared_engine
from lib.ui.notebooks import FIRST, NOTEBOOKS, SERVED, present_file


def port_problem(port: int, host: str = "127.0.0.1") -> str:
    """Return why the port cannot be used, with a remedy; empty if it can."""
    if not 1 <= port <= 65535:
        return f"port: expected 1 to 65535, got {port}; choose another, for example PORT=2718"
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free
        try:
            probe.bind((host, port))
        except OSError as error:
            return (
                f"port: expected a free one, but {port} cannot be used ({error.strerror}); choose another, for example"
                f" PORT={port % 65535 + 1}"
            )
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lib.cli.launch", description=__doc__, allow_abbrev=False)
    parser.add_argument("mode", choices=("app", "edit", "run"))
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: this machine only)")
    parser.add_argument("--port", type=int, default=2718)
    parser.add_argument("--headless", default="0", help="1: do not open a browser")
    files = [one.file for one in NOTEBOOKS]
    parser.add_argument("--notebook", type=present_file, choices=files, default=FIRST.file, help="which to open first")
    group = parser.add_argument_group("run: in front of a class", argument_default=argparse.SUPPRESS)
    of_class = [
        group.add_argument("--password-file", help="everyone must enter its first line (or PASSWORD_FILE)"),
        group.add_argument("--class-link", action="store_true", help="pupils enter by a printed link with a token"),
        group.add_argument("--public-host", help="the name of the TLS proxy in front, such as class.example.org"),
        group.add_argument("--viewers", type=int, help="open pages at once; later arrivals wait (120)"),
        group.add_argument("--runs", type=int, help="most waiting runs per viewer (4)"),
        group.add_argument("--log", action="store_true", help="write a line of JSON for each event"),
    ]
    options, further = parser.parse_known_args(arguments)
    if further and options.mode != "edit":
        parser.error(f"expected the options above, got {' '.join(further)}")
    for_class = {one.dest: vars(options)[one.dest] for one in of_class if one.dest in options}
    if for_class and options.mode != "run":
        given = " and ".join(f"--{name.replace('_', '-')}" for name in for_class)
        parser.error(f"expected {given} with run, got {options.mode}, which serves one person")
    if problem := port_problem(options.port, options.host):
        print(sentence(problem), file=sys.stderr)
        return 1
    os.chdir(ROOT)
    os.environ["PYTHONPATH"] = python_path()
    os.environ[SERVED] = options.mode
    if options.mode == "app":
        shared_engine().warm(Runtime())  # the worker imports JAX while this process imports marimo
    if options.mode != "edit":
        return _serve_class(options, for_class)
    from lib.site.editor import serve_editor  # after the checks, because importing marimo takes a second

    serve_editor(options.host, options.port, options.headless not in ("", "0"), options.notebook, further)
    return 0


def _serve_class(options: argparse.Namespace, for_class: dict[str, Any]) -> int:
    from lib.site.access import password_of
    from lib.site.server import ClassOptions, serve_class

    try:
        kept = os.environ.get("PASSWORD_FILE") if options.mode == "run" else None
        file = for_class.pop("password_file", kept)
        password = password_of(Path(file)) if file else ""
        site = ClassOptions(password, app=options.mode == "app", **for_class)
        site.check(options.host)
    except ValueError as error:
        print(sentence(error), file=sys.stderr)
        return 1
    notebook = next(one for one in NOTEBOOKS if one.file == options.notebook)
    serve_class(options.host, options.port, options.headless not in ("", "0"), notebook, site)
    return 0


if __name__ == "__main__":
    sys.exit(main())
