"""The traps: which are measured where, drawn and judged from literal figures, and once measured for real."""

import pytest

from lib.labs.inside_a_step import traps
from lib.labs.inside_a_step.traps import TRAPS, occupancy, pairs, sentence, traps_chart, traps_table
from lib.model.backends.registry import Runtime, versions
from lib.model.hardware import webgpu
from lib.sweeps.experiments.anatomy_of_a_step import TRAPS_NETWORK, measure_tasks, traps_task
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Measured, Note
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.comparison import Verdict
from lib.timing.measurement import Ended, Measurement
from lib.timing.profiling.request import REFERENCE
from lib.timing.profiling.request import TRAPS as NAMES


def measured(*values):
    return Measurement(values, 1, Ended.CAP)


def of(*ratios):
    """Nine blocks, each so many times the reference's of its round."""
    return measured(*(2e-4 * ratio for ratio in ratios * (9 // len(ratios))))


FOUND = {
    REFERENCE: measured(*[2e-4] * 9),
    "synchronisation": of(0.1),
    "first call counted": of(5.0),
    "one sample": of(0.5, 2.0, 4.5),
    "best of n": of(1.0),
    "transfer inside": of(1.5),
    "busy is not working": of(1.9),
}


class StandIn(Engine):
    """An engine that answers every examination at once, with the ceilings or the traps."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = []

    def examine(self, runtime, examination, cancel, request=None):
        self.asked.append((examination.kind, runtime, examination.batch_size))
        names = ("product", "copy", "dispatch") if examination.kind == "ceilings" else (REFERENCE, *NAMES)
        for number, name in enumerate(names, 1):
            yield Measured(name, measured(*[number * 1e-4] * 3), 1.0)


def test_the_ceilings_come_first_and_nothing_is_measured_twice(tmp_path):
    engine, store = StandIn(), Store(tmp_path / "results.sqlite")
    for size in (512, 32, 32):
        at = traps.Traps({"device": "cpu", "size": size})
        todo = [task for task in traps.tasks(at) if not task.complete(store.records())]
        list(measure_tasks(todo, engine, store, Cancel(), Request()))
    assert [kind for kind, *_ in engine.asked] == ["ceilings", "traps", "traps"]
    assert engine.asked[1][1:] == (Runtime(), 512)
    task = traps_task("cpu", 32)
    assert set(task.found(store.records())) == {REFERENCE, *NAMES}
    assert {record.versions for record in store.records("anatomy")} == {versions(task.runtime)}
    assert traps_task("gpu", 32).found(store.records()) == traps_task("cpu", 1).found(store.records()) == {}


def test_a_library_is_timed_where_it_computes():
    assert [traps_task(one, 32).runtime for one in ("cpu", "gpu")] == [Runtime(), Runtime(device="gpu")]
    by_webgpu = traps_task("integrated", 32)
    assert by_webgpu.runtime == Runtime("webgpu-step", "integrated")
    assert by_webgpu.subject["by"] == "webgpu", "a record of its own"


@pytest.mark.parametrize("allowed", [False, True])
def test_webgpus_devices_are_those_whose_adapter_is_there(monkeypatch, allowed):
    """A software adapter only where the reader asked for one, and it is called what it is."""
    monkeypatch.setenv("WEBGPU_SOFTWARE", "1" if allowed else "")
    monkeypatch.setattr("lib.model.backends.registry._installed", lambda *_: True)
    found = (webgpu.Adapter("integrated", "a GPU", "", ""), webgpu.Adapter("software", "llvmpipe", "", ""))
    software = ["WebGPU, software adapter"] if allowed else []
    monkeypatch.setattr(webgpu, "asked", lambda with_software: found)
    assert set(traps.devices()) - {"gpu"} == {"cpu", "WebGPU, integrated GPU", *software}
    assert traps.missing_note() == ""
    monkeypatch.setattr(webgpu, "asked", lambda with_software: found[1:])
    assert set(traps.devices()) - {"gpu"} == {"cpu", *software}
    assert ("not timed here: WebGPU finds no discrete GPU on this machine" in traps.missing_note()) is not allowed


def test_nothing_is_shown_without_its_reference():
    assert set(pairs(FOUND)) == set(TRAPS) == set(NAMES)
    assert pairs({"one sample": of(1.0)}) == {}
    assert set(pairs({REFERENCE: FOUND[REFERENCE], "one sample": of(1.0)})) == {"one sample"}


def test_there_is_one_right_figure_and_all_are_held_against_it():
    known = pairs(FOUND)
    assert {id(pair.right) for pair in known.values()} == {id(FOUND[REFERENCE])}
    assert traps_table(known, 32, 200e9, 2).count("200 μs (200\u202fμs to 200\u202fμs)") == 1
    rows = [row for rows in traps_chart(known).spec["datasets"].values() for row in rows]
    assert sum(row["way"] == "right" for row in rows) == 9 + 1
    assert sum(row["label"] == "one sample" for row in rows) == 9 + 1, "every sample"
    assert traps_chart({}).spec["height"] == traps_chart(known).spec["height"], "nothing jumps while it fills"


@pytest.mark.parametrize(
    ("ratios", "verdict", "words"),
    [
        ((1.04,), Verdict.SLOWER, "1.04 × (1.04 to 1.04), too long"),
        ((0.9,), Verdict.FASTER, "0.9 × (0.9 to 0.9), too short"),
        ((1.02,), Verdict.SAME, "no difference here"),
        ((0.5, 1.0, 1.5), Verdict.UNCLEAR, "not told apart here"),
    ],
)
def test_wrong_is_told_from_right_by_the_rule_of_every_comparison(ratios, verdict, words):
    known = pairs(FOUND | {"best of n": of(*ratios)})
    assert known["best of n"].comparison.verdict is verdict
    assert words in traps_table(known, 32, None, 2)
    told_apart = verdict in (Verdict.SLOWER, Verdict.FASTER)
    assert ("best of n" in sentence(known).split("Not told apart")[0]) is told_apart


def test_a_drift_of_the_machine_is_no_mistake():
    """Blocks beside each other drift together: twice as slow at the end, and still the same."""
    drifting = measured(*(2e-4 * (1 + n / 8) for n in range(9)))
    assert pairs({REFERENCE: drifting, "best of n": drifting})["best of n"].comparison.verdict is Verdict.SAME


def test_the_table_tells_by_how_much_and_why():
    text = traps_table(pairs(FOUND), 32, 200e9, 2)
    share = f"{TRAPS_NETWORK.step_flops(32) / 200e9 / 2e-4:.0%} of the arithmetic"
    for said in (
        "0.1 × (0.1 to 0.1), too short",
        "Wait for the result before reading the clock",
        "Report the first call apart",
        "the first took 4.2",  # 5 × 1 ms − 4 × 0.2 ms
        "100\u202fμs to 900\u202fμs",
        "Move the whole data set once",
        "95% busy",
        share,
    ):
        assert said in text
    unclear = traps_table(pairs(FOUND | {"transfer inside": of(0.5, 1.1, 1.9)}), 32, None, 2)
    assert "Move the whole data set once" not in unclear, "what was not told apart is not explained"
    assert "of the arithmetic it could do" not in unclear, "without a ceiling"


def test_the_largest_mistake_is_named():
    said = sentence(pairs(FOUND))
    assert said.startswith("Largest mistake here: synchronisation, by a factor of 10. The others: first call counted 5")
    assert said.endswith("Not told apart from the right figure here: one sample and best of n.")
    assert sentence({}) == ""


def test_a_cards_utilisation_stands_beside_its_occupancy():
    counted = {
        "occupancy/utilisation": measured(0.98, 0.97, 0.98),
        "occupancy/activity": measured(0.035),
        "occupancy/warps": measured(0.0125),
    }
    text = occupancy(counted, "gpu")
    for share in ("98 % utilisation", "3.5 % of its multiprocessors", "1.25 % of the warps"):
        assert share in text
    assert "not reported by this chip" in occupancy({"occupancy/utilisation": measured(1.0)}, "gpu"), "an L4, say"
    assert occupancy(counted, "cpu") == ""


@pytest.mark.release
def test_measured_for_real(engine, tmp_path):
    task = traps_task("cpu", 512)
    events = measure_tasks([task], engine, Store(tmp_path / "r.sqlite"), Cancel(), Request())
    records = [one for one in events if not isinstance(one, Note)]
    assert task.complete(records)
    known = pairs({name: record.measurement for name, record in task.found(records).items()})
    assert set(known) == set(NAMES)
    assert {len(pair.wrong.block_s) for pair in known.values()} == {len(known["best of n"].right.block_s)}, "in turns"
    assert known["first call counted"].comparison.ratio > 1, "the first call compiles"
    assert known["synchronisation"].comparison.ratio < 1, "a call returns before it is done"
