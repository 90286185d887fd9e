"""The rounds and their ratios on literal answers; each peer's mathematics where its library is installed.

PyTorch, Flax and tinygrad come with `make bench` only; a test that needs one is skipped without it.
"""

import importlib
import math
import os
import shutil
import signal
import subprocess
import sys
from contextlib import nullcontext

import numpy as np
import pytest

from benchmarks import peers
from benchmarks.peer import PEERS, Peer, unavailable
from benchmarks.peer.__main__ import Trainer, main
from benchmarks.peer.process import PeerFailed, PeerProcess
from benchmarks.peers import Record, best_of_ours, measure, ratio_of, remarks, rows_of, sameness, targets
from lib.backends import with_numpy
from lib.backends.base import Epoch, Steps, no_parameters
from lib.spec import Network, Training
from tests.conftest import ROOT, jax_promotes

pytestmark = pytest.mark.release


class Scripted:
    """A participant whose epochs take these seconds in turn; it fails when there are no more."""

    def __init__(self, seconds, share=1.0):
        self.seconds, self.share, self.epoch = list(seconds), share, -1

    def ask(self, question, limit_s):
        assert question["do"] == ("start" if self.epoch < 0 else "go")
        if self.epoch >= 0 and not self.seconds:
            raise PeerFailed("it gave up")
        self.epoch += 1
        train_s = self.seconds.pop(0) if self.epoch else 99.0  # the first epoch compiles
        return {
            "train_s": train_s * self.share,
            "steps": round(1500 * self.share),
            "losses": [2.5, 2.0],
            "epoch": self.epoch if self.share == 1 else None,
            "accuracy": 0.9 + self.epoch / 1000,
        }


@pytest.fixture
def race(monkeypatch):
    """Measure scripted participants at batch size 32."""
    monkeypatch.setattr(peers, "SETTLE_S", 0)
    return lambda field, rounds=9: measure(field, 32, rounds, np.random.default_rng(0))


def test_a_ratio_is_taken_within_a_round(race):
    """The machine becomes ten times slower in the middle: medians of the times would mix the two."""
    ours = [0.1] * 5 + [1.0] * 4
    records = race({"numpy": Scripted(ours), "flax": Scripted([3 * s for s in ours])})
    assert records["numpy"].epoch_s == pytest.approx(ours)
    rows = {r["peer"]: r for r in rows_of(records, {}, 32)}
    assert [rows["flax"][name] for name in ("ratio", "ratio_low", "ratio_high")] == pytest.approx([3, 3, 3])
    assert rows["flax"]["n"] == 9
    assert rows["numpy"]["best_of_ours"]
    assert rows["numpy"]["ratio"] == 1


def test_the_interval_leaves_one_round_out_on_each_side():
    assert ratio_of([1, 2, 3, 4, 5, 6, 7, 8, 100], [1] * 9) == (5, 2, 8)
    assert ratio_of([2, 4], [1, 1]) == (3, 0, math.inf), "two rounds cannot say more"


def test_the_first_epoch_is_not_timed(race):
    assert max(race({"numpy": Scripted([0.2] * 9)})["numpy"].epoch_s) == pytest.approx(0.2)


def test_a_part_of_an_epoch_is_scaled_up_and_marked(race):
    record = race({"numpy": Scripted([4.0] * 9, share=0.5)})["numpy"]
    assert record.epoch_s == pytest.approx([4.0] * 9)
    assert record.scaled


def test_who_fails_in_the_middle_is_reported_and_the_others_go_on(race):
    records = race({"numpy": Scripted([1.0] * 9), "jax-epoch": Scripted([0.5] * 2), "flax": Scripted([2.0] * 3)})
    rows = rows_of(records, {"tinygrad": "clang is not installed"}, 32)
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


def test_without_ours_there_is_no_ratio(race):
    rows = rows_of(race({"flax": Scripted([1.0] * 9)}), {}, 32)
    assert all("ratio" not in r for r in rows)
    assert all(target.figure is None for target in targets(rows))
    assert all("not measured" in str(target) for target in targets(rows))


