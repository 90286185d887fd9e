"""The machine is watched for real: our own work is not a disturbance, another program's is."""

import subprocess
import sys
import time

import psutil
import pytest

from lib.watch import Disturbance, Watch

SPIN = "import time\nend = time.monotonic() + 20\nwhile time.monotonic() < end: pass"


@pytest.fixture(autouse=True)
def undisturbed():
    """Here others are looked at."""


def spin(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


class Machine:
    """A machine on which nothing runs but these processes: the processor's own counters, without the others of this one."""

    def __init__(self, *pids: int) -> None:
        self.processes = [psutil.Process(), *map(psutil.Process, pids)]
        self.real = psutil.cpu_times()

    def spent_s(self) -> float:
        return sum(sum(process.cpu_times()[:4]) for process in self.processes)  # with children that ended

    def cpu_times(self):
        nothing = self.real._replace(**dict.fromkeys(self.real._fields, 0.0))
        return nothing._replace(user=self.spent_s(), idle=time.perf_counter())


def test_our_own_work_is_no_disturbance(monkeypatch):
    monkeypatch.setattr(psutil, "cpu_times", Machine().cpu_times)
    with Watch() as watch:
        child = subprocess.Popen([sys.executable, "-c", SPIN])
        spin(1.0)
        child.kill()
        child.wait()
    assert watch.disturbance is not None
    assert watch.disturbance.others_cores < 0.01, "neither this process nor its child"


def test_another_programs_work_is_named(monkeypatch):
    """A program that is none of ours: started by a shell that ends, so that it has another parent."""
    launched = subprocess.run(
        ["sh", "-c", f"'{sys.executable}' -c '{SPIN}' >/dev/null 2>&1 & echo $!"],
        capture_output=True,
        text=True,
        check=True,
    )
    pid = int(launched.stdout)
    machine = Machine(pid)
    monkeypatch.setattr(psutil, "cpu_times", machine.cpu_times)
    try:
        before = sum(machine.processes[1].cpu_times()[:2])
        with Watch() as watch:
            time.sleep(1.5)
        others_s = sum(machine.processes[1].cpu_times()[:2]) - before
        assert watch.disturbance is not None
        assert 0 < watch.disturbance.others_cores * watch.disturbance.seconds <= others_s + 0.01  # a tick of its clock
        with Watch(pid) as watch:
            time.sleep(1.0)
        assert watch.disturbance is not None
        assert watch.disturbance.others_cores < 0.01, "named as one of ours"
    finally:
        subprocess.run(["kill", str(pid)], check=False)


@pytest.mark.parametrize(
    ("disturbance", "words"),
    [
        (Disturbance(1.0, 0.1, 0.0, 0), "other virtual machines took 10%"),
        (Disturbance(1.0, 0.0, 1.5, 0), "kept 1.5 cores busy"),
        (Disturbance(1.0, 0.0, 0.0, 2**24), "16 MiB were swapped"),
    ],
)
def test_flags(disturbance, words):
    (flag,) = disturbance.flags
    assert words in flag


def test_quiet_is_no_flag():
    assert Disturbance(1.0, 0.0, 0.05, 0).flags == []
