"""The traps: which are measured where, drawn and judged from literal figures, and once measured for real."""

import pytest

from lib.labs.inside_a_step import traps
from lib.labs.inside_a_step.traps import occupancy, pairs, sentence, traps_chart, traps_table
from lib.model.hardware import webgpu
from lib.sweeps.experiments.anatomy_of_a_step import TRAPS_NETWORK
from lib.timing.comparison import Verdict
from lib.timing.measurement import Ended, Measurement
from lib.timing.profiling.request import REFERENCE


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


@pytest.mark.parametrize("allowed", [False, True])
def test_webgpus_devices_are_those_whose_adapter_is_there(monkeypatch, allowed):
    """A software adapter only where the reader asked for one, and it is called what it is."""
    monkeypatch.setenv("WEBGPU_SOFTWARE", "1" if allowed else "")
    monkeypatch.setattr("lib.model.backends.registry._installed", lambda *_: True)
    found = (webgpu.Adapter("integrated", "a GPU", "", ""), webgpu.Adapter("software", "llvmpipe", "", ""))
    software = ["WebGPU, software adapter"] if allowed else []
    monkeypatch.setattr(webgpu, "asked", lambda with_software: found)
    assert set(traps.devices()) - {"gpu"} == {"cpu", "WebGPU, integrated GPU", *software}
    monkeypatch.setattr(webgpu, "asked", lambda with_software: found[1:])
    assert set(traps.devices()) - {"gpu"} == {"cpu", *software}


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
