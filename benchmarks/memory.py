"""Resident memory of the notebook's kernel and of each worker after all experiments of the page."""

import time
from contextlib import suppress

import psutil

from benchmarks.browser import browser, fresh_cache, page_of, server, visitor, wait_until_all_over
from benchmarks.report import Row, Target, row, show

LIMITS_BYTES = {"kernel": 400e6, "jax": 700e6}
WAIT_S = 3  # the “look inside” trains and draws too


def main() -> None:
    with browser() as opened, fresh_cache() as cache, server(cache) as (process, address):
        with visitor(opened) as person, page_of(person, address) as page:
            wait_until_all_over(page)
            time.sleep(WAIT_S)
            rows = _rows(process)
    targets = [
        Target(f"{name}, resident", _megabytes(rows, name), limit / 1e6, "MB") for name, limit in LIMITS_BYTES.items()
    ]
    show("memory", rows, ("process", "rss_bytes", "rss_mb"), targets)


def _megabytes(rows: list[Row], name: str) -> float | None:
    return next((float(r["rss_mb"]) for r in rows if r["process"] == name), None)  # pyright: ignore[reportArgumentType]


def _rows(server_process: psutil.Process) -> list[Row]:
    children = server_process.children(recursive=True)
    workers = [child for child in children if "lib.sweeps.workers.worker" in _command(child)]
    kernels = {worker.ppid() for worker in workers}
    named = [("server", server_process)]
    named += [("kernel", child) for child in children if child.pid in kernels]
    named += [(_library(worker), worker) for worker in workers]
    rows = []
    for name, process in named:
        rss_bytes = process.memory_info().rss
        rows.append(row("memory", [], process=name, rss_bytes=rss_bytes, rss_mb=rss_bytes / 1e6))
    return rows


def _command(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def _library(worker: psutil.Process) -> str:
    """The worker's library: Keras is named in its environment, JAX in its mapped files."""
    keras = worker.environ().get("KERAS_BACKEND")
    if keras:
        return f"keras-{keras}"
    return "jax" if any("jaxlib" in region.path for region in worker.memory_maps()) else "numpy"
