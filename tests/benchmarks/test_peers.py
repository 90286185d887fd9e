"""Rounds and ratios from literal answers; and each peer's mathematics, if its library is installed.

PyTorch, Flax and tinygrad come with `make bench` only; tests that need one are skipped without it.
"""

import os
import signal
from contextlib import closing

import numpy as np
import pytest

from benchmarks import peers
from benchmarks.peer import PEERS, unavailable
from benchmarks.peer.loop import CHECKED_STEPS
from benchmarks.peer.process import PeerFailed, PeerProcess
from benchmarks.peers import Record, best_of_ours, measure, remarks, rows_of, sameness, targets

pytestmark = pytest.mark.release


class Scripted:
    def __init__(self, seconds):
        self.seconds, self.epoch = list(seconds), -1

    def ask(self, question, limit_s):
        assert question["do"] == ("start" if self.epoch < 0 else "go")
        if self.epoch >= 0 and not self.seconds:
            raise PeerFailed("it gave up")
        self.epoch += 1
        train_s = self.seconds.pop(0) if self.epoch else 99.0  # the first epoch compiles
        return {"train_s": train_s, "losses": [2.5, 2.0], "epoch": self.epoch, "accuracy": 0.9 + self.epoch / 1000}


@pytest.fixture
def race(monkeypatch):
    monkeypatch.setattr(peers, "SETTLE_S", 0)
    return lambda field, rounds=9: measure(field, 32, rounds, np.random.default_rng(0))


def test_ratios_are_computed_within_a_round(race):
    """The machine slows down tenfold halfway: medians of the times would mix the two speeds."""
    ours = [0.1] * 5 + [1.0] * 4
    records = race({"numpy": Scripted(ours), "flax": Scripted([3 * s for s in ours])})
    assert records["numpy"].epoch_s == pytest.approx(ours)
    rows = {r["peer"]: r for r in rows_of(records, {}, 32, {"flax": {32: 2}})}
    assert [rows["flax"][name] for name in ("ratio", "ratio_low", "ratio_high")] == pytest.approx([3, 3, 3])
    assert (rows["flax"]["n"], rows["flax"]["threads"], rows["sklearn"]["threads"]) == (9, 2, None)
    assert rows["numpy"]["best_of_ours"]
    assert rows["numpy"]["ratio"] == 1


def test_a_peer_that_fails_midway_is_reported_and_the_others_continue(race):
    records = race({"numpy": Scripted([1.0] * 9), "jax-epoch": Scripted([0.5] * 2), "flax": Scripted([2.0] * 3)})
    rows = rows_of(records, {"tinygrad": "clang is not installed"}, 32, {})
    assert len(rows) == len(PEERS)
    by_peer = {r["peer"]: r for r in rows}
    assert by_peer["numpy"]["n"] == 9
    assert (by_peer["flax"]["n"], by_peer["flax"]["ratio"]) == (3, 2), "the rounds that it did count"
    assert by_peer["flax"]["unavailable"] == "it gave up"
    assert by_peer["sklearn"]["median_s"] is None
    assert best_of_ours(records) == "numpy", "one that failed is not our best, however fast it was"
    said = "\n".join(remarks(rows))
    assert "Flax and Optax, batch size 32: it gave up" in said
    assert "tinygrad, batch size 32: clang is not installed" in said


def test_targets_compare_with_the_fastest_peer(race):
    field = {"numpy": [1.0] * 9, "flax": [3.0] * 9, "torch-eager": [2.5] * 9, "keras-tensorflow": [7.0] * 9}
    rows = rows_of(race({key: Scripted(seconds) for key, seconds in field.items()}), {}, 32, {})
    best, *others, keras = targets(rows)
    assert (best.figure, best.limit, best.at_least) == (pytest.approx(2.5), 3.5, True)
    assert "PyTorch, eager" in best.what
    assert best.word == "MISSED"
    assert (keras.figure, keras.limit) == (pytest.approx(7), 8)
    assert [(t.figure, t.limit) for t in others] == [(None, 2.5), (None, 2.2)]


def test_training_that_differs_from_the_reference_is_detected():
    reference = Record([1.0], losses=[2.5, 2.0], accuracies={0: 0.90, 1: 0.95})
    near = Record([1.0], losses=[2.5, 2.0005], accuracies={0: 0.905})
    assert sameness(near, reference)["same"]
    assert sameness(near, reference)["accuracy_difference"] == pytest.approx(0.005), "after the same epoch"
    assert sameness(Record([1.0], losses=[2.5, 2.1], accuracies={1: 0.95}), reference)["same"] is False
    worse = Record([1.0], losses=[2.5, 2.0], accuracies={1: 0.93})
    assert sameness(worse, reference)["same"] is False
    rows = rows_of({"numpy": reference, "flax": worse}, {}, 32, {})
    assert any("Flax and Optax, batch size 32: not the same training" in line for line in remarks(rows))


START = {"do": "start", "hidden": [16], "learning_rate": 0.1, "batch_size": 2048, "epochs": 3, "seed": 0}


def test_a_peer_process_answers_and_reports_errors_timeouts_and_its_death():
    with closing(PeerProcess(PEERS["numpy"])) as process:
        process.answer(60)
        first = process.ask(START, 60)
        assert (first["epoch"], first["steps"], len(first["losses"])) == (0, 23, CHECKED_STEPS)
        assert process.ask({"do": "go"}, 60)["epoch"] == 1
        with pytest.raises(PeerFailed, match="batch size: expected"):
            process.ask(START | {"batch_size": 0}, 60)
        with pytest.raises(PeerFailed, match="no answer within 0 s"):
            process.answer(0)
        assert process.ask(START, 60)["epoch"] == 0, "an error is an answer, not an end"
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(PeerFailed, match="ended with status -9"):
            process.ask({"do": "go"}, 60)


def answers_of(key):
    with closing(PeerProcess(PEERS[key], threads=1)) as process:
        process.answer(120)
        return [process.ask(START, 240), *(process.ask({"do": "go"}, 120) for _ in range(2))]


@pytest.fixture(scope="module")
def by_numpy():
    return answers_of("numpy")


@pytest.mark.parametrize("key", [key for key, peer in PEERS.items() if not peer.ours])
def test_a_peer_trains_as_numpy_does(key, by_numpy):
    """Compare the first losses and the accuracy; 23 steps are no multiple of those in a call of Keras."""
    if (gap := unavailable(PEERS[key])) is not None:
        pytest.skip(gap.reason)
    found = answers_of(key)
    assert [(one["epoch"], one["steps"]) for one in found] == [(0, 23), (1, 23), (2, 23)]
    np.testing.assert_allclose(found[0]["losses"], by_numpy[0]["losses"], atol=1e-4)
    assert found[0]["accuracy"] == pytest.approx(by_numpy[0]["accuracy"], abs=0.002)
    # Peers with a loop of their own use another order of batches from here on.
    assert [one["accuracy"] for one in found] == pytest.approx([one["accuracy"] for one in by_numpy], abs=0.01)
