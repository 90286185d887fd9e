"""The rounds and their ratios on literal answers; each peer's mathematics where its library is installed.

PyTorch, Flax and tinygrad come with `make bench` only; a test that needs one is skipped without it.
"""

import math
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from benchmarks import peers
from benchmarks.peer import PEERS, Peer, unavailable
from benchmarks.peer.__main__ import Trainer, main
from benchmarks.peer.process import PeerFailed, PeerProcess, environment
from benchmarks.peers import Record, best_of_ours, measure, ratio_of, remarks, rows_of, sameness, targets
from lib.model.backends.base import Epoch, Steps, no_parameters
from lib.model.spec import Network, Training
from tests.conftest import ROOT

pytestmark = pytest.mark.release


class Scripted:
    """A participant whose epochs take these seconds in turn; it fails when there are no more."""

    def __init__(self, seconds):
        self.seconds, self.epoch = list(seconds), -1

    def ask(self, question, limit_s):
        assert question["do"] == ("start" if self.epoch < 0 else "go")
        if self.epoch >= 0 and not self.seconds:
            raise PeerFailed("it gave up")
        self.epoch += 1
        train_s = self.seconds.pop(0) if self.epoch else 99.0  # the first epoch compiles
        return {
            "train_s": train_s,
            "losses": [2.5, 2.0],
            "epoch": self.epoch,
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
    rows = {r["peer"]: r for r in rows_of(records, {}, 32, {"flax": {32: 2}})}
    assert [rows["flax"][name] for name in ("ratio", "ratio_low", "ratio_high")] == pytest.approx([3, 3, 3])
    assert (rows["flax"]["n"], rows["flax"]["threads"], rows["sklearn"]["threads"]) == (9, 2, None)
    assert rows["numpy"]["best_of_ours"]
    assert rows["numpy"]["ratio"] == 1


def test_the_interval_leaves_one_round_out_on_each_side():
    assert ratio_of([1, 2, 3, 4, 5, 6, 7, 8, 100], [1] * 9) == (5, 2, 8)
    assert ratio_of([2, 4], [1, 1]) == (3, 0, math.inf), "two rounds cannot say more"


def test_the_first_epoch_is_not_timed(race):
    assert max(race({"numpy": Scripted([0.2] * 9)})["numpy"].epoch_s) == pytest.approx(0.2)


class Restarted:
    """A participant that begins anew at each batch size, with these seconds there."""

    def __init__(self, seconds):
        self.seconds = seconds

    def ask(self, question, limit_s):
        if question["do"] == "start":
            self.training = Scripted(self.seconds[question["batch_size"]])
        return self.training.ask(question, limit_s)


def test_each_trains_with_the_threads_that_it_is_quickest_with(monkeypatch):
    """Of one, two, four and all six, at each batch size by itself: by the shortest epoch of three short ones, or by one
    long one."""
    seconds = {
        "numpy": {
            1: {32: [1, 9, 9], 512: [0.09, 0.09, 0.09], 4096: []},
            2: {32: [2, 2, 2], 512: [0.08, 0.08, 0.08], 4096: [5, 5, 5]},
            4: {32: [3, 3, 3], 512: [0.09, 0.09, 0.03], 4096: []},
            6: {32: [4, 0.1, 4], 512: [0.04, 0.04, 0.04], 4096: []},
        },
        "flax": {n: {32: [], 512: [1 / n] * 3, 4096: [n] * 3} for n in (1, 2, 4, 6)},
    }

    @contextmanager
    def started(who):
        yield {name: Restarted(seconds[peer.key][threads]) for name, (peer, threads) in who.items()}, {}

    monkeypatch.setattr(peers, "SETTLE_S", 0)
    monkeypatch.setattr(peers, "usable_cores", lambda: 6)
    monkeypatch.setattr(peers, "started", started)
    assert peers.best_threads(["numpy", "flax"]) == {
        "numpy": {32: 1, 512: 4, 4096: 2},  # at 4096 the others failed
        "flax": {32: 6, 512: 6, 4096: 1},  # at 32 all did
    }


def test_who_fails_in_the_middle_is_reported_and_the_others_go_on(race):
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


def test_without_ours_there_is_no_ratio(race):
    rows = rows_of(race({"flax": Scripted([1.0] * 9)}), {}, 32, {})
    assert all("ratio" not in r for r in rows)
    assert all(target.figure is None for target in targets(rows))
    assert all("not measured" in str(target) for target in targets(rows))


def test_the_targets_are_held_against_the_nearest_peer(race):
    field = {"numpy": [1.0] * 9, "flax": [3.0] * 9, "torch-eager": [2.5] * 9, "keras-tensorflow": [7.0] * 9}
    rows = rows_of(race({key: Scripted(seconds) for key, seconds in field.items()}), {}, 32, {})
    best, *others, keras = targets(rows)
    assert (best.figure, best.limit, best.at_least) == (pytest.approx(2.5), 3.5, True)
    assert "PyTorch, eager" in best.what
    assert best.word == "MISSED"
    assert (keras.figure, keras.limit) == (pytest.approx(7), 8)
    assert [(t.figure, t.limit) for t in others] == [(None, 2.5), (None, 2.2)]


def test_another_mathematics_is_noticed():
    reference = Record([1.0], losses=[2.5, 2.0], accuracies={0: 0.90, 1: 0.95})
    near = Record([1.0], losses=[2.5, 2.0005], accuracies={0: 0.905})
    assert sameness(near, reference)["same"]
    assert sameness(near, reference)["accuracy_difference"] == pytest.approx(0.005), "after the same epoch"
    assert sameness(Record([1.0], losses=[2.5, 2.1], accuracies={1: 0.95}), reference)["same"] is False
    worse = Record([1.0], losses=[2.5, 2.0], accuracies={1: 0.93})
    assert sameness(worse, reference)["same"] is False
    rows = rows_of({"numpy": reference, "flax": worse}, {}, 32, {})
    assert any("Flax and Optax, batch size 32: not the same training" in line for line in remarks(rows))


def test_a_target_that_its_interval_encloses_is_unclear(race):
    for seconds, word in ((3.2, "unclear"), (3.8, "met")):
        spread = [seconds - 0.2, seconds, seconds + 0.6] * 3
        found = rows_of(race({"numpy": Scripted([1.0] * 9), "flax": Scripted(spread)}), {}, 32, {})
        assert targets(found)[0].word == word


def test_a_repetition_ends_with_its_epoch():
    def events():
        for epoch in range(2):
            for first in (0, 10):
                yield Steps(epoch, first, np.full(10, 0.5, np.float32), 2.0)
            yield Epoch(epoch, 20, 0.4, 0.9, 4.0, 0.1, no_parameters)

    trainer = Trainer(events())
    assert [(answer["epoch"], answer["train_s"]) for answer in (trainer.advance(), trainer.advance())] == [
        (0, 4.0),
        (1, 4.0),
    ]
    with pytest.raises(RuntimeError, match="no more epochs"):
        trainer.advance()


class Fitted:
    """A model that learns its mean loss, and fails when it is asked to."""

    def __init__(self, fails_in=None):
        self.fits, self.fails_in, self.ended = [], fails_in, False
        self.weights = [np.zeros((784, 10), np.float32), np.zeros(10, np.float32)]

    def get_weights(self):
        return list(self.weights)

    def set_weights(self, weights):
        self.weights = weights

    def fit(self, x, y, epochs, callbacks, **_options):
        self.fits.append((len(x), epochs))
        for epoch in range(epochs):
            if epoch == self.fails_in:
                raise ArithmeticError("it cannot be divided")
            self.weights = [array + 1 for array in self.weights]
            callbacks[0].on_epoch_end(epoch, {"loss": float(self.weights[1][0])})
            if self.stop_training:
                break
        self.ended = True


def test_keras_trains_all_epochs_in_one_fit(small_data):
    """After the checked steps, which leave no trace in its weights."""
    from benchmarks.peer.with_keras import _train

    model: Any = Fitted()
    n = len(small_data.x_train) // 32
    found = list(_train(Training(Network(()), 0.1, 32, 3), small_data, model))
    assert model.fits == [(32, 1)] * min(n, 20) + [(n * 32, 3)]
    steps = [event.losses for event in found if isinstance(event, Steps)]
    assert [losses[-1] for losses in steps[1:]] == [2, 3]
    assert steps[0][0] == 1
    assert [event.epoch for event in found if isinstance(event, Epoch)] == [0, 1, 2]


def test_a_fit_of_keras_ends_with_its_training_and_tells_its_failure(small_data):
    from benchmarks.peer.with_keras import _train

    model: Any = Fitted()
    events = _train(Training(Network(()), 0.1, 32, 100), small_data, model)
    assert next(event for event in events if isinstance(event, Epoch)).epoch == 0
    model.ended = False
    events.close()
    assert model.ended, "and with it its thread"
    assert float(model.weights[1][0]) == 1, "no epoch more"
    model = Fitted(fails_in=1)
    with pytest.raises(ArithmeticError, match="cannot be divided"):
        list(_train(Training(Network(()), 0.1, 32, 3), small_data, model))


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


def test_a_number_of_threads_reaches_every_library():
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "NPROC")
    for key in ("tinygrad", "keras-tensorflow", "flax"):
        found = environment(PEERS[key], threads=3)
        assert {found[name] for name in (*names, "NUM_CPU_THREADS")} == {"3"}


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


