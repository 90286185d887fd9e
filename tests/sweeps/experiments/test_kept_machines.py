"""What a class has kept: each machine's GPU beside its processor, in order, and seen by all who watch."""

import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

import pytest

from lib.labs.which_library import race
from lib.model.backends.registry import Runtime
from lib.model.hardware.webgpu import BROWSER, SOFTWARE
from lib.model.spec import Network
from lib.sweeps.experiments import your_gpu
from lib.sweeps.experiments.recorded_machines import Machine, browsers_in
from lib.sweeps.experiments.your_gpu import (
    LOOK_S,
    MOST_ELSEWHERE,
    MOST_OF_A_VIEWER,
    USUAL_WAY,
    Block,
    BrowserAdapter,
    Contest,
    Found,
    KeptMachines,
    Opened,
    contests,
    elsewhere,
    kept_in,
)
from lib.sweeps.storage.records import Record
from lib.sweeps.storage.store import Store
from lib.timing.comparison import Verdict
from lib.ui.views import recorded_gpus
from tests.labs.test_race import at, raced
from tests.sweeps.experiments.test_your_gpu import JOB, WHO

CELL = (JOB.training.network, JOB.training.batch_size)
SWIFTSHADER = replace(WHO, reader="s", adapter=BrowserAdapter("google", "swiftshader", fallback=True))


def keep(store: Store, who: Opened, gpu_s: float, cpu_s: float, job=JOB, way: str = USUAL_WAY) -> None:
    """As if this reader had measured ten steps at a time, and had kept them."""
    found = Found(who, job, 4096)
    for pair in range(9):
        for device, of, step_s in (("gpu", way, gpu_s), ("cpu", "simd", cpu_s)):
            if step_s:
                found.take([Block(device, of, 10, 10 * step_s * (1 + 0.001 * pair), pair)])
    kept_in(store.path).keep(object(), your_gpu.records(found))


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "results.sqlite")


@pytest.fixture
def machines(store) -> tuple[Machine, ...]:
    """A class of five: GPU ahead twice, behind once, of software, and none."""
    keep(store, replace(WHO, reader="a"), 0.002, 0.004)
    keep(store, replace(WHO, reader="b"), 0.001, 0.004)
    keep(store, replace(WHO, reader="c", platform="Windows"), 0.008, 0.004)
    keep(store, SWIFTSHADER, 0.02, 0.004)
    keep(store, replace(WHO, reader="d", adapter=None), 0, 0.004)
    return browsers_in(store)


def test_no_reader_fills_the_store_or_keeps_others_from_it(store, monkeypatch):
    machines, results = 8, 12
    monkeypatch.setattr(your_gpu, "MOST_MACHINES", machines)
    monkeypatch.setattr(your_gpu, "MOST_RECORDS", results)
    kept = kept_in(store.path)
    (record,) = your_gpu.records(Found(WHO, JOB, 4096, blocks=[Block("cpu", "simd", 10, 0.02, n) for n in range(9)]))

    def kept_of(offers: Iterable[tuple[object, Record]]) -> int:
        """How many of the records that each viewer offers are kept."""
        for viewer, one in offers:
            with suppress(ValueError):
                kept.keep(viewer, [one])
        return len(store.records())

    assert kept_of(("a script", replace(record, machine=f"{n}")) for n in range(6)) == MOST_OF_A_VIEWER
    again = ((None, replace(record, machine="0", command=f"{n}")) for n in range(2 * results))
    assert kept_of(again) == MOST_OF_A_VIEWER - 1 + results
    assert kept_of((n, replace(record, machine=f"of {n}")) for n in range(2 * machines))
    assert len(browsers_in(store)) == machines
    with pytest.raises(ValueError, match=f"at most {machines} machines of all readers"):
        kept.keep("another", [record])
    kept.keep("a pupil's second tab", [replace(record, machine="of 0", command="later")])


def test_the_gpu_that_is_most_ahead_comes_first_and_what_is_no_gpu_last(machines):
    found = contests(machines, *CELL)
    ratios = [one.comparison.ratio if one.comparison else None for one in found]
    assert ratios[:4] == pytest.approx([0.25, 0.5, 2, 5])
    assert ratios[4] is None
    assert [one.verdict for one in found] == [Verdict.FASTER, Verdict.FASTER, Verdict.SLOWER, None, None]
    assert [one.is_software for one in found] == [False, False, False, True, False]
    assert [one.gpu.runtime.device for one in found if one.gpu] == [BROWSER] * 3 + [SOFTWARE]
    assert contests(machines, Network((8,)), 32) == contests(machines, CELL[0], 1) == []