def test_the_targets_are_held_against_the_nearest_peer(race):
    field = {"numpy": [1.0] * 9, "flax": [3.0] * 9, "torch-eager": [2.5] * 9, "keras-tensorflow": [7.0] * 9}
    rows = rows_of(race({key: Scripted(seconds) for key, seconds in field.items()}), {}, 32)
    best, *others, keras = targets(rows)
    assert (best.figure, best.limit, best.at_least) == (pytest.approx(2.5), 3, True)
    assert "PyTorch, eager" in best.what
    assert (keras.figure, keras.limit) == (pytest.approx(7), 8)
    assert [(t.figure, t.limit) for t in others] == [(None, 1.6), (None, 1.5)]


def test_another_mathematics_is_noticed():
    reference = Record([1.0], losses=[2.5, 2.0], accuracies={0: 0.90, 1: 0.95})
    near = Record([1.0], losses=[2.5, 2.0005], accuracies={0: 0.905})
    assert sameness(near, reference)["same"]
    assert sameness(near, reference)["accuracy_difference"] == pytest.approx(0.005), "after the same epoch"
    assert sameness(Record([1.0], losses=[2.5, 2.1], accuracies={1: 0.95}), reference)["same"] is False
    worse = Record([1.0], losses=[2.5, 2.0], accuracies={1: 0.93})
    assert sameness(worse, reference)["same"] is False
    rows = rows_of({"numpy": reference, "flax": worse}, {}, 32)
    assert any("Flax and Optax, batch size 32: not the same training" in line for line in remarks(rows))


def test_a_repetition_ends_with_its_epoch_or_its_time():
    def events():
        for epoch in range(3):
            for first in (0, 10):
                yield Steps(epoch, first, np.full(10, 0.5, np.float32), 2.0)
            yield Epoch(epoch, 20, 0.4, 0.9, 4.0, 0.1, no_parameters)

    whole = Trainer(events(), batch_size=32, n_images=640)
    assert [whole.advance()["epoch"] for _ in range(3)] == [0, 1, 2]
    parts = Trainer(events(), batch_size=32, n_images=640)
    assert parts.advance(3.0)["steps"] == 20, "two parts, and the second ends the epoch"
    parts = Trainer(events(), batch_size=32, n_images=640)
    first, second = parts.advance(1.0), parts.advance(3.0)
    assert (first["steps"], first["epoch"]) == (10, None)
    assert (second["steps"], second["epoch"], second["train_s"]) == (10, 0, 2.0), "the rest is long enough for a figure"
    parts = Trainer(events(), batch_size=32, n_images=640)
    parts.advance(1.0)
    assert parts.advance(5.0)["steps"] == 30, "this rest is not: the next epoch is added, and no more"


def test_a_wrong_name_is_refused(capsys):
    assert main(["theano"]) == 2
    assert "expected one of jax-epoch" in capsys.readouterr().err


def test_why_a_peer_cannot_run_here():
    gap = unavailable(Peer("x", "X", "x", "train", ("no_such_library",)))
    assert gap is not None
    assert (gap.reason, "make bench" in gap.remedy) == ("no_such_library is not installed", True)
    gap = unavailable(Peer("x", "X", "x", "train", ("numpy",), programs=("no-such-compiler",)))
    assert gap is not None
    assert "no-such-compiler" in gap.reason
    assert unavailable(PEERS["numpy"]) is None
    assert PEERS["numpy"].versions == f"numpy {np.__version__}"


def test_the_keys_are_ours_and_the_peers():
    assert {key for key, peer in PEERS.items() if peer.ours} >= {"jax-epoch", "jax-step", "numpy"}
    assert all(peer.key == key for key, peer in PEERS.items())


