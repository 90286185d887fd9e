import time
from dataclasses import replace

import numpy as np
import pytest

from lib.model.backends.base import Epoch, no_parameters
from lib.model.backends.registry import Runtime, versions
from lib.model.data.mnist import Facts
from lib.model.spec import Network, Training
from lib.sweeps.experiments.backend_race import (
    EPOCHS_TRIED,
    ROUNDS,
    SEEDS,
    TUNED_ON,
    Cell,
    all_cells,
    fastest,
    learn,
    learned,
    needed,
    plan,
    race,
    records_of,
    standings,
    trials,
)
from lib.sweeps.storage.records import Curve, Key, Kind, Record
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Note, State, Waiting
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.measurement import Ended, Measurement

NUMPY, JAX, KERAS = Runtime("numpy"), Runtime("jax-epoch"), Runtime("keras-tensorflow")


def record(cell, epoch_s, scaled=0, **changes):
    measured = Measurement(tuple(epoch_s), 1500, Ended.CAP)
    made = Record.of(Kind.RACE, cell.subject | {"scaled": scaled}, measured, versions(cell.runtime))
    return Record(**{**vars(made), **changes})


def repetitions_of(events):
    return [one for one in events if isinstance(one, Record)]


def test_every_cell_is_measured_once_before_any_is_measured_again():
    cells = all_cells([NUMPY, JAX])
    repetitions = plan(cells, [])
    assert len(repetitions) == ROUNDS * len(cells)
    turns = [repetitions[i * len(cells) : (i + 1) * len(cells)] for i in range(ROUNDS)]
    assert all(sorted(turn) == sorted(cells) for turn in turns)
    assert len({tuple(turn) for turn in turns}) == ROUNDS, "each round in another order"


def test_a_race_resumes_where_it_stopped():
    cells = all_cells([NUMPY])
    cached = [record(cells[0], [1.0]) for _ in range(2)] + [record(cells[1], [1.0])]
    left = plan(cells, cached)
    assert [left.count(cell) for cell in cells[:3]] == [1, 2, 3]


@pytest.mark.parametrize(
    "change", [{"machine": "another"}, {"sources": "older"}, {"versions": "numpy 1"}, {"kind": Kind.RACE}]
)
def test_only_repetitions_of_this_machine_code_and_versions_count(change):
    cell = Cell(NUMPY, 32)
    assert len(records_of(cell, [record(cell, [1.0], **change)])) == (1 if "kind" in change else 0)


def test_the_fastest_is_chosen_where_most_ways_were_timed():
    jax, numba, numpy = Runtime(), Runtime("numba"), Runtime("numpy")
    assert fastest([]) == jax
    alone = [record(Cell(jax, 32), [0.2])]
    assert fastest(alone) == jax
    assert fastest([*alone, record(Cell(numpy, 32), [0.17])]) == jax, "as near as another day"
    both = [*alone, record(Cell(numba, 32), [0.05]), record(Cell(numpy, 4096), [0.01])]
    assert fastest(both) == numba
    elsewhere = [record(Cell(jax, 1), [0.1]), record(Cell(numba, 1), [0.3])]
    assert fastest([*elsewhere, *both]) == numba, "at the articles' size, where as many were timed at another"
    assert fastest([*both, *elsewhere, record(Cell(numpy, 1), [0.2])]) == jax


def test_a_standing_joins_all_repetitions():
    cell = Cell(NUMPY, 1)
    standing = standings([cell], [record(cell, [1.0, 3.0], 1), record(cell, [2.0, 2.0], 1)])[cell]
    assert standing.quartiles_s == (1.75, 2.0, 2.25)
    assert (standing.repetitions, standing.scaled) == (2, True)
    assert standing.spread == 0.25


def test_a_disturbed_time_counts_only_without_undisturbed_ones():
    cell = Cell(NUMPY, 32)
    clean, spoilt = record(cell, [1.0]), replace(record(cell, [9.0]), warnings=("a busy machine",))
    standing = standings([cell], [spoilt, clean])[cell]
    assert (standing.quartiles_s[1], standing.repetitions, standing.warnings) == (1.0, 2, ())
    assert standings([cell], [spoilt])[cell].quartiles_s[1] == 9.0


