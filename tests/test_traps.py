"""The traps: pairs of a wrong and a right way, drawn and judged from literal figures, and once measured for real."""

import pytest

from lib.anatomy import Examination
from lib.anatomy.measuring import Task, measure_tasks
from lib.backends import Way
from lib.cancel import Cancel
from lib.filling import Note
from lib.spec import Network
from lib.store import Store
from lib.timing import Ended, Measurement
from lib.traps_view import TRAPS, occupancy, pairs, sentence, traps_chart, traps_table
from lib.turns import Claim

NETWORK = Network((128,))


def measured(*values):
    return Measurement(values, 1, Ended.CAP)


FOUND = {
    "synchronisation/wrong": measured(2e-5, 2e-5, 2e-5), "synchronisation/right": measured(2e-4, 2e-4, 2.1e-4),
    "first call counted/wrong": measured(1e-3), "first call counted/right": measured(2e-4, 2e-4, 2e-4, 2e-4),
    "one sample/wrong": measured(1e-4, 2e-4, 9e-4, 3e-4), "one sample/right": measured(2e-4, 2e-4, 2e-4),
    "best of n/wrong": measured(1e-4), "best of n/right": measured(1e-4, 2e-4, 9e-4, 3e-4),
    "transfer inside/wrong": measured(3e-4, 3e-4, 3e-4), "transfer inside/right": measured(2e-4, 2e-4, 2e-4),
    "busy is not working/wrong": measured(3.8e-4, 3.8e-4, 3.8e-4), "busy is not working/right": measured(2e-4, 2e-4, 2e-4),
}  # fmt: skip


def test_only_whole_pairs_are_shown():
    assert set(pairs(FOUND)) == {trap.key for trap in TRAPS}
    assert set(pairs({"one sample/wrong": measured(1.0)})) == set()


def test_the_table_tells_by_how_much_and_why():
    text = traps_table(pairs(FOUND), NETWORK, 32, 200e9, 2)
    assert "10 ×" in text
    assert "Wait for the result before the clock is read" in text, "the verdict on unsynchronised timing"
    assert "Report the first call apart" in text
    assert "the first took 4.2" in text, "5 × 1 ms − 4 × 0.2 ms"
    assert "100\u202fμs to 900\u202fμs" in text
    assert "Move the whole data set once" in text
    assert "95% busy" in text
    assert f"{NETWORK.step_flops(32) / 200e9 / 2e-4:.0%} of the arithmetic" in text


def test_without_a_ceiling_busy_is_a_factor():
    assert "of the arithmetic it could do" not in traps_table(pairs(FOUND), NETWORK, 32, None, 2)


def test_the_largest_mistake_is_named():
    assert sentence(pairs(FOUND)).startswith("Largest mistake here: synchronisation, by a factor of 10.")
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


def test_the_chart_shows_every_sample():
    rows = [row for rows in traps_chart(pairs(FOUND)).spec["datasets"].values() for row in rows]
    assert sum(row["label"] == "one sample: wrong" for row in rows) == 4 + 1
    assert traps_chart({}).spec["height"] == traps_chart(pairs(FOUND)).spec["height"], "nothing jumps while it fills"


@pytest.mark.slow
@pytest.mark.timed
def test_measured_for_real(engine, tmp_path):
    task = Task(Way(), Examination("traps", NETWORK, 512))
    told = measure_tasks([task], engine, Store(tmp_path / "r.sqlite"), Cancel(), Claim())
    records = [one for one in told if not isinstance(one, Note)]
    known = pairs({name: record.measurement for name, record in task.found(records).items()})
    assert set(known) == {trap.key for trap in TRAPS}
    wrong, right = known["first call counted"]
    assert wrong.median_s > right.median_s, "the first call compiles"
    wrong, right = known["best of n"]
    assert wrong.median_s == min(right.block_s)
    wrong, right = known["synchronisation"]
    assert wrong.median_s < right.median_s, "a call returns before it is done"
