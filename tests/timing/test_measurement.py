"""Statistics of literal numbers, and the measuring loop on a clock that only the step moves."""

import itertools
import multiprocessing
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import psutil
import pytest

from lib.model.backends.base import Epoch, FirstCall, Steps, no_parameters
from lib.model.backends.registry import Runtime
from lib.model.data.mnist import Facts
from lib.model.hardware.nvidia import Card, Gpu
from lib.sweeps.experiments.anatomy_of_a_step import AnatomyTask, measure_ceilings, measure_tasks
from lib.sweeps.experiments.backend_race import Cell, race
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Item, Measured, Message, Progress, Ready, Trained, Waiting
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.measurement import Config, Disturbance, Ended, Measurement, Meter, Turns, Watch, _family, disturbances
from lib.timing.profiling.request import Examination
from tests.conftest import ROOT


class World:
    """A clock that costs 50 ns to read, and steps that move it."""

    def __init__(self, read_s=50e-9):
        self.now, self.read_s, self.pending = 0.0, read_s, 0.0

    def clock(self):
        self.now += self.read_s
        return self.now

    def step(self, seconds, jitter=(0.0,)):
        """A step of `seconds`, each time with the next relative jitter."""
        jitters = itertools.cycle(jitter)

        def run():
            self.now += seconds * (1 + next(jitters))

        return run

    def asynchronous(self, dispatch_s, work_s):
        """A step that returns after dispatch, and a `sync` that waits for its work."""

        def run():
            self.now += dispatch_s
            self.pending = max(self.pending, self.now) + work_s
            return "array"

        def sync(result):
            assert result in ("array", None)
            self.now = max(self.now, self.pending)

        return run, sync


def measure(step, **options):
    return Meter(step, **options).run()


def test_a_steady_step_ends_at_the_target_spread():
    world = World()
    measured = measure(world.step(10e-6), clock=world.clock)
    assert measured.median_s == pytest.approx(10e-6, rel=2e-3)
    assert measured.ended is Ended.SPREAD
    assert len(measured.block_s) >= 9
    assert sum(measured.block_s) >= 0.3
    assert min(measured.block_s) >= 1e-3, "blocks long enough that the clock does not matter"
    assert measured.warnings == ()


def test_the_block_grows_with_the_cost_of_the_clock():
    cheap, dear = World(50e-9), World(50e-6)
    small = measure(cheap.step(1e-6), clock=cheap.clock)
    large = measure(dear.step(1e-6), clock=dear.clock)
    assert large.steps_per_block > 10 * small.steps_per_block
    assert large.median_s == pytest.approx(1e-6, rel=5e-3)


def test_a_noisy_step_ends_at_the_cap_with_a_warning():
    world = World()
    jitter = tuple(np.random.default_rng(1).uniform(-0.5, 0.5, 997))
    measured = measure(world.step(0.05, jitter), clock=world.clock, config=Config(max_time_s=5))
    assert measured.ended is Ended.CAP
    assert any("spread" in warning and "close other programs" in warning for warning in measured.warnings)
    assert world.now < 6


def test_a_step_longer_than_the_cap_is_measured_once():
    world = World()
    measured = measure(world.step(30.0), clock=world.clock)
    assert measured.ended is Ended.CAP
    assert len(measured.block_s) == 1
    (warning,) = measured.warnings
    assert "only 1 blocks instead of 9" in warning
    assert "raise max_time_s" in warning


def test_a_step_that_returns_at_once_is_reported():
    config = Config(max_time_s=0.3, min_time_s=0.05, warm_up_s=0.01)
    measured = measure(lambda: None, clock=time.process_time, config=config)
    assert any("returns at once" in warning and "lazily" in warning for warning in measured.warnings)


def test_a_clock_that_stands_still_does_not_hang():
    config = Config(warm_up_s=0, max_steps_per_block=2)
    assert measure(lambda: None, clock=lambda: 1.0, config=config).ended is Ended.CAP


def test_synchronisation_is_part_of_a_step():
    world = World()
    step, sync = world.asynchronous(dispatch_s=20e-6, work_s=500e-6)
    assert measure(step, sync=sync, clock=world.clock).median_s == pytest.approx(500e-6, rel=0.05)
    assert measure(step, clock=world.clock).median_s == pytest.approx(20e-6, rel=0.02), "why all take a `sync`"


def test_quartiles_and_digits_on_literal_numbers():
    measured = Measurement((10.0, 12.0, 11.0, 14.0, 13.0), 1000, Ended.SPREAD)
    assert measured.median_s == 0.012
    assert measured.quartiles_s == (0.011, 0.013)
    assert measured.spread == pytest.approx(1 / 6)
    assert measured.text == "12 ms"


