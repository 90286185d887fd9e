"""Open a notebook: `python -m lib.launch edit|run --port 2718`. Says in one sentence when the port is busy."""

import argparse
import os
import runpy
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = "mnist_training.py"


def port_problem(port: int) -> str:
    """Why the port cannot be used on this machine's loopback; empty where it can."""
    if not 1 <= port <= 65535:
        return f"port: expected 1 to 65535, got {port}; choose another, for example PORT=2718"
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return f"port: expected a free one, but {port} cannot be used ({error.strerror}); choose another, for example PORT={port % 65535 + 1}"
    return ""


def notebook_problem(notebook: str) -> str:
    """Why this is not one of the project's notebooks; empty where it is."""
    known = [NOTEBOOK, *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "notebooks").glob("*.py"))]
    return (
        ""
        if notebook in known
        else f"notebook: expected one of {', '.join(known)}, got {notebook}; choose one of these"
    )


def command(mode: str, port: int, headless: bool, notebook: str = NOTEBOOK) -> list[str]:
    """marimo's command line. `run` in front of a class has no editor and no token; both listen on this machine only."""
    words = [sys.executable, "-m", "marimo", mode, str(ROOT / notebook), "--host", "127.0.0.1", "--port", str(port)]
    if mode == "edit":
        words.append("--skip-update-check")
    return words + (["--headless"] if headless else [])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lib.launch", description=__doc__)
    parser.add_argument("mode", choices=("edit", "run"))
    parser.add_argument("--port", type=int, default=2718)
    parser.add_argument("--headless", default="0", help="1: do not open a browser")
    parser.add_argument("--notebook", default=NOTEBOOK, help="one of notebooks/*.py")
    options = parser.parse_args(arguments)
    if problem := notebook_problem(options.notebook) or port_problem(options.port):
        print(problem[:1].upper() + problem[1:] + ".", file=sys.stderr)
        return 1
    words = command(options.mode, options.port, options.headless not in ("", "0"), options.notebook)
    os.chdir(ROOT)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    if options.mode == "edit":
        os.execv(words[0], words)
    from lib.parsing import one_at_a_time  # and with it marimo: `edit` must not wait for that twice

    one_at_a_time()  # under `run` the viewers' kernels are threads of the server
    sys.argv = words[2:]
    runpy.run_module("marimo", run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