def test_a_process_answers_sleeps_and_ends():
    process = PeerProcess(PEERS["numpy"])
    try:
        process.answer(60)
        training = {"hidden": [8], "learning_rate": 0.1, "batch_size": 4096, "epochs": 9, "seed": 0}
        first = process.ask({"do": "start"} | training, 60)
        assert (first["epoch"], first["steps"], len(first["losses"])) == (0, 11, 11)
        assert process.ask({"do": "go"}, 60)["epoch"] == 1
        with pytest.raises(PeerFailed, match="batch size: expected"):
            process.ask({"do": "start"} | training | {"batch_size": 0}, 60)
        with pytest.raises(PeerFailed, match="no answer within 0 s"):
            process.answer(0)
        assert process.ask({"do": "start"} | training, 60)["epoch"] == 0, "an error is an answer, not an end"
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(PeerFailed, match="ended with status -9"):
            process.ask({"do": "go"}, 60)
    finally:
        process.close()


def test_a_process_ends_with_its_input():
    command = [sys.executable, "-m", "benchmarks.peer", "numpy"]
    done = subprocess.run(command, cwd=ROOT, input="", capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, '{"ready": true}\n')


STEPWISE = ("numba-dense", "sklearn", "torch-eager", "flax", "tinygrad")


@pytest.mark.parametrize("key", STEPWISE)
@pytest.mark.filterwarnings("ignore")  # third parties' own; what is tested is their numbers
def test_a_peer_trains_as_numpy_does(key, small_data):
    """Two epochs: the losses of every step, and the accuracy."""
    peer = PEERS[key]
    for name in peer.needs:
        pytest.importorskip(name)
    if peer.programs and not any(map(shutil.which, peer.programs)):
        pytest.skip(f"{peer.programs[0]} is not installed")
    train = getattr(importlib.import_module(peer.module), peer.function)
    training = Training(Network((16,)), 0.1, 32, 2)
    with jax_promotes() if key == "flax" else nullcontext():
        steps, ends = _seen(train(training, small_data))
    expected_steps, expected_ends = _seen(with_numpy.train(training, small_data))
    # The first twenty: the whole first epoch. scikit-learn tells only the mean of what follows.
    np.testing.assert_allclose(steps[:20], expected_steps[:20], atol=1e-5)
    assert np.mean(steps[20:]) == pytest.approx(np.mean(expected_steps[20:]), abs=1e-5)
    assert ends == pytest.approx(expected_ends, abs=0.01)
    assert len(steps) == 40


@pytest.mark.parametrize("key", ["keras-jax", "keras-jax-quickest", "keras-tensorflow-quickest"])
def test_both_forms_of_keras_train_as_numpy_does(key):
    """In a process of its own, as Keras has one library at a time; 22 steps are no multiple of what a call makes."""
    training = {"hidden": [8], "learning_rate": 0.1, "batch_size": 2048, "epochs": 3, "seed": 0}
    found = {}
    for name in ("numpy", key):
        process = PeerProcess(PEERS[name])
        try:
            process.answer(120)
            answers = [process.ask({"do": "start"} | training, 240), process.ask({"do": "go"}, 120)]
        finally:
            process.close()
        found[name] = answers
    for ours, theirs in zip(found["numpy"], found[key], strict=True):
        assert (ours["epoch"], ours["steps"]) == (theirs["epoch"], theirs["steps"])
        assert theirs["accuracy"] == pytest.approx(ours["accuracy"], abs=0.002)
    np.testing.assert_allclose(found[key][0]["losses"], found["numpy"][0]["losses"], atol=1e-4)


def test_every_keras_that_takes_part_does_so_in_both_forms():
    plain = {key for key in PEERS if key.startswith("keras-") and not key.endswith("-quickest")}
    assert {f"{key}-quickest" for key in plain} == {key for key in PEERS if key.endswith("-quickest")}
    assert len(plain) == 3


def _seen(events):
    """All losses in order, and each epoch's accuracy."""
    found = list(events)
    losses = [event.losses for event in found if isinstance(event, Steps)]
    return np.concatenate(losses), [event.validation_accuracy for event in found if isinstance(event, Epoch)]