def test_measuring_imports_no_framework():
    code = (
        "import sys; import lib.timing.measurement, lib.model.spec, lib.timing.prediction.workload;"
        " print(sorted({'tensorflow', 'jax', 'keras', 'marimo', 'pandas'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


SPIN = "import time\nend = time.monotonic() + 20\nwhile time.monotonic() < end: pass"


@contextmanager
def spinning() -> Iterator[subprocess.Popen]:
    with subprocess.Popen([sys.executable, "-c", SPIN]) as child:
        try:
            yield child
        finally:
            child.kill()


@pytest.fixture(autouse=True)
def undisturbed():
    """Overrides the fixture of this name: here, disturbances are measured."""


class Machine:
    """CPU counters of a machine that runs only this process and `pids`."""

    def __init__(self, *pids: int) -> None:
        self.processes = [psutil.Process(), *map(psutil.Process, pids)]
        self.real = psutil.cpu_times()

    def spent_s(self) -> float:
        return sum(sum(process.cpu_times()[:4]) for process in self.processes)  # includes finished children

    def cpu_times(self):
        nothing = self.real._replace(**dict.fromkeys(self.real._fields, 0.0))
        return nothing._replace(user=self.spent_s(), idle=time.perf_counter())


@pytest.mark.slow
def test_own_work_is_not_a_disturbance(monkeypatch):
    monkeypatch.setattr(psutil, "cpu_times", Machine().cpu_times)
    watch = Watch()
    with spinning():
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            pass
    assert watch.so_far().others_cores < 0.01, "neither this process nor its child"


@pytest.mark.slow
def test_work_of_another_program_is_reported(monkeypatch):
    in_the_background = f"'{sys.executable}' -c '{SPIN}' >/dev/null 2>&1 & echo $!"
    pid = int(subprocess.check_output(["sh", "-c", in_the_background]))
    used_s = lambda: sum(psutil.Process(pid).cpu_times()[:2])  # noqa: E731
    monkeypatch.setattr(psutil, "cpu_times", Machine(pid).cpu_times)
    try:
        while not used_s():  # until it has started
            time.sleep(0.05)
        before_s = used_s()
        watch = Watch()
        time.sleep(1.5)
        seen = watch.so_far()
        others_s = used_s() - before_s
        assert 0 < seen.others_cores * seen.seconds <= others_s + 0.01 + 1e-9, "but for one tick of the kernel's clock"
    finally:
        subprocess.run(["kill", str(pid)], check=False)


def test_a_worker_counts_once_as_own_work():
    with spinning() as child:
        assert [process.pid for process in _family()].count(child.pid) == 1


def test_the_server_of_a_notebooks_kernel_counts_as_own_work(monkeypatch):
    with spinning() as server:
        before = {process.pid for process in _family()} - {server.pid}
        monkeypatch.setattr(multiprocessing, "parent_process", lambda: psutil.Process(server.pid))
        monkeypatch.setattr(psutil.Process, "children", lambda self, recursive: [])  # else it counts as our child
        assert {process.pid for process in _family()} <= before | {server.pid}
        assert server.pid in {process.pid for process in _family()}


class Clock:
    """A clock set by hand; `others_cores` is the load of other programs in each turn."""

    def __init__(self, monkeypatch, *others_cores):
        self.now_s, self.looks, others_cores = 0.0, 0, iter(others_cores)
        monkeypatch.setattr("lib.timing.measurement.time.monotonic", lambda: self.now_s)
        monkeypatch.setattr(Watch, "_look", lambda _watch: None)

        def so_far(_watch):
            self.looks += 1
            return Disturbance(1.0, 0.0, next(others_cores), 0)

        monkeypatch.setattr(Watch, "so_far", so_far)


def test_disturbances_of_earlier_turns_are_kept(monkeypatch):
    clock = Clock(monkeypatch, 1.5, 0.0, 0.0)
    turns = Turns()
    assert turns.flags() == ()
    turns.begin()
    clock.now_s = 2.0
    turns.end()
    (flag,) = turns.flags()
    assert "kept 1.5 cores busy" in flag
    clock.now_s = 60.0  # between our turns, nothing is watched
    turns.begin()
    clock.now_s = 62.0
    assert turns.flags() == (flag,)
    assert clock.looks == 2


def test_long_turns_are_checked_rarely_and_short_ones_never(monkeypatch):
    clock = Clock(monkeypatch, 1.0, 0.0)
    turns = Turns()
    turns.begin()
    clock.now_s = 0.4
    assert (turns.flags(), clock.looks) == ((), 0)
    clock.now_s = 0.6
    for _ in range(3):
        assert "kept 1.0 cores" in turns.flags()[0]
    assert clock.looks == 1
    clock.now_s = 2.0
    assert turns.flags() == (), "over the whole turn it was little"
    turns.begin()
    clock.now_s = 2.3
    turns.end()
    assert clock.looks == 2


@pytest.mark.parametrize(
    ("disturbance", "words"),
    [
        (Disturbance(1.0, 0.12, 0.0, 0), "other virtual machines took 12%"),
        (Disturbance(1.0, 0.0, 1.5, 0), "kept 1.5 cores busy"),
        (Disturbance(1.0, 0.0, 0.0, 2**24), "16 MiB were swapped"),
        (Disturbance(4.0, 0.0, 0.0, 0, {"its power": 1.5, "its heat": 0.01}), "slowed by its power for 1.5 of 4 s"),
        (Disturbance(1.0, 0.0, 0.0, 0, throttled_by=("its power",)), "does not report for how long"),
    ],
)
def test_disturbances_have_flags(disturbance, words):
    (flag,) = disturbance.flags
    assert words in flag


def test_small_disturbances_have_no_flag():
    assert Disturbance(1.0, 0.06, 0.05, 0, {"its power limit": 0.01}).flags == []


def card(uuid="GPU-1", slowed_s=None, throttled_by=()):
    return Gpu(Card(uuid, "NVIDIA L4", "570.86"), throttled_by=throttled_by, slowed_s=slowed_s)


HEAT, OTHER = card(slowed_s={"heat": 7.0}), card("GPU-2", {"heat": 8.0})


@pytest.mark.parametrize(
    ("before", "after", "slowed_s", "throttled_by"),
    [
        ([HEAT], [card(slowed_s={"heat": 9.0})], {"heat": 2.0}, ()),
        ([HEAT], [HEAT], {"heat": 0.0}, ()),
        ([card()], [card(throttled_by=("heat",))], {}, ("heat",)),
        ([], [HEAT], {"heat": 0.0}, ()),
        ([HEAT], [], {}, ()),
        ([HEAT], [card(slowed_s={"heat": 1.0})], {"heat": 0.0}, ()),
        ([HEAT, OTHER], [card("GPU-2", {"heat": 8.5}), card("GPU-1", {"heat": 8.0})], {"heat": 1.0}, ()),
    ],
    ids=["counted", "long ago", "not counted", "came late", "disappeared", "driver reloaded", "the longest of two"],
)
def test_throttling_is_the_difference_before_and_after(before, after, slowed_s, throttled_by, monkeypatch):
    answers = iter([before, after])
    monkeypatch.setattr("lib.timing.measurement.gpus", lambda: next(answers))
    found = Watch(gpu=True).so_far()
    assert (found.slowed_s, found.throttled_by) == (slowed_s, throttled_by)


class FakeEngine(Engine):
    """An engine whose worker answers at once; only the warnings on its measurements matter."""

    def run(self, jobs, cancel, request=None, n_workers=0) -> Iterator[Message]:
        (job,) = jobs
        yield Ready(Facts("MNIST", "digest"))
        if job.examination is not None:
            yield Measured("product", Measurement((1e-3,) * 3, 1, Ended.CAP, warnings=("its own",)), 1e9)
            return
        for training in job.trainings:
            item = Item(training, job.runtime)
            yield Progress(item, FirstCall(0.1))
            for epoch in range(training.epochs):
                for first in (0, 1):
                    yield Progress(item, Steps(epoch, first, np.ones(1, np.float32), 1e-3))
                yield Progress(item, Epoch(epoch, 2, 0.3, 0.9, 1e-3, 1e-4, no_parameters))
            yield Trained(item, None)


PARTS = Examination("parts")
TIMED = {
    "race": lambda runtime, *on: race([Cell(runtime, 32)], *on, Cancel(), Request()),
    "ceilings": lambda runtime, *on: measure_ceilings([runtime], *on, Cancel()),
    "parts": lambda runtime, *on: measure_tasks([AnatomyTask(runtime, PARTS)], *on, Cancel(), Request()),
}


@pytest.mark.parametrize("timed", TIMED)
def test_measurements_on_a_card_record_its_throttling(timed, tmp_path, monkeypatch):
    queries = itertools.count(5.0)  # each finds it slowed for another second
    cards = lambda: [card(slowed_s={"its temperature": next(queries)})]  # noqa: E731
    monkeypatch.setattr("lib.timing.measurement.gpus", cards)
    for device, expected in (("gpu", True), ("cpu", False)):
        engine, store = FakeEngine(), Store(tmp_path / f"{device}.sqlite")
        list(TIMED[timed](Runtime("jax-epoch", device), engine, store))
        records = store.records()
        assert records
        for record in records:
            assert ("slowed by its temperature" in " ".join(record.warnings)) is expected, record.subject
            assert ("slowed by its temperature" in " ".join(disturbances(record.warnings))) is expected
            assert "its own" not in disturbances(record.warnings), "not the machine's doing"


def test_watching_for_disturbances_begins_with_the_turn(monkeypatch):
    began = []
    monkeypatch.setattr(Watch, "_look", lambda self: began.append("watch"))
    monkeypatch.setattr(Watch, "marked", lambda self, measured: measured)

    class Queued(FakeEngine):
        def run(self, jobs, cancel, request=None, n_workers=0) -> Iterator[Message]:
            began.append("waiting")
            yield Waiting(3)
            began.append("ready")
            yield from super().run(jobs, cancel, request)

    list(Queued().examine(Runtime(), Examination("ceilings"), Cancel()))
    assert began == ["waiting", "ready", "watch"]


def test_stolen_time_is_a_share_of_the_time_wanted(monkeypatch):
    Times = namedtuple("Times", "user system idle iowait steal")
    clock = iter([Times(10.0, 1.0, 100.0, 0.0, 5.0), Times(10.8, 1.0, 107.0, 0.0, 5.2)])
    monkeypatch.setattr("lib.timing.measurement.psutil.cpu_times", lambda: next(clock))
    assert Watch().so_far().steal_share == pytest.approx(0.2)
