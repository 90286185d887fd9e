"""Lanes as a reader sees them, from literal spans."""

import pytest

from lib.backends.registry import Runtime
from lib.experiments.single_operations import OperationPoint, OperationTask
from lib.profiling.request import Operation
from lib.storage.records import Kind, Record
from lib.timing.measurement import Ended, Measurement
from lib.views import overlap as view
from tests.views.test_single_operations import rows

NUMPY = Runtime("numpy")


def lanes(in_turn_s, in_pieces_s):
    task = OperationTask(NUMPY, Operation("overlap", 64, depth=4, pieces=2))
    blocks = {
        "in turn": tuple(in_turn_s * (1 + 0.001 * k) for k in range(9)),
        "in pieces": tuple(in_pieces_s * (1 + 0.001 * k) for k in range(9)),
    }
    spans = {"there": [(0.0, 1.0), (1.0, 2.0)], "compute": [(1.0, 2.0), (2.0, 3.0)], "back": [(2.0, 3.0), (3.0, 4.0)]}
    for lane, pieces in spans.items():
        blocks |= {f"in pieces/{lane}/{end}": tuple(s[i] for s in pieces) for i, end in enumerate(("begins", "ends"))}
    for number, lane in enumerate(spans):
        blocks |= {f"in turn/{lane}/begins": (2.0 * number,), f"in turn/{lane}/ends": (2.0 * number + 2.0,)}
    made = {name: Record.of(Kind.OPERATION, {"work": 1.0}, Measurement(b, 1, Ended.CAP)) for name, b in blocks.items()}
    return OperationPoint(task, made)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        ((6.0, 4.0), "with pieces it is 1.5 times as fast"),
        ((4.0, 6.0), "with pieces it is 1.5 times as slow"),
        ((4.0, 4.0), "with pieces it is as fast"),
    ],
)
def test_lanes_overlap_in_pieces_only(seconds, words):
    text = view.overlap_sentence([lanes(*seconds)])
    assert text == ("NumPy: in turn, two stages are at work for 0% of a run, in 2 pieces for 50%; " + words + ".")
    assert view.overlap_sentence([]) == ""


def test_lanes_are_drawn_to_one_scale():
    point = lanes(6.0, 4.0)
    assert view.last_end_s([point]) == 6.0
    charts = [view.lanes_chart(point, way, 6.0) for way in ("in turn", "in pieces")]
    assert [len(rows(chart, "piece")) for chart in charts] == [3, 6]
    assert len({str(chart.spec["layer"][0]["encoding"]["x"]["scale"]) for chart in charts}) == 1
    assert view.lanes_chart(None, "in turn", 0.01).height_px == charts[0].height_px
