"""The race: order, resuming, scaling, its table and sentence; once with a real worker, and once in a real browser."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lib import launch
from lib.backends import Way, versions
from lib.cancel import Cancel
from lib.race import BATCH_SIZES, KIND, ROUNDS, Cell, all_cells, plan, race, records_of, standings, time_left_s
from lib.race_view import Shown, detail, key_of, sentence, table
from lib.records import Record
from lib.store import Store
from lib.timing import Ended, Measurement
from lib.turns import Claim
from tests.conftest import ROOT

NUMPY, JAX, KERAS = Way("numpy"), Way("jax-epoch"), Way("keras-tensorflow")


def record(cell, epoch_s, scaled=0, **changes):
    measured = Measurement(tuple(epoch_s), 1500, Ended.CAP)
    made = Record.of(KIND, cell.subject | {"scaled": scaled}, measured, versions(cell.way.backend))
    return Record(**{**vars(made), **changes})


def test_every_cell_is_visited_once_before_any_is_visited_again():
    cells = all_cells([NUMPY, JAX])
    visits = plan(cells, [])
    assert len(visits) == ROUNDS * len(cells)
    turns = [visits[i * len(cells) : (i + 1) * len(cells)] for i in range(ROUNDS)]
    assert all(sorted(turn) == sorted(cells) for turn in turns)
    assert len({tuple(turn) for turn in turns}) == ROUNDS, "each round in another order"


def test_it_resumes_where_it_stopped():
    cells = all_cells([NUMPY])
    kept = [record(cells[0], [1.0]) for _ in range(2)] + [record(cells[1], [1.0])]
    left = plan(cells, kept)
    assert [left.count(cell) for cell in cells[:3]] == [1, 2, 3]


@pytest.mark.parametrize(
    "change", [{"machine": "another"}, {"sources": "older"}, {"versions": "numpy 1"}, {"kind": KIND}]
)
def test_only_visits_of_this_machine_code_and_versions_count(change):
    cell = Cell(NUMPY, 32)
    assert len(records_of(cell, [record(cell, [1.0], **change)])) == (1 if "kind" in change else 0)


def test_a_standing_joins_all_visits():
    cell = Cell(NUMPY, 1)
    standing = standings([cell], [record(cell, [1.0, 3.0], 1), record(cell, [2.0, 2.0], 1)])[cell]
    assert standing.quartiles_s == (1.75, 2.0, 2.25)
    assert (standing.visits, standing.scaled) == (2, True)
    assert "scaled" in detail(standing)
    assert "disturbed" not in detail(standing)
    assert "spreads over 25% of the median" in detail(standing)


def test_the_table_shows_what_is_known_and_what_was_published():
    cells = [Cell(JAX, 32), Cell(KERAS, 32)]
    known = standings(cells, [record(cells[0], [0.2, 0.2]), record(cells[1], [2.0, 2.0])])
    seconds = table([JAX, KERAS], BATCH_SIZES, known, running=Cell(JAX, 512))
    assert [row["cells"][1]["text"] for row in seconds["rows"][:2]] == ["200 ms", "2.00 s"]
    assert seconds["rows"][0]["cells"][3]["text"] == "…", "being measured"
    assert seconds["rows"][0]["cells"][0]["text"] == "–"
    published = [row for row in seconds["rows"] if row["published"]]
    assert len(published) == 4
    assert "6.26 s" in [cell["text"] for cell in published[0]["cells"]]
    faster = table([JAX, KERAS], BATCH_SIZES, known, Shown("speed-up", KERAS))
    assert [row["cells"][1]["text"] for row in faster["rows"]] == ["10 ×", "1 ×"]
    cost = table([JAX], BATCH_SIZES, known, Shown("cost", price_per_h=0.936, price_date="2026-11-01"))
    assert cost["rows"][0]["cells"][1]["text"] == "$0.052"
    assert "price of 2026-11-01" in cost["rows"][0]["cells"][1]["title"]
    assert table([JAX], BATCH_SIZES, known, Shown("cost"))["rows"][0]["cells"][1]["text"] == "set a price"
    assert "10.0 times as long" in sentence(known)
    assert sentence({}) == ""
    assert time_left_s(cells, {}) is None
    assert time_left_s(cells, known) == pytest.approx(4 * 0.2 + 0.3 + 3.5 + 0.3)


def test_a_real_visit_is_kept_and_not_made_again(engine, tmp_path):
    store, cells = Store(tmp_path / "results.sqlite"), [Cell(NUMPY, 4096)]
    (visit,) = race(plan(cells, [], rounds=1), engine, store, Cancel(), Claim())
    assert len(visit.record.block_s) == 3, "the first epoch is not timed"
    assert all(0.01 < second < 60 for second in visit.record.block_s)
    assert store.records(KIND) == [visit.record]
    assert plan(cells, store.records(KIND), rounds=1) == []


def test_a_long_epoch_is_measured_in_parts(engine, tmp_path, monkeypatch):
    monkeypatch.setattr("lib.race.BUDGET_S", 0.5)
    monkeypatch.setattr("lib.race.PART_S", 0.1)
    (visit,) = race([Cell(NUMPY, 1)], engine, Store(tmp_path / "r.sqlite"), Cancel(), Claim())
    assert visit.record.subject["scaled"] == 1
    assert len(visit.record.block_s) >= 3
    assert 1 < visit.record.measurement.median_s * 48_000 < 200, (
        "seconds of a whole epoch, from a tenth of a second of steps"
    )


def test_a_stopped_race_keeps_what_is_done(engine, tmp_path):
    store, cancel = Store(tmp_path / "r.sqlite"), Cancel()
    made = []
    for visit in race([Cell(NUMPY, 4096), Cell(NUMPY, 1)], engine, store, cancel, Claim()):
        made.append(visit)
        cancel.set()
    assert len(made) == 1
    assert len(store.records(KIND)) == 1


@pytest.mark.parametrize("name", ["notebooks/nothing.py", "lib/page.py", "../elsewhere.py"])
def test_only_the_projects_notebooks_are_opened(name):
    assert (
        "expected one of mnist_training.py, notebooks/anatomy_of_a_step.py, notebooks/backend_race.py"
        in launch.notebook_problem(name)
    )
    assert launch.notebook_problem("notebooks/backend_race.py") == ""


def test_the_notebook_as_a_script(tmp_path):
    answer = subprocess.run(
        [sys.executable, "notebooks/backend_race.py"], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT), "MNIST_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    assert "Traceback" not in answer.stderr


def test_keys_are_unique():
    cells = all_cells([NUMPY, JAX, KERAS])
    assert len({key_of(cell) for cell in cells}) == len(cells)
    assert all(re.fullmatch(r"[a-z-]+/(cpu|gpu)/\d+", key_of(cell)) for cell in cells)


# A program of its own: it makes a visit for each line that it reads, and answers with the seconds of its epochs. Both have the
# same one core: there an epoch that another program trains through takes twice as long, on a machine of any size, while what
# a library's threads make of too few cores is anybody's guess. A small network, because the lock does not ask for its size.
VISITOR = """
import json, os, sys, threading
from pathlib import Path
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from lib import race
from lib.backends import Way
from lib.engine import Engine
from lib.spec import Network
from lib.store import Store
from lib.turns import Claim
race.NETWORK = Network((32,))
engine, store = Engine(), Store(Path(sys.argv[1]))
for _ in sys.stdin:
    (visit,) = race.race([race.Cell(Way("numpy"), 512)], engine, store, Cancel(), Claim())
    print(json.dumps(visit.record.block_s), flush=True)
