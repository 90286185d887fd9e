"""What others reported is predicted as `advise` would, and judged by its intervals; the misses come first."""

from dataclasses import replace

import pytest

from benchmarks import reports
from benchmarks.reports import CARD, DESKTOP, REPORTS, TORCH, judged, targets
from lib.sweeps.experiments.advice import all_devices


@pytest.fixture(scope="module")
def devices():
    return all_devices()


def test_at_least_eight_reports_with_both_times_layers_batch_and_address():
    assert len(REPORTS) >= 8
    assert len({one.where for one in REPORTS}) >= 6
    assert len({one.name for one in REPORTS}) == len(REPORTS)
    assert all(one.where.startswith("https://") and one.how and min(one.cpu_s, one.gpu_s) > 0 for one in REPORTS)
    assert sum(bool(one.dated) for one in REPORTS) >= 8


def test_no_winner_is_wrong_and_four_in_five_are_inside(devices):
    rows = [judged(one, devices) for one in REPORTS]
    assert {one["winner"] for one in rows} <= {"right", "close"}
    assert sum(one["winner"] == "right" for one in rows) >= 3, "too close to call in all would say nothing"
    assert [target.word for target in targets(rows)] == ["met", "met"]
    missed = [one | {"inside": number > 2} for number, one in enumerate(rows)]
    assert [target.word for target in targets(missed)] == ["met", "MISSED"]


def test_a_wrong_winner_and_a_time_outside_are_said_and_come_first(devices, monkeypatch, capsys):
    sharp = {
        key: replace(one, figures={name: replace(of, low=of.value, high=of.value) for name, of in one.figures.items()})
        for key, one in devices.items()
        if key in (f"{DESKTOP}/{TORCH}", f"{CARD}/{TORCH}")
    }
    sharp = {key: replace(one, widening=1.0) for key, one in sharp.items()}
    base = next(one for one in REPORTS if one.library == TORCH and one.processor == DESKTOP)
    row = judged(base, sharp)
    assert row["winner"] != "close"
    swapped = replace(base, cpu_s=base.gpu_s, gpu_s=base.cpu_s)
    assert {row["winner"], judged(swapped, sharp)["winner"]} == {"right", "wrong"}
    shown = []
    monkeypatch.setattr(reports, "REPORTS", (replace(base, name="fits"), *REPORTS))
    monkeypatch.setattr(reports, "show", lambda name, rows, *_: shown.extend(rows))
    reports.main()
    inside = [one["inside"] for one in shown]
    assert inside == sorted(inside)
    assert all(one.where in capsys.readouterr().out for one in REPORTS[:1])
