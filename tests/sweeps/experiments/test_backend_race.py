# pyright: reportOptionalMemberAccess=false
import time
from dataclasses import replace

import numpy as np
import pytest

from lib.model.backends.base import Epoch, no_parameters
from lib.model.backends.registry import Runtime, versions
from lib.model.data.mnist import Facts
from lib.model.spec import Network, Training
from lib.sweeps.experiments import backend_race
from lib.sweeps.experiments.backend_race import ROUNDS, TUNED_ON, Cell, all_cells, fastest, learned, needed, plan, race
from lib.sweeps.storage.records import Curve, Key, Kind, Record
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Note, State, Waiting
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.measurement import Ended, Measurement

NUMPY, JAX, KERAS = Runtime("numpy"), Runtime("jax-epoch"), Runtime("keras-tensorflow")


def record(cell, epoch_s, scaled=0, **changes):
    measured = Measurement(tuple(epoch_s), 1500, Ended.CAP)
    return replace(Record.of(Kind.RACE, cell.subject | {"scaled": scaled}, measured, versions(cell.runtime)), **changes)


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
    left = plan(cells, [*cached, record(cells[0], [1.0], machine="another")])
    assert [left.count(cell) for cell in cells[:3]] == [1, 2, 3]


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
    standing = backend_race.standings([cell], [record(cell, [1.0, 3.0], 1), record(cell, [2.0, 2.0], 1)])[cell]
    assert standing.quartiles_s == (1.75, 2.0, 2.25)
    assert (standing.repetitions, standing.scaled) == (2, True)
    assert standing.spread == 0.25


def test_a_disturbed_time_counts_only_without_undisturbed_ones():
    cell = Cell(NUMPY, 32)
    clean, spoilt = record(cell, [1.0]), replace(record(cell, [9.0]), warnings=("a busy machine",))
    standing = backend_race.standings([cell], [spoilt, clean])[cell]
    assert (standing.quartiles_s[1], standing.repetitions, standing.warnings) == (1.0, 2, ())
    assert backend_race.standings([cell], [spoilt])[cell].quartiles_s[1] == 9.0


@pytest.mark.slow
def test_a_real_repetition_reports_its_state_and_is_stored(lone_engine, store):
    cells, began = [Cell(NUMPY, 4096)], time.perf_counter()
    events = list(race(plan(cells, [], rounds=1), lone_engine, store, Cancel(), Request(), budget_s=1e9))
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
def test_a_long_epoch_is_measured_in_parts(engine, store, monkeypatch):
    monkeypatch.setattr(backend_race, "PART_S", 0.1)
    (repetition,) = repetitions_of(race([Cell(NUMPY, 1)], engine, store, Cancel(), Request(), budget_s=0.5))
    assert repetition.subject["scaled"] == 1
    assert "first_accuracy" not in repetition.subject, "no epoch was trained to its end"
    assert len(repetition.block_s) >= 3
    assert repetition.measurement.median_s * 48_000 > 1, "seconds of a whole epoch, from a tenth of a second of steps"


def test_a_stop_interrupts_a_repetition(store):
    class Endless(Engine):
        def run(self, jobs, cancel, request=None, n_workers=0):
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


def test_epochs_to_the_target_are_counted_at_the_rate_that_is_best_on_the_tuning_seed():
    by_seed = {TUNED_ON: (0.9, 0.96), 1: (0.9, 0.94, 0.95), 2: (0.95,), 3: (0.9, 0.94)}
    known = {Training(NETWORK, 0.1, 32, 8, seed): accuracies for seed, accuracies in by_seed.items()}
    known |= {Training(NETWORK, 0.3, 32, 8, seed): (0.1,) if seed == TUNED_ON else (0.99,) for seed in by_seed}
    found = needed(known, NETWORK, 32, 0.95)
    assert (found.rate, found.epochs, found.reached) == (0.1, (3, 1, None), (1, 3))
    assert "2 of 3 runs" in found.words
    del known[Training(NETWORK, 0.3, 32, 8, 2)]
    assert needed(known, NETWORK, 32, 0.95) is None, "one run is not done"
    assert needed({}, NETWORK, 7, 0.95) is None


@pytest.mark.slow
def test_a_real_count_is_stored_and_not_repeated(engine, store):
    todo = [Training(Network((8,)), 0.3, 512, 2, seed) for seed in (0, 1)]
    made, again = (
        [one for one in backend_race.learn(todo, engine, store, Cancel(), Request()) if isinstance(one, tuple)]
        for _ in range(2)
    )
    assert [len(accuracies) for _, accuracies in made] == [2, 2]
    assert dict(again) == dict(made)
    assert learned(store, Network((128,)), engine.known_facts()) == {}


def test_learned_accuracies_belong_to_their_images(store):
    trial = backend_race.trials(NETWORK)[0]
    digits = Facts("scikit-learn digits", "digest")
    epochs = tuple(Epoch(number, 1, 0.4, 0.9, 0.1, 0.01, no_parameters) for number in range(trial.epochs))
    key = Key(trial, Runtime(), digits.digest, versions(Runtime()))
    store.put(key, Curve(0.1, epochs, np.ones(trial.epochs, np.float32)))
    assert learned(store, NETWORK, digits) == {trial: (0.9,) * trial.epochs}
    assert learned(store, NETWORK, replace(digits, digest="another")) == learned(store, NETWORK, None) == {}