engine.close()
"""
N_TOGETHER = 5


def visitor(path: Path) -> subprocess.Popen:
    command = [sys.executable, "-c", VISITOR, str(path)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def visits(*programs: subprocess.Popen) -> list[float]:
    """One visit by each of these programs, all begun at once: median seconds of its timed epochs, program by program."""
    for program in programs:
        assert program.stdin is not None
        program.stdin.write("visit\n")
        program.stdin.flush()
    found = [json.loads(program.stdout.readline()) for program in programs if program.stdout is not None]
    assert all(len(epochs) in (2, 3) for epochs in found), "the first is not timed, the fourth if there is time for it"
    return [float(np.median(epochs)) for epochs in found]


@pytest.mark.slow
def test_two_programs_that_measure_at_once_do_not_disturb_each_other(tmp_path):
    """They take turns by the machine's lock: together each finds what it finds alone.

    Each time that both measure stands between two times of one alone, a second before and a second after, so that whatever
    else the machine does meets all three; the median forgives the rounds in which it did not. Without the lock this test
    fails: each then takes twice as long.
    """
    path = tmp_path / "results.sqlite"
    programs = [visitor(path) for _ in range(2)]
    try:
        visits(*programs)  # starts their workers: not compared
        alone, together = [visits(programs[0])], []
        for number in range(1, N_TOGETHER + 1):
            together.append(visits(*programs))
            alone.append(visits(programs[number % 2]))
    finally:
        for program in programs:
            program.communicate(timeout=20)  # its input ends, and so does it
    usual_s = (np.array(alone[:-1]) + alone[1:]) / 2  # (together, 1): the mean of its neighbours
    slower = np.median(together / usual_s, axis=0)  # (programs,)
    assert (slower < 1.4).all(), f"together {slower} times as long: {together} s beside {alone} s an epoch"
    n_visits = 2 + len(alone) + 2 * len(together)
    assert len(Store(path).records(KIND)) == n_visits, "both wrote into one file"
