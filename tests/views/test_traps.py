"""The traps: pairs of a wrong and a right way, drawn and judged from literal figures, and once measured for real."""

import pytest

from lib.backends.registry import Runtime, Unavailable
from lib.experiments.anatomy_of_a_step import AnatomyTask, measure_tasks
from lib.profiling.request import REFERENCE, Examination
from lib.profiling.request import TRAPS as NAMES
from lib.spec import Network
from lib.storage.store import Store
from lib.timing.comparison import Verdict
from lib.timing.measurement import Ended, Measurement
from lib.views.traps import (
    TRAPS,
    device_label,
    missing_note,
    occupancy,
    pairs,
    sentence,
    step_of,
    traps_chart,
    traps_table,
)
from lib.workers.cancel import Cancel
from lib.workers.notes import Note
from lib.workers.queue import Request

NETWORK = Network((128,))


def measured(*values):
    return Measurement(values, 1, Ended.CAP)


def of(*ratios, spread=0.0):
    """Nine blocks, each so many times the reference's of its round."""
    return measured(*(2e-4 * ratio * (1 + spread * (n % 3 - 1)) for n, ratio in enumerate(ratios * (9 // len(ratios)))))


FOUND = {
    REFERENCE: measured(*[2e-4] * 9),
    "synchronisation": of(0.1),
    "first call counted": of(5.0),
    "one sample": of(0.5, 2.0, 4.5),
    "best of n": of(1.0),
    "transfer inside": of(1.5),
    "busy is not working": of(1.9),
}


def test_nothing_is_shown_without_its_reference():
    assert set(pairs(FOUND)) == {trap.key for trap in TRAPS} == set(NAMES)
    assert pairs({"one sample": of(1.0)}) == {}
    assert set(pairs({REFERENCE: FOUND[REFERENCE], "one sample": of(1.0)})) == {"one sample"}


def test_there_is_one_right_figure_and_all_are_held_against_it():
    known = pairs(FOUND)
    assert {id(pair.right) for pair in known.values()} == {id(FOUND[REFERENCE])}
    text = traps_table(known, NETWORK, 32, 200e9, 2)
    assert text.count("200 μs (200\u202fμs to 200\u202fμs)") == 1
    rows = [row for rows in traps_chart(known).spec["datasets"].values() for row in rows]
    assert sum(row["way"] == "right" for row in rows) == 9 + 1


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
    assert words in traps_table(known, NETWORK, 32, None, 2)
    told_apart = verdict in (Verdict.SLOWER, Verdict.FASTER)
    assert ("best of n" in sentence(known).split("Not told apart")[0]) is told_apart


def test_a_drift_of_the_machine_is_no_mistake():
    """Blocks beside each other drift together: twice as slow at the end, and still the same."""
    drifting = [2e-4 * (1 + n / 8) for n in range(9)]
    known = pairs({REFERENCE: measured(*drifting), "best of n": measured(*drifting)})
    assert known["best of n"].comparison.verdict is Verdict.SAME


def test_the_table_tells_by_how_much_and_why():
    text = traps_table(pairs(FOUND), NETWORK, 32, 200e9, 2)
    assert "0.1 × (0.1 to 0.1), too short" in text
    assert "Wait for the result before reading the clock" in text, "the verdict on unsynchronised timing"
    assert "Report the first call apart" in text
    assert "the first took 4.2" in text, "5 × 1 ms − 4 × 0.2 ms"
    assert "100\u202fμs to 900\u202fμs" in text
    assert "Move the whole data set once" in text
    assert "95% busy" in text
    assert f"{NETWORK.step_flops(32) / 200e9 / 2e-4:.0%} of the arithmetic" in text


def test_a_difference_that_was_not_told_apart_is_not_explained():
    text = traps_table(pairs(FOUND | {"transfer inside": of(0.5, 1.1, 1.9)}), NETWORK, 32, 200e9, 2)
    assert "Move the whole data set once" not in text


def test_without_a_ceiling_busy_is_a_factor():
    assert "of the arithmetic it could do" not in traps_table(pairs(FOUND), NETWORK, 32, None, 2)


def test_the_largest_mistake_is_named():
    assert sentence(pairs(FOUND)).startswith(
        "Largest mistake here: synchronisation, by a factor of 10. The others: first call counted 5"
    )
    assert sentence(pairs(FOUND)).endswith("Not told apart from the right figure here: one sample and best of n.")
    assert sentence({}) == ""


def test_a_cards_utilisation_stands_beside_its_occupancy():
    counted = {
        "occupancy/utilisation": measured(0.98, 0.97, 0.98),
        "occupancy/activity": measured(0.035),
        "occupancy/warps": measured(0.0125),
    }
    text = occupancy(counted, "gpu")
    assert "98 % utilisation" in text
    assert "3.5 % of its multiprocessors" in text
    assert "1.25 % of the warps" in text
    assert "not reported by this chip" in occupancy({"occupancy/utilisation": measured(1.0)}, "gpu"), "an L4, say"
    assert occupancy(counted, "cpu") == ""


def test_a_software_adapter_is_called_what_it_is():
    assert [device_label(one) for one in ("cpu", "gpu", "discrete", "software")] == [
        "cpu",
        "gpu",
        "WebGPU, discrete GPU",
        "WebGPU, software adapter",
    ]
    assert [step_of(one) for one in ("cpu", "gpu", "software")] == ["JAX", "JAX", "WebGPU (software adapter)"]


def test_it_is_said_why_webgpu_is_not_timed():
    why = Unavailable("wgpu is not installed", "pip install wgpu")
    assert missing_note(why) == "WebGPU's step is not timed here: wgpu is not installed; pip install wgpu."
    assert missing_note(None) == ""


def test_the_chart_shows_every_sample():
    rows = [row for rows in traps_chart(pairs(FOUND)).spec["datasets"].values() for row in rows]
    assert sum(row["label"] == "one sample" for row in rows) == 9 + 1
    assert traps_chart({}).spec["height"] == traps_chart(pairs(FOUND)).spec["height"], "nothing jumps while it fills"


@pytest.mark.release
def test_measured_for_real(engine, tmp_path):
    task = AnatomyTask(Runtime(), Examination("traps", NETWORK, 512))
    comparison = measure_tasks([task], engine, Store(tmp_path / "r.sqlite"), Cancel(), Request())
    records = [one for one in comparison if not isinstance(one, Note)]
    assert task.complete(records)
    known = pairs({name: record.measurement for name, record in task.found(records).items()})
    assert set(known) == set(NAMES)
    assert {len(pair.wrong.block_s) for pair in known.values()} == {len(known["best of n"].right.block_s)}, "in turns"
    assert known["first call counted"].comparison.ratio > 1, "the first call compiles"
    assert known["synchronisation"].comparison.ratio < 1, "a call returns before it is done"
