"""What a busy core costs, on played epochs; the foreign process and the settings for real."""

import json
import subprocess
import sys
import time
from contextlib import contextmanager
from types import SimpleNamespace

import psutil
import pytest

from benchmarks import busy, report
from benchmarks.busy import AS_IT_IS, BUSY_LIMIT, ONE_THREAD, ROUNDS, SETTINGS, a_busy_core, variables
from benchmarks.peer import PEERS
from benchmarks.peer.process import PeerFailed, environment
from lib.model.hardware.machine import usable_cores
from lib.timing.disturbance import Disturbance

pytestmark = pytest.mark.release

STEPS = 1500


class Played:
    """A machine that becomes slower from round to round, one other program on it, and trainings with each setting."""

    def __init__(self, monkeypatch, times=None, disturbed=(), fails=()):
        self.times, self.disturbed, self.fails = times or {}, list(disturbed), fails
        self.core_is_busy, self.epochs = False, 0
        monkeypatch.setattr(busy, "SETTLE_S", 0.0)
        monkeypatch.setattr(busy, "PeerProcess", self.process)
        monkeypatch.setattr(busy, "a_busy_core", self.busy_core)
        monkeypatch.setattr(busy, "Watch", self.watch)

    @contextmanager
    def busy_core(self):
        self.core_is_busy = True
        yield
        self.core_is_busy = False

    @contextmanager
    def watch(self):
        said = SimpleNamespace(disturbance=None)
        yield said
        said.disturbance = Disturbance(1.0, 0.0, 1.0 if self.epochs in self.disturbed else 0.0, 0)

    def process(self, peer, settings, threads):
        times = self.times.get("one thread" if threads == 1 else "".join(settings.values()), (1.0, 1.0))

        def ask(question, _limit_s):
            if peer.key in self.fails:
                raise PeerFailed("it was killed")
            if question["do"] == "start":
                return {}
            self.epochs += 1
            drift = 1 + self.epochs / 10
            return {"train_s": drift * times[self.core_is_busy] * 0.5, "steps": STEPS // 2}

        return SimpleNamespace(ask=ask, answer=lambda _limit_s: {}, close=lambda: None)


def test_all_is_held_against_the_same_rounds_epoch_alone_as_it_is(monkeypatch):
    """One thread is no quicker alone, and hardly slower beside the busy core; what sleeps costs a third more alone."""
    Played(monkeypatch, {"": (1.0, 7.0), "one thread": (1.01, 1.2), "4": (1.3, 1.1)})
    found = busy.rows_of("numpy", 32, busy.measure("numpy", SETTINGS["numpy"], 32))
    rows = {r["setting"]: r for r in found}
    assert [rows[AS_IT_IS][name] for name in ("alone_times", "n")] == [1.0, ROUNDS]
    assert rows[AS_IT_IS]["busy_times"] == pytest.approx(7.0, rel=0.15)
    assert rows[ONE_THREAD]["busy_times"] == pytest.approx(1.2, rel=0.15), "though the machine became slower"
    assert rows["OPENBLAS_THREAD_TIMEOUT=4"]["alone_times"] == pytest.approx(1.3, rel=0.15)
    assert rows[AS_IT_IS]["busy_low"] == pytest.approx(7.0, rel=0.3), "and so is its interval"


def test_only_what_a_worker_has_is_judged():
    """One thread keeps the promise, and nobody gets it."""

    def row(setting, beside, low, high) -> report.Row:
        shared: report.Row = {"name": "busy", "backend": "numpy", "batch_size": 32, "setting": setting}
        return shared | {"busy_times": beside, "busy_low": low, "busy_high": high}

    first, second, *_ = busy.targets([row(AS_IT_IS, 7.0, 5.0, 9.0), row(ONE_THREAD, 1.0, 0.9, 1.1)])
    assert "MISSED   numpy, batch size 32, beside a busy core, over alone: 7 × (5 to 9; target ≤ 2.2 ×)" in str(first)
    assert second.word == "not measured", "nothing is known of another batch size"
    assert busy.targets([row(AS_IT_IS, 1.5, 0.5, 3.0)])[0].word == "unclear"
    assert BUSY_LIMIT == 2.2


def test_what_others_disturbed_is_measured_again(monkeypatch):
    played = Played(monkeypatch, disturbed=[1, 4])
    found = busy.measure("jax-epoch", SETTINGS["jax-epoch"], 32)
    assert {len(pairs.busy_s) for pairs in found.values()} <= {ROUNDS, ROUNDS + 1}
    assert played.epochs > 2 * ROUNDS * len(SETTINGS["jax-epoch"])
    rounds = 1 + max(number for pairs in found.values() for number in pairs.busy_s)
    assert sum(rounds - len(pairs.busy_s) for pairs in found.values()) == 2, "one for each that was disturbed"


def test_a_machine_that_is_never_quiet_has_no_row(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(report, "OUT", tmp_path)
    monkeypatch.setattr(report, "RESULTS", tmp_path / "RESULTS.md")
    monkeypatch.setattr(busy, "unavailable", lambda _peer: None)
    Played(monkeypatch, disturbed=range(10_000), fails=["torch-eager"])
    busy.main()
    assert json.loads((tmp_path / "busy.json").read_text()) == []
    said = capsys.readouterr().out
    assert "Left out: NumPy, batch size 32: as it is: other programs disturbed each of 18 rounds" in said
    assert "Left out: PyTorch, eager, batch size 512: it was killed" in said
    assert "not measured  numpy, batch size 32, beside a busy core, over alone: ≤ 2.2 ×" in said


def test_the_foreign_process_keeps_a_core_busy_and_ends_with_the_block():
    before = {child.pid for child in psutil.Process().children()}
    with a_busy_core():
        (foreign,) = (child for child in psutil.Process().children() if child.pid not in before)
        at_first, limit = sum(foreign.cpu_times()[:2]), time.monotonic() + 20
        while sum(foreign.cpu_times()[:2]) < at_first + 0.2 and time.monotonic() < limit:
            time.sleep(0.05)
        assert sum(foreign.cpu_times()[:2]) >= at_first + 0.2
    assert not foreign.is_running()


@pytest.mark.parametrize("key", SETTINGS)
def test_a_setting_reaches_the_process(key):
    for name in SETTINGS[key]:
        found = environment(PEERS[key], variables(name))
        assert variables(name).items() <= found.items()
    assert variables("OPENBLAS_THREAD_TIMEOUT=4") == {"OPENBLAS_THREAD_TIMEOUT": "4"}
    assert variables(ONE_THREAD) == variables(AS_IT_IS) == {}
    assert environment(PEERS[key], threads=1)["OPENBLAS_NUM_THREADS"] == "1"


IDLE = """
import time
import numpy as np
a = np.ones((512, 512), np.float32)
for _ in range(3):
    a @ a
before = time.process_time()
time.sleep(0.3)
print(time.process_time() - before)
"""


@pytest.mark.skipif(usable_cores() < 2, reason="one core: nobody waits for another")
def test_numpys_threads_can_be_let_sleep_after_a_product():
    """By default one keeps a core for a tenth of a second more (OpenBLAS 0.3.31)."""
    ours = environment(PEERS["numpy"], variables("OPENBLAS_THREAD_TIMEOUT=4"))
    ran = subprocess.run([sys.executable, "-c", IDLE], env=ours, capture_output=True, text=True, check=True)
    assert float(ran.stdout) < 0.005
