"""A class on one server: everyone gets results, equal trainings run once, and viewers who left cost nothing."""

import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psutil
import pytest

from benchmarks.client import FINISHED, Viewer
from lib.site.server import WORKERS_NICENESS

pytestmark = [pytest.mark.release, pytest.mark.timeout(600)]
# Small settings. The fourth experiment starts other libraries, so tests do not wait for it.
QUICK = (
    "rate.count=4&rate.size=512&rate.epochs=2&size.sizes=256,1024&size.epochs=2"
    "&depth.networks=128,256&depth.size=512&depth.epochs=2&backend.hidden=16&backend.size=4096&backend.epochs=2"
)
AWAITED = ("learning_rate", "batch_size", "hidden_layers")
LONG = "rate.count=16&rate.size=1&rate.epochs=20&rate.hidden=512"  # takes far longer than the test waits
LIMIT_S = 300


@pytest.fixture
def server(site):
    return site.at("mnist_training.py"), psutil.Process(site.process.pid)


def shown(viewer: Viewer) -> dict[str, list[str]]:
    def over(viewer: Viewer) -> bool:
        return all(name in viewer.frames and viewer.frames[name].state in FINISHED for name in AWAITED)

    viewer.wait(over, LIMIT_S, "three results")
    return {name: re.findall("<td>([^<]*)</td>", viewer.frames[name].html) for name in AWAITED}


def test_twenty_viewers_share_the_same_trainings(server):
    def look(_: int) -> dict[str, list[str]]:
        with Viewer(server[0], QUICK) as viewer:
            return shown(viewer)

    with ThreadPoolExecutor(20) as pool:
        pages = list(pool.map(look, range(20)))
    for name in AWAITED:  # a repeated training would have other seconds
        made = {tuple(cell for cell in page[name] if re.fullmatch(r"[\d.]+", cell)) for page in pages}
        assert len(made) == 1, f"{name}: expected one measurement for all, got {len(made)}: {made}"


def test_a_closed_tab_ends_its_training_which_has_lower_priority(server):
    address, process = server
    with Viewer(address, LONG) as viewer:
        viewer.wait(
            lambda viewer: "learning_rate" in viewer.frames and viewer.frames["learning_rate"].state == "training",
            LIMIT_S,
            "training",
        )
        assert WORKERS_NICENESS in {worker.nice() - process.nice() for worker in process.children()}
    limit = time.monotonic() + 60
    while (used_s := workers_cpu_s(process, 2.0)) > 0.05:
        assert time.monotonic() < limit, f"the workers still use {used_s / 2:.0%} of a core"


def workers_cpu_s(process: psutil.Process, period_s: float) -> float:
    def spent_s() -> float:
        total_s = 0.0
        for child in process.children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it has ended
                total_s += sum(child.cpu_times()[:2])
        return total_s

    before_s = spent_s()
    time.sleep(period_s)
    return spent_s() - before_s
