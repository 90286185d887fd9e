import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.model.backends.base import Epoch, no_parameters
from lib.model.backends.registry import Runtime, versions
from lib.model.spec import Training
from lib.sweeps.storage import records as records_module
from lib.sweeps.storage.records import (
    COLUMNS,
    Curve,
    Key,
    Kind,
    Record,
    brief,
    check_kind,
    checked,
    current,
    curve_of,
    epochs_text,
    record_of,
    row_of,
    this_command,
)
from lib.timing.measurement import Ended, Measurement
from tests.sweeps.storage.test_store import lasting


def test_kinds_have_fixed_values_since_files_contain_them():
    assert sorted(Kind) == ["anatomy", "ceiling", "failure", "models", "operation", "pace", "pipeline", "race", "sweep"]


def test_a_cut_curve_is_the_start_of_the_longer_one():
    cut = lasting(3).cut(2)
    assert len(cut.epochs) == 2
    np.testing.assert_array_equal(cut.losses, np.arange(8))
    np.testing.assert_array_equal(replace(lasting(3), losses=np.arange(6), every=2).cut(2).losses, np.arange(4))


@given(st.integers(1, 50), st.integers(1, 60))
def test_a_thinned_curve_averages_to_at_most_the_given_points(n_losses, points):
    whole = replace(lasting(1), losses=np.arange(n_losses, dtype=np.float32))
    thin = whole.thinned(points)
    assert len(thin.losses) <= points
    assert len(thin.losses) == -(-n_losses // thin.every)
    assert thin.losses[0] == pytest.approx(whole.losses[: thin.every].mean())
    assert thin.losses[-1] == pytest.approx(whole.losses[(len(thin.losses) - 1) * thin.every :].mean())


def test_a_diverged_curve_counts_for_any_number_of_epochs():
    assert not lasting(2).lasts(3)
    assert lasting(2).lasts(2)
    diverged = replace(lasting(2), epochs=(*lasting(1).epochs, replace(lasting(1).epochs[0], diverged_step=2)))
    assert diverged.lasts(100)
    assert not lasting(0).lasts(1)


def test_a_records_id_follows_from_its_content():
    measured = Measurement((0.1, 0.2), 10, Ended.SPREAD, warnings=("loud",))
    record = Record.of(Kind.RACE, {"batch_size": 32}, measured)
    assert record.measurement == measured
    assert replace(record, kind="race").id == record.id, "as it comes back from a file"
    assert replace(record, block_s=(0.1, 0.3)).id != record.id


def test_a_shorter_training_has_the_same_key(monkeypatch):
    key = Key(Training(epochs=5), Runtime(), "data", "versions")
    assert replace(key, training=Training(epochs=1)).digest() == key.digest()
    for other in (replace(key, training=Training(seed=1)), replace(key, data_digest=""), replace(key, versions="")):
        assert other.digest() != key.digest()
    before = key.digest()
    monkeypatch.setattr(records_module, "machine_id", lambda: "another")
    assert key.digest() != before


def test_a_recorded_command_contains_no_folder(monkeypatch):
    monkeypatch.setattr("sys.orig_argv", ["/home/me/.venv/bin/python3", "-m", "lib.cli.record", "/home/me/a.json"])
    assert this_command() == "python -m lib.cli.record a.json"
    words = ["/usr/bin/python3", "-m", "lib.cli.record", "mine/a.json", "--runtimes", "jax-epoch/gpu/bfloat16"]
    monkeypatch.setattr("sys.orig_argv", words)
    assert this_command() == "python -m lib.cli.record a.json --runtimes jax-epoch/gpu/bfloat16"


HERE = Record(Kind.RACE, {"backend": "numpy", "size": 1}, (0.1,), 1, "CAP", versions=versions(Runtime("numpy")))


def test_current_records_match_machine_code_and_versions_oldest_first():
    older = replace(HERE, measured_at="2000-01-01T00:00:00")
    others = [replace(HERE, **{name: "other"}) for name in ("machine", "sources", "versions")]
    failed = replace(HERE, kind=Kind.FAILURE, block_s=())
    for subject, found in (
        ({}, [older, HERE]),
        ({"size": 1}, [older, HERE]),
        ({"size": 2}, []),
        ({"device": "cpu"}, []),
    ):
        assert current([HERE, older, failed, *others], Kind.RACE, subject, Runtime("numpy")) == found


SUBJECTS = {
    Kind.RACE: {"backend": "numpy", "device": "cpu", "batch_size": 32, "hidden": "128"},
    Kind.ANATOMY: {"name": "step", "work": 1.0},
    Kind.CEILING: {"library": "numpy", "device": "gpu", "name": "copy", "work": 2.0},
    Kind.MODELS: {"strategy": "vmap", "device": "cpu", "count": 8},
    Kind.SWEEP: {"method": "vmap"},
    Kind.STEP_TIME: {"first_call_s": 0},
    Kind.OPERATION: {"operation": "sine", "by": "numpy", "device": "cpu", "size": 4, "name": "eager", "work": 8.0},
    Kind.PIPELINE: {"backend": "numpy", "device": "cpu", "hidden": "128", "name": "0/data", "work": 1.0},
    Kind.FAILURE: {},
}


def record(kind: str, subject: dict, block_s: tuple[float, ...] = (0.1, 0.2, 0.3)) -> Record:
    return Record(kind, subject, () if kind == Kind.FAILURE else block_s, 1, "CAP", ("loud",))


def curve_row(**changes) -> dict:
    epochs = (Epoch(0, 2, math.nan, 0.1, 0.1, 0.01, no_parameters, diverged_step=1),)
    training = {"network": {"hidden": [7]}, "learning_rate": 0.1, "batch_size": 32, "epochs": 1, "seed": 0}
    row = dict.fromkeys(COLUMNS["curves"], "") | {
        "training": json.dumps(training),
        "measured_at": "2026-11-21T10:00:00+00:00",
        "first_call_s": 1,
        "epochs": epochs_text(Curve(1, epochs, np.zeros(2, np.float32))),
        "losses": np.array([2.0, math.inf], np.float32).tobytes(),
        "n_bytes": 8,
        "used_at": 0.0,
        "every": 1,
        "together": 1,
        "warnings": "[]",
    }
    return row | changes


@pytest.mark.parametrize("kind", [*Kind, "of another version"])
def test_a_measurement_reads_back_unchanged(kind):
    made = record(kind, SUBJECTS.get(kind, {}))
    row = row_of(made) | {"id": made.id}
    assert row.keys() == COLUMNS["measurements"].keys()
    assert record_of(row) == made
    check_kind(made)


def test_a_diverged_curve_reads_back_unchanged():
    curve = curve_of(curve_row())
    (epoch,) = curve.epochs
    assert math.isnan(epoch.validation_loss)
    assert epoch.diverged_step == 1
    np.testing.assert_array_equal(curve.losses, np.array([2.0, math.inf], np.float32))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epochs": '[{"epoch": 0}]'}, "epochs: Object missing required field `steps` - at `$[0]`, got"),
        (
            {"epochs": curve_row()["epochs"].replace('"steps": 2', '"steps": -2')},
            "epochs: Expected `int` >= 0 - at `$[0].steps`, got",
        ),
        ({"training": '{"network": {"hidden": [0]}}'}, "training: Expected `int` >= 1 - at `$.network.hidden[0]`, got"),
        (
            {"training": curve_row()["training"].replace('"batch_size": 32', '"batch_size": 48001')},
            "batch size: expected 1 to 48,000 (the number of training images), got 48,001",
        ),
        ({"losses": np.array([-1.0], np.float32).tobytes()}, "expected losses of 0 or more, got -1.0"),
        ({"warnings": "[1]"}, "warnings: Expected `str`, got `int` - at `$[0]`, got [1]"),
        ({"epochs": '[{"x - at `$[9]": 1}]'}, "epochs: Object contains unknown field"),
    ],
)
def test_faults_of_a_stored_curve_are_named(changes, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        curve_of(curve_row(**changes))


@pytest.mark.parametrize("kind", SUBJECTS)
def test_each_kind_requires_its_subject(kind):
    for name, value in SUBJECTS[kind].items():
        without = {other: v for other, v in SUBJECTS[kind].items() if other != name}
        for subject in (without, without | {name: "7" if not isinstance(value, str) else 7}):
            with pytest.raises(
                ValueError, match=rf"expected {name} in the subject \({kind}\), got nothing|{name}: .*, got"
            ):
                check_kind(record(kind, subject))


@pytest.mark.parametrize(
    ("kind", "changes", "block_s", "words"),
    [
        (Kind.RACE, {"device": "tpu"}, (0.1,), "device: Invalid enum value 'tpu', got tpu"),
        (Kind.RACE, {"hidden": "wide"}, (0.1,), "got “wide”"),
        (Kind.RACE, {"batch_size": 1.5}, (0.1,), "batch_size: Expected `int`, got `float`, got 1.5"),
        (Kind.RACE, {}, (0.1, 0.0), "expected seconds of 1e-12 or more, got 0.0"),
        (Kind.RACE, {}, (), "expected seconds, got none"),
        (Kind.MODELS, {}, (0.1, 0.2), "expected three quartiles of seconds, got 2 values"),
        (Kind.SWEEP, {"work": -1}, (0.1,), "work: Expected `float` >= 1e-12, got -1"),
    ],
)
def test_invalid_values_of_a_kind_are_named(kind, changes, block_s, words):
    with pytest.raises(ValueError, match=words):
        check_kind(record(kind, SUBJECTS[kind] | changes, block_s))


def test_checked_values_are_not_converted():
    assert type(checked(1, float, "work")) is int, "not converted: a record's id depends on it"


@pytest.mark.parametrize("value", ["a\nb", "x" * 100, {"\ud800": 1}, 10**100])
def test_a_brief_value_is_one_short_line(value):
    assert brief(value).isprintable()
    assert len(brief(value)) <= 61
