"""How many threads a library has while other programs keep cores, by played clocks, and once by a real one."""

import os
import subprocess
import sys
from itertools import pairwise

import pytest

from lib.backends import free_cores, with_numpy
from lib.backends.free_cores import LOOK_S, STALE_S, FreeCores
from lib.spec import Network, Training


class Played:
    """A machine whose clock goes on by `step_s` at each look, while others keep so many cores."""

    def __init__(self, monkeypatch, step_s=LOOK_S):
        self.at_s = self.busy_s = self.own_s = 0.0
        self.step_s, self.others = step_s, 0.0
        monkeypatch.setattr(free_cores, "_now", self.now)
        monkeypatch.setattr(free_cores.time, "sleep", self.sleep)
        self.slept = []

    def sleep(self, seconds):
        self.slept.append(seconds)
        self._go_on(seconds)

    def _go_on(self, seconds):
        self.at_s += seconds
        self.own_s += 2 * seconds
        self.busy_s += (2 + self.others) * seconds

    def now(self):
        found = free_cores._Moment(self.at_s, self.busy_s, self.own_s)
        self._go_on(self.step_s)
        return found


def looked(others, cores, played, used):
    played.others = others
    for _ in range(4):
        cores.look()
    return used[-1] if used else None


@pytest.mark.parametrize(("others", "threads"), [(0.3, 4), (0.67, 3), (1.0, 3), (1.3, 3), (1.5, 2), (3.9, 1), (9.0, 1)])
def test_each_core_that_others_keep_is_a_thread_less(monkeypatch, others, threads):
    played, used = Played(monkeypatch), []
    cores = FreeCores(4, used.append)
    looked(others, cores, played, used)
    assert cores.threads == threads
    looked(0.0, cores, played, used)
    assert cores.threads == 4
    assert all(one != other for one, other in pairwise(used)), "set only where it changes"


def test_what_happened_long_ago_is_looked_at_anew(monkeypatch):
    played, used = Played(monkeypatch, step_s=0.0), []
    cores = FreeCores(2, used.append)
    cores.look()
    assert played.slept == [free_cores.SAMPLE_S], "of the time before the first look nothing is known"
    played.others = 1.0
    played._go_on(2 * STALE_S)
    played.others = 0.0
    cores.look()
    assert (len(played.slept), used) == (2, [])


def test_looks_that_follow_at_once_are_skipped(monkeypatch):
    played, used = Played(monkeypatch, step_s=LOOK_S / 10), []
    cores = FreeCores(2, used.append)
    played.others = 1.0
    for _ in range(5):
        cores.look()
    assert len(used) <= 1


def test_a_library_of_one_thread_and_a_bare_machine_are_left_alone(monkeypatch):
    def never(threads: int) -> None:
        pytest.fail(f"set to {threads}")

    monkeypatch.setattr(free_cores, "_now", lambda: pytest.fail("looked"))
    FreeCores(1, never).look()
    monkeypatch.setattr(free_cores, "psutil", None)
    FreeCores(4, never).look()


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core")
def test_numpy_leaves_real_busy_cores_to_others(small_data):
    """As many busy programs as there are cores: one thread is left, and the training goes on as it was."""
    cores = os.cpu_count() or 1
    busy = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(cores)]
    try:
        training = Training(Network((64,)), batch_size=64, epochs=30)
        list(with_numpy.train(training, small_data))
        assert with_numpy._free_cores().threads == 1
    finally:
        for one in busy:
            one.kill()
            one.wait()
        with_numpy._free_cores.cache_clear()