TRAINING = {"hidden": [16], "learning_rate": 0.1, "batch_size": 2048, "epochs": 3, "seed": 0}


def answers_of(key):
    """Of all epochs, in a process of its own, as in the benchmark, with one thread."""
    process = PeerProcess(PEERS[key], threads=1)
    try:
        process.answer(120)
        return [process.ask({"do": "start"} | TRAINING, 240), *(process.ask({"do": "go"}, 120) for _ in range(2))]
    finally:
        process.close()


@pytest.fixture(scope="module")
def by_numpy():
    return answers_of("numpy")


@pytest.mark.parametrize("key", [key for key, peer in PEERS.items() if not peer.ours])
def test_a_peer_trains_as_numpy_does(key, by_numpy):
    """Losses of the first steps, and accuracy; 23 steps are no multiple of what Keras makes in a call."""
    if (gap := unavailable(PEERS[key])) is not None:
        pytest.skip(gap.reason)
    found = answers_of(key)
    assert [(one["epoch"], one["steps"]) for one in found] == [(0, 23), (1, 23), (2, 23)]
    np.testing.assert_allclose(found[0]["losses"], by_numpy[0]["losses"], atol=1e-4)
    assert found[0]["accuracy"] == pytest.approx(by_numpy[0]["accuracy"], abs=0.002)
    # Whoever has the loop has another order from here on.
    assert [one["accuracy"] for one in found] == pytest.approx([one["accuracy"] for one in by_numpy], abs=0.01)


def test_every_keras_that_takes_part_does_so_in_both_forms():
    plain = {key for key in PEERS if key.startswith("keras-") and not key.endswith("-quickest")}
    assert {f"{key}-quickest" for key in plain} == {key for key in PEERS if key.endswith("-quickest")}
    assert len(plain) == 3