@pytest.mark.slow
def test_a_real_repetition_reports_its_state_and_is_stored(tmp_path):
    store, cells, began, own = Store(tmp_path / "r.sqlite"), [Cell(NUMPY, 4096)], time.perf_counter(), Engine()
    try:
        events = list(race(plan(cells, [], rounds=1), own, store, Cancel(), Request(), budget_s=1e9))
    finally:
        own.close()
    notes = [(one.state, one.text) for one in events if isinstance(one, Note)]
    assert notes[0] == notes[-1] == (State.MEASURING, "NumPy, batch size 4,096")
    assert (State.STARTING, "NumPy: its worker imports the library and loads the images") in notes
    (repetition,) = repetitions_of(events)
    assert len(repetition.block_s) == 3, "the first epoch is not timed"
    assert all(second > 0 for second in repetition.block_s)
    assert sum(repetition.block_s) < time.perf_counter() - began, "seconds, of those that passed here"
    assert 0.5 < float(repetition.subject["first_accuracy"]) < 1
    assert store.records(Kind.RACE) == [repetition]
    assert plan(cells, store.records(Kind.RACE), rounds=1) == []


@pytest.mark.slow
def test_a_long_epoch_is_measured_in_parts(engine, tmp_path, monkeypatch):
    monkeypatch.setattr("lib.sweeps.experiments.backend_race.BUDGET_S", 0.5)
    monkeypatch.setattr("lib.sweeps.experiments.backend_race.PART_S", 0.1)
    (repetition,) = repetitions_of(race([Cell(NUMPY, 1)], engine, Store(tmp_path / "r.sqlite"), Cancel(), Request()))
    assert repetition.subject["scaled"] == 1
    assert "first_accuracy" not in repetition.subject, "no epoch was trained to its end"
    assert len(repetition.block_s) >= 3
    assert repetition.measurement.median_s * 48_000 > 1, "seconds of a whole epoch, from a tenth of a second of steps"


def test_a_stop_interrupts_a_repetition(store):
    class Endless(Engine):
        def run(self, runtime, trainings, cancel, how=None, request=None):
            for _ in range(100_000):
                if cancel.is_set():
                    return
                yield Waiting(1)
            raise AssertionError("it was not stopped")

    cancel = Cancel()
    for event in race([Cell(NUMPY, 1)], Endless(), store, cancel, Request()):
        if isinstance(event, Note) and event.state is State.WAITING:
            cancel.set()
    assert store.records() == []


NETWORK = Network((128,))


def curves(by_seed, rate=0.1, other=0.3):
    made = {Training(NETWORK, rate, 32, EPOCHS_TRIED[32], seed): curve for seed, curve in by_seed.items()}
    return made | {Training(NETWORK, other, 32, EPOCHS_TRIED[32], seed): (0.1,) * 8 for seed in by_seed}


GOOD = {TUNED_ON: (0.9, 0.96), 1: (0.9, 0.94, 0.95), 2: (0.95,), 3: (0.9, 0.94)}


def test_epochs_to_the_target_are_counted_and_missed_ones_reported():
    found = needed(curves(GOOD), NETWORK, 32, 0.95)
    assert found is not None
    assert (found.rate, found.epochs, found.reached) == (0.1, (3, 1, None), (1, 3))
    assert "2 of 3 runs" in found.words


def test_the_rate_is_chosen_on_the_tuning_seed_only():
    known = curves(GOOD) | {Training(NETWORK, 0.3, 32, EPOCHS_TRIED[32], seed): (0.99,) for seed in SEEDS}
    found = needed(known, NETWORK, 32, 0.95)
    assert found is not None
    assert found.rate == 0.1


def test_no_count_is_given_before_all_runs_are_done():
    known = curves(GOOD)
    del known[Training(NETWORK, 0.3, 32, EPOCHS_TRIED[32], 2)]
    assert needed(known, NETWORK, 32, 0.95) is None
    assert needed({}, NETWORK, 7, 0.95) is None


@pytest.mark.slow
def test_a_real_count_is_stored_and_not_repeated(engine, store):
    todo = [Training(Network((8,)), 0.3, 512, 2, seed) for seed in (0, 1)]
    made = [one for one in learn(todo, engine, store, Cancel(), Request()) if isinstance(one, tuple)]
    assert [len(accuracies) for _, accuracies in made] == [2, 2]
    again = [one for one in learn(todo, engine, store, Cancel(), Request()) if not isinstance(one, Note)]
    assert dict(again) == dict(made)
    assert learned(store, Network((128,)), engine.known_facts()) == {}


def test_learned_accuracies_belong_to_their_images(store):
    trial = trials(NETWORK)[0]
    digits = Facts("scikit-learn digits", "digest")
    epochs = tuple(Epoch(number, 1, 0.4, 0.9, 0.1, 0.01, no_parameters) for number in range(trial.epochs))
    key = Key(trial, Runtime(), digits.digest, versions(Runtime()))
    store.put(key, Curve(0.1, epochs, np.ones(trial.epochs, np.float32)))
    assert learned(store, NETWORK, digits) == {trial: (0.9,) * trial.epochs}
    assert learned(store, NETWORK, replace(digits, digest="another")) == learned(store, NETWORK, None) == {}