def test_a_coarse_clock_may_leave_it_undecided(store):
    keep(store, replace(WHO, clock_s=0.01), 0.001, 0.002)
    (one,) = contests(browsers_in(store), *CELL)
    assert one.verdict is Verdict.UNCLEAR


def test_the_quickest_way_stands_for_a_gpu(store):
    for way, gpu_s in (("one_submission_a_step", 0.003), (USUAL_WAY, 0.002), ("waiting_after_each_operation", 0.04)):
        keep(store, WHO, gpu_s, 0, way=way)
    keep(store, WHO, 0, 0.004)
    (one,) = contests(browsers_in(store), *CELL)
    assert one.gpu is not None
    assert one.gpu.runtime.backend == "webgpu-chunk"


def test_what_is_kept_with_other_settings_is_counted_by_machine(store, machines):
    other = replace(JOB, training=replace(JOB.training, batch_size=64))
    keep(store, replace(WHO, reader="a"), 0.002, 0.004, other)
    keep(store, replace(WHO, reader="a"), 0.002, 0.004, other)
    assert elsewhere(browsers_in(store), *CELL) == {(CELL[0], 64): 1}
    assert elsewhere(browsers_in(store), CELL[0], 64) == {CELL: 5}


@pytest.mark.slow
def test_who_watches_hears_of_another_process_s_machine(store, monkeypatch):
    watched = KeptMachines(store)
    assert watched.view().items == []
    assert not watched.wait_for_news(0, 0.01)
    heard = threading.Event()
    watching = threading.Thread(target=lambda: watched.wait_for_news(0, 3 * LOOK_S) and heard.set(), daemon=True)
    watching.start()
    keep(Store(store.path), WHO, 0.001, 0.004)
    watching.join(10)
    assert heard.is_set() or watched.wait_for_news(0, LOOK_S)
    assert [machine.name for machine in watched.view().items] == ["macOS, Safari 26 · 8 cores · apple metal-3"]
    assert not watched.over_at(watched.view().version), "a class may always grow"
    reads = []
    monkeypatch.setattr(your_gpu, "browsers_in", lambda _: reads.append(1) or ())
    watched._looked = -LOOK_S
    watched.view()
    assert not reads, "nobody has written meanwhile"
    assert kept_in(store.path) is kept_in(store.path)


def test_who_comes_back_is_recognised_and_a_stranger_wakes_nobody(store):
    keep(store, WHO, 0.001, 0.004)
    watched = KeptMachines(store)
    seen = watched.view()
    watched.recognise("a stranger")
    watched.recognise("")
    assert watched.view().version == seen.version
    watched.recognise(seen.items[0].records[0].machine)
    assert watched.view().version > seen.version


def test_nobody_is_known_by_what_is_kept(store):
    keep(store, replace(WHO, reader="4711"), 0.001, 0.004)
    (machine,) = browsers_in(store)
    assert "4711" not in repr(machine)
    assert "localhost" not in repr(machine)
    assert Contest(machine, None, None).comparison is None


def test_the_last_kept_gpus_stand_beside_what_is_measured_here_where_there_is_no_card(store, monkeypatch):
    article = replace(JOB, training=replace(JOB.training, network=Network((128,))))
    for number in range(MOST_ELSEWHERE + 1):
        adapter = BrowserAdapter("somebody", f"model-{number}")
        keep(store, replace(WHO, reader=str(number), adapter=adapter), 0.001, 0.004, article)
    keep(store, SWIFTSHADER, 0.02, 0.004, article)
    for module in (your_gpu, recorded_gpus):
        monkeypatch.setattr(module, "recorded_gpus", lambda: ())
    monkeypatch.setattr(your_gpu, "Store", lambda *_: store)
    monkeypatch.setattr(your_gpu, "kept_in", lambda _: KeptMachines(store))
    monkeypatch.setattr(your_gpu, "nvidia_driver_answers", lambda: False)
    rows = race.table([Runtime("numpy")], (32,), raced({}), at())["rows"]
    mine = [row for row in rows if "GPU of a browser" in row["label"]]
    assert [row["label"].split(",")[0] for row in mine] == [f"somebody model-{number}" for number in (1, 2, 3)]
    assert all(row["cells"][0]["text"].startswith("1.5") for row in mine)
    assert "swiftshader" not in str(rows)
    assert "an epoch at batch size 32 takes 1.5" in recorded_gpus.epoch_note(32)
    assert " by WebGPU, many steps a submission." in recorded_gpus.epoch_note(32)
    assert recorded_gpus.step_note() == recorded_gpus.NONE_YET, "no browser takes a step apart"
    monkeypatch.setattr(your_gpu, "nvidia_driver_answers", lambda: True)
    assert your_gpu.gpus_elsewhere() == ()
