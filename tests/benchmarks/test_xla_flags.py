"""Flags are compared with a worker's own in the same round; who fails or trains otherwise is named."""

import json
from types import SimpleNamespace

import pytest

from benchmarks import peers, report, xla_flags
from benchmarks.peer.process import PeerFailed, PeerProcess
from benchmarks.peers import Record
from benchmarks.report import LeftOut
from benchmarks.xla_flags import AS_IT_IS, FLAGS, ONE_THREAD, ROUNDS, remarks, rows_of, started
from lib.model.backends.environment_variables import XLA_WITHOUT_WRONG_SUMS

pytestmark = pytest.mark.release


def record(*epoch_s, losses=(2.5, 2.0), failed=None):
    return Record(list(epoch_s), losses=list(losses), accuracies={0: 0.9}, failed=failed)


def test_a_win_is_of_neighbours_and_of_the_same_training():
    drift = [1.0, 2.0, 4.0] * 3
    left_out = LeftOut()
    records = {
        AS_IT_IS: record(*drift),
        "oneDNN": record(*(0.5 * s for s in drift), losses=(2.5, 2.000001)),
        "YNN off": record(*(0.5 * s for s in drift), losses=(2.5, 2.01)),
        ONE_THREAD: record(*(1.5 * s for s in drift)),
        "vectors of 512 bits": record(1.0, failed="it was killed"),
    }
    rows = {r["setting"]: r for r in rows_of(records, 32, left_out)}
    assert [rows[name]["verdict"] for name in (AS_IT_IS, "oneDNN", ONE_THREAD)] == ["the same", "faster", "slower"]
    assert [rows["oneDNN"][name] for name in ("ratio", "ratio_low", "ratio_high")] == pytest.approx([0.5, 0.5, 0.5])
    assert (rows["oneDNN"]["same"], rows["YNN off"]["same"]) == (True, False)
    assert left_out == ["vectors of 512 bits, batch size 32: it was killed"]
    assert remarks(list(rows.values())) == [
        "oneDNN, batch size 32: 0.50 times the time (0.50 to 0.50)",
        "YNN off, batch size 32: not the same training: losses differ by 0.01",
    ]


def test_without_a_workers_own_flags_there_is_nothing_to_compare_with():
    left_out = LeftOut()
    assert rows_of({"oneDNN": record(1.0)}, 32, left_out) == []
    assert left_out == ["batch size 32: nothing to compare with: it did not start"]


def test_a_flag_that_this_jaxlib_does_not_know_is_left_out_by_name(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(report, "OUT", tmp_path)
    monkeypatch.setattr(report, "RESULTS", tmp_path / "RESULTS.md")
    monkeypatch.setattr(peers, "SETTLE_S", 0.0)
    monkeypatch.setattr(xla_flags, "BATCH_SIZES", (512,))

    def played(setting):
        def ask(question, _limit_s):
            if setting == "oneDNN":
                raise PeerFailed("its process ended with status -6: Unknown flag in XLA_FLAGS: --xla_cpu_use_onednn")
            return {"train_s": 1.0, "steps": 93, "losses": [2.5], "epoch": 0, "accuracy": 0.9}

        return SimpleNamespace(answer=lambda _limit_s: {}, ask=ask, close=lambda: None)

    monkeypatch.setattr(xla_flags, "started", played)
    xla_flags.main()
    rows = json.loads((tmp_path / "xla_flags.json").read_text())
    assert {r["setting"] for r in rows} == FLAGS.keys() - {"oneDNN"}
    assert {r["n"] for r in rows} == {ROUNDS}
    assert "Left out: oneDNN, batch size 512: its process ended" in capsys.readouterr().out


def test_flags_are_added_to_a_workers_own_and_count(monkeypatch):
    given = {}
    monkeypatch.setattr(PeerProcess, "__init__", lambda _self, *arguments: given.update({"process": arguments}))
    for setting, flags in FLAGS.items():
        started(setting)
        _, settings, threads = given["process"]
        assert settings["XLA_FLAGS"].split()[-len(flags.split()) :] == flags.split() or not flags
        assert XLA_WITHOUT_WRONG_SUMS in settings["XLA_FLAGS"].split()
        assert threads == (1 if setting == ONE_THREAD else None)
