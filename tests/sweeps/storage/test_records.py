"""Curves that are cut and thinned, and records and keys that are told apart by all that matters."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.model.backends.base import Epoch, no_parameters
from lib.model.backends.registry import Runtime
from lib.model.spec import Training
from lib.sweeps.storage import records as records_module
from lib.sweeps.storage.records import Curve, Key, Kind, Record, this_command
from lib.timing.measurement import Ended, Measurement


def curve(n_epochs: int, steps: int = 4) -> Curve:
    epochs = tuple(Epoch(number, steps, 0.5, 0.9, 0.1, 0.01, no_parameters) for number in range(n_epochs))
    return Curve(0.1, epochs, np.arange(n_epochs * steps, dtype=np.float32))


def test_the_values_of_kinds_lie_in_files():
    assert sorted(Kind) == ["anatomy", "ceiling", "failure", "models", "operation", "pace", "pipeline", "race", "sweep"]
    assert json.dumps(Kind.RACE) == '"race"'


def test_a_cut_curve_is_the_beginning_of_a_longer_one():
    cut = curve(3).cut(2)
    assert len(cut.epochs) == 2
    np.testing.assert_array_equal(cut.losses, np.arange(8))
    np.testing.assert_array_equal(replace(curve(3), losses=np.arange(6), every=2).cut(2).losses, np.arange(4))


@given(st.integers(1, 50), st.integers(1, 60))
def test_a_thinned_curve_has_no_more_points_than_asked_for_and_the_same_mean(n_losses, points):
    whole = replace(curve(1), losses=np.arange(n_losses, dtype=np.float32))
    thin = whole.thinned(points)
    assert len(thin.losses) <= points
    assert len(thin.losses) == -(-n_losses // thin.every)
    assert thin.losses[0] == pytest.approx(whole.losses[: thin.every].mean())
    assert thin.losses[-1] == pytest.approx(whole.losses[(len(thin.losses) - 1) * thin.every :].mean())


def test_a_diverged_curve_lasts_for_ever():
    assert not curve(2).lasts(3)
    assert curve(2).lasts(2)
    diverged = replace(curve(2), epochs=(*curve(1).epochs, replace(curve(1).epochs[0], diverged_step=2)))
    assert diverged.lasts(100)
    assert not curve(0).lasts(1)


def test_a_record_is_its_content():
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


def test_a_command_names_no_folder(monkeypatch):
    monkeypatch.setattr("sys.orig_argv", ["/home/me/.venv/bin/python3", "-m", "lib.cli.record", "/home/me/a.json"])
    assert this_command() == "python -m lib.cli.record a.json"
    words = ["/usr/bin/python3", "-m", "lib.cli.record", "mine/a.json", "--runtimes", "jax-epoch/gpu/bfloat16"]
    monkeypatch.setattr("sys.orig_argv", words)
    assert this_command() == "python -m lib.cli.record a.json --runtimes jax-epoch/gpu/bfloat16"
