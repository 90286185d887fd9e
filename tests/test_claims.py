"""Claims are judged by figures: each verdict can go either way where it rests on a measurement."""

import re

import numpy as np
import pytest

from lib.anatomy.measuring import KIND, tasks
from lib.anatomy.operations import ALL, OPERATIONS
from lib.anatomy.parts import Split
from lib.backends import Way, versions
from lib.cancel import Cancel
from lib.claims import CELLS, CLAIMS, Known, Verdict, known
from lib.filling import Note
from lib.live_claims import cells_to_visit, measure_missing
from lib.race import Cell, Standing
from lib.records import Record
from lib.spec import Network
from lib.store import Store
from lib.timing import Ended, Measurement
from lib.turns import Claim


def standings(**seconds):
    """`numpy_32=1.0` → a cell's standing; `gpu_` first for a card."""
    found = {}
    for name, second in seconds.items():
        device, name = ("gpu", name.removeprefix("gpu_")) if name.startswith("gpu_") else ("cpu", name)
        backend, _, size = name.rpartition("_")
        cell = Cell(Way(backend.replace("_", "-"), device), int(size))
        found[cell] = Standing(cell, (second,) * 3, False, 1, (), "")
    return found


def judged(words, here):
    (claim,) = [claim for claim in CLAIMS if words in claim.text]
    return claim.judge(here)


@pytest.mark.parametrize(
    ("words", "first", "second"),
    [
        ("takes 4.4 s an epoch on a CPU", {"keras_tensorflow_32": 1.0, "gpu_keras_tensorflow_32": 2.0}, {"keras_tensorflow_32": 2.0, "gpu_keras_tensorflow_32": 1.0}),
        ("NumPy takes longer at batch size 128", {"numpy_32": 1.0, "numpy_128": 2.0}, {"numpy_32": 2.0, "numpy_128": 1.0}),
        ("slows down again", {"numpy_2048": 1.0, "numpy_4096": 1.3}, {"numpy_2048": 1.0, "numpy_4096": 1.0}),
        ("takes 0.14 s an epoch", {"jax_step_4096": 0.12, "jax_epoch_4096": 0.1}, {"jax_step_4096": 0.2, "jax_epoch_4096": 0.1}),
    ],
)  # fmt: skip
def test_what_rests_on_a_measurement_can_go_either_way(words, first, second):
    assert judged(words, Known(standings(**first))).verdict is Verdict.HOLDS
    assert judged(words, Known(standings(**second))).verdict is Verdict.NOT_HERE
    assert judged(words, Known()).verdict is Verdict.OPEN


@pytest.mark.parametrize(("arithmetic_s", "verdict"), [(0.95, Verdict.HOLDS), (0.2, Verdict.NOT_HERE)])
def test_all_compute_is_a_share(arithmetic_s, verdict):
    way = Way("keras-tensorflow")
    here = Known(splits={way: Split(1.0, {"arithmetic": arithmetic_s})})
    assert judged("no overhead", here).verdict is verdict


def test_without_a_card_its_half_stays_open():
    here = Known(standings(keras_tensorflow_32=1.0))
    assert judged("takes 4.4 s an epoch on a CPU", here).verdict is Verdict.NO_GPU


def test_corrections_are_the_arithmetic():
    assert judged("capacity", Known()).measured == "0.1% of the peak"
    assert "0.58" in judged("capacity", Known()).why
    assert judged("22,500 steps", Known()).measured == "18,000 training steps"
    assert judged("1,500 training steps", Known()).measured == "1,500 + 375 = 1,875 batches"
    assert judged("multiply-adds", Known()).measured == "3.2 million"
    assert "2.8\u202fms" in judged("210 μs", Known()).why
    assert "says 17" in judged("45 times", Known()).why


def test_figures_are_the_measured_ones():
    here = Known(standings(jax_epoch_1=0.6, keras_tensorflow_32=2.0, keras_tensorflow_4096=0.3, jax_step_4096=0.1))
    assert judged("hard floor", here).measured == "12\u202fμs for a whole step at batch size 1"
    assert judged("45 times", here).measured == "20 mixed, 3.0 at 4,096 both (Keras on the CPU)"
    eager = Known(operations={"numpy": {ALL: 1e-4}, "keras-tensorflow": {ALL: 1e-3}})
    assert "10.0 times" in judged("every single operation", eager).measured


def test_every_known_error_is_in_the_table():
    """One for each error that was found in the articles."""
    texts = " ".join(claim.text for claim in CLAIMS)
    for words in (
        "dmon",
        "210 μs",
        "0.00003 %",
        "1,500 training steps",
        "11.31",
        "eagerly",
        "fused kernel",
        "hard floor",
        "0.77",
    ):
        assert words in texts, words
    assert all(claim.judge(Known()).why for claim in CLAIMS)
    assert all(not re.search(r"nan|inf\b", claim.judge(Known()).measured) for claim in CLAIMS)


def test_kept_records_become_what_is_known():
    way = Way("numpy")
    operations, parts = tasks([way], Network((128,)), 32)
    cell = Cell(way, 32)

    def record(kind, subject, second, per=1):
        return Record.of(kind, subject, Measurement((second,) * 3, per, Ended.CAP), versions("numpy"))

    names = [*(o.key for o in OPERATIONS), ALL, "product"]
    found = {
        "step": 2e-4,
        "busy": 2e-4,
        "returns": 2e-5,
        "transfer": 1e-6,
        "python": 1e-6,
        "many": 1e-4,
        "many-tiny": 0.0,
        "call": 1.5e-4,
    }
    records = [record("race", cell.subject | {"scaled": 0}, 1.0)]
    records += [record(KIND, operations.subject | {"name": name, "work": 1.0}, 1e-5) for name in names]
    records += [record(KIND, parts.subject | {"name": name, "work": 1.0}, second) for name, second in found.items()]
    here = known([way], records)
    assert here.epoch_s("numpy", 32) == 1.0
    assert here.operations["numpy"][ALL] == pytest.approx(1e-5)
    assert here.splits[way].parts_s["arithmetic"] == pytest.approx(1e-4)


def test_only_what_is_missing_is_measured(engine, tmp_path, monkeypatch):
    store = Store(tmp_path / "r.sqlite")
    assert {cell for cell in cells_to_visit([]) if cell.way.device == "cpu"} == set(CELLS)
    monkeypatch.setattr("lib.live_claims.CELLS", (Cell(Way("numpy"), 4096),))
    monkeypatch.setattr("lib.live_claims.usable_ways", lambda: [])
    told = list(measure_missing(engine, store, Cancel(), Claim()))
    assert len([one for one in told if not isinstance(one, Note)]) == 1
    assert cells_to_visit(store.records()) == []
    assert np.all(np.array(store.records("race")[0].block_s) > 0)
