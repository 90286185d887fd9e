"""Single operations as a reader sees them: from literal points, each sentence only what they show."""

import pytest

from lib.backends.registry import Runtime
from lib.experiments.single_operations import Point, Task, transfer_costs
from lib.profiling.request import MOVED, RETURNED, WAITED, Operation
from lib.storage.records import Kind, Record
from lib.timing.measurement import Ended, Measurement
from lib.views import single_operations as view

NUMPY, JAX, CARD = Runtime("numpy"), Runtime(), Runtime(device="gpu")


def product(runtime, size, spread=0.001, **ways):
    task = Task(runtime, Operation("product", size))

    def record(way, seconds):
        blocks = tuple(seconds * (1 + spread * (k % 5)) for k in range(9))
        return Record.of(
            Kind.OPERATION, task.subject | {"name": way, "work": 2.0 * size**3}, Measurement(blocks, 1, Ended.CAP)
        )

    return Point(task, {way: record(way, seconds) for way, seconds in ways.items()})


POINTS = [
    product(NUMPY, 64, waited=1e-5),
    product(NUMPY, 1024, waited=2e-2),
    product(JAX, 64, waited=2e-5, moved=1e-4, returned=1e-5),
    product(JAX, 1024, waited=1e-2, moved=2e-2, returned=1e-4),
]


def rows(chart, *wanted):
    found = [row for data in chart.spec["datasets"].values() for row in data if "label" in row]
    return [row for row in found if all(name in row for name in wanted)]


def test_the_sentence_says_what_the_points_show():
    text = view.product_sentence(POINTS, "JAX", {"cpu": 400e9})
    assert text.startswith(
        "At n = 1,024, JAX has the shortest time, 10 ms: 214 GFLOP/s, 54 % of the float32 peak".replace(
            " ms", "\u202fms"
        )
    )
    assert "Half of the peak is reached by JAX from n = 1,024." in text
    assert "JAX is faster than NumPy from n = 1,024 on." in text
    assert "JAX's product of n = 1,024 100 times too fast" in text
    assert view.product_sentence([], "JAX", {}) == ""


def test_what_cannot_be_told_apart_is_not_called_faster():
    alike = [product(NUMPY, 64, waited=1e-5), product(JAX, 64, waited=1e-5, moved=1e-5, returned=1e-5)]
    text = view.product_sentence(alike, "JAX", {})
    assert "not told apart from it: " in text
    assert "JAX is faster than NumPy not at the largest n." in text
    assert "hides nothing that can be told here" in text
    assert "peak" not in text


def test_a_card_is_held_against_numpy_with_and_without_the_transfer():
    card = [product(CARD, 64, waited=2e-6, moved=1e-4, returned=1e-6), product(CARD, 1024, waited=1e-4, moved=1e-3)]
    text = view.product_sentence([*POINTS, *card], "JAX, GPU", {})
    assert "JAX, GPU is faster than NumPy with the transfer from n = 1,024 on and without it from n = 64 on." in text


def test_hollow_points_stand_where_they_are_predicted():
    refused = Point(Task(NUMPY, Operation("product", 4096)), why_not="it needs 9 GB", predicted_s=2.0)
    chart = view.seconds_chart(view.lines_of([*POINTS, refused], WAITED), 4096, "seconds", ["NumPy", "JAX"], "n")
    assert [(row["x"], row["y"], row["why"]) for row in rows(chart, "why")] == [(4096, 2.0, "it needs 9 GB")]
    assert {row["x"] for row in rows(chart, "low")} == {64, 1024}
    assert "NumPy, size 4,096: it needs 9 GB." in view.skipped([*POINTS, refused])
    assert view.skipped(POINTS) == ""


def test_a_chart_keeps_its_size_and_its_first_axis_while_it_fills():
    empty, full = (view.seconds_chart(view.lines_of(some, WAITED), 1024, "s", ["NumPy"], "n") for some in ([], POINTS))
    assert empty.height_px == full.height_px
    assert [layer["encoding"]["x"]["scale"] for layer in (empty.spec["layer"][0], full.spec["layer"][0])] == [
        {"type": "log", "domain": [1, 1024], "nice": False, "base": 2}
    ] * 2


def test_the_ways_of_a_library_have_the_mistake_among_them():
    lines = view.ways_of(POINTS, "JAX")
    assert [(line.label, line.way, line.dash) for line in lines] == [
        ("NumPy", WAITED, "solid"),
        ("waited for", WAITED, "solid"),
        ("there and back", MOVED, "solid"),
        ("not waited for", RETURNED, "dashed"),
    ]
    assert {line.label for line in lines} == set(view.WAY_LABELS)
    assert view.ways_of([], "JAX") == []


def test_shares_are_drawn_where_there_is_a_peak():
    chart = view.share_chart(view.lines_of(POINTS, WAITED), 1024, {"cpu": 400e9}, ["NumPy"], "n", "share")
    shares = {(row["label"], row["x"]): row["y"] for row in rows(chart, "low")}
    assert shares["JAX", 1024] == pytest.approx(0.536, abs=0.01)
    ends = list(chart.spec["datasets"]["ends"])
    assert all(row["text"] == row["label"] and 0 <= row["at"] <= 1 for row in ends)
    assert rows(view.share_chart(view.lines_of(POINTS, WAITED), 1024, {}, ["NumPy"], "n", "share"), "low") == []


def test_the_table_has_every_way_and_published_figures_are_called_so():
    text = view.products_table(POINTS)
    assert "10.0" in text
    assert "GFLOP/s" in text
    assert "–" in text
    text = view.products_published(POINTS, "JAX")
    assert "50%, A100" in text
    assert "272\u202fμs" in text
    assert "50% by JAX at n = 1,024" in text
    assert "not measured yet" in view.products_published([], "JAX")


def sine(runtime, size, **ways):
    """Bytes of work: two arrays of float32 a pass, four passes one by one."""
    task = Task(runtime, Operation("sine", size, depth=4))

    def record(way, seconds):
        work = 8.0 * size * (4 if way.startswith("eager") else 1)
        blocks = tuple(seconds * (1 + 0.001 * (k % 5)) for k in range(9))
        return Record.of(Kind.OPERATION, task.subject | {"name": way, "work": work}, Measurement(blocks, 1, Ended.CAP))

    return Point(task, {way: record(way, seconds) for way, seconds in ways.items()})


@pytest.mark.parametrize(
    ("eager_s", "fused_s", "bandwidth", "words"),
    [
        (4e-3, 1e-3, 10e9, ["3 of 4 passes", "JAX is 4 times as fast with it", "8.37 GB/s, 84%", ": memory bound."]),
        (1e-3, 1e-3, 100e9, ["takes the same time with it", "8% of what a copy moves", "not memory bound"]),
        (1e-3, 2e-3, 7e9, ["takes 2 times as long with it", "memory and arithmetic take about as long"]),
    ],
)
def test_memory_bound_is_computed(eager_s, fused_s, bandwidth, words):
    points = [sine(JAX, 2**20, **{"eager/waited": eager_s, "fused/waited": fused_s})]
    text = view.sine_sentence(points, "JAX", 4, {"cpu": bandwidth})
    assert [word for word in words if word not in text] == [], text
    assert view.sine_sentence(points, "NumPy", 4, {"cpu": bandwidth}) == ""
    assert "bound" not in view.sine_sentence(points, "JAX", 4, {})


def test_published_sines_stand_beside_those_measured_here():
    points = [sine(JAX, 64, **{"eager/waited": 4e-3, "fused/waited": 1e-3}), sine(NUMPY, 64, **{"eager/waited": 1e-3})]
    text = view.sines_published(points, "JAX", 4)
    assert "100\u202fμs → 50\u202fμs, four, A100" in text
    assert "4\u202fms → 1\u202fms, 4 sines of 64 by JAX" in text
    assert "not measured yet" in view.sines_published([], "JAX", 4)
    assert [line.label for line in view.sine_ways_of(points, "JAX")] == list(view.SINE_LABELS)
    assert {(line.label, line.way) for line in view.bandwidth_lines(points)} == {
        ("JAX", "fused/waited"),
        ("NumPy", "eager/waited"),
    }
    assert "0.000511, 0.000511 GB/s" in view.sines_table(points)


def transfer(runtime, size, **ways):
    task = Task(runtime, Operation("transfer", size))

    def record(way, seconds):
        blocks = tuple(seconds * (1 + 0.001 * (k % 5)) for k in range(9))
        subject = task.subject | {"name": way, "work": float(size)}
        return Record.of(Kind.OPERATION, subject, Measurement(blocks, 1, Ended.CAP))

    return Point(task, {way: record(way, seconds) for way, seconds in ways.items()})


TRANSFERS = [transfer(JAX, 4**k, copied=1e-5 + 4**k / 1e9, aliased=1e-5 * (1 + 0.01 * (-1) ** k)) for k in range(1, 13)]


def test_a_transfer_is_a_latency_and_a_bandwidth_with_intervals():
    costs = transfer_costs(TRANSFERS)
    text = view.transfer_sentence(TRANSFERS, "JAX", costs)
    assert "JAX, copied: 10\u202fμs (10\u202fμs to 10\u202fμs) + size ÷ 1 GB/s (1 to 1)." in text
    assert "JAX, aliased: 10\u202fμs (9.9\u202fμs to 10\u202fμs) at any size." in text
    assert "Below 9.77 KiB, most of a copy's time is the call" in text
    assert "At 16 MiB a copy takes 1,700 times as long as an alias." in text
    assert view.transfer_sentence(TRANSFERS[:2], "JAX", transfer_costs(TRANSFERS[:2])) == ""


def test_the_fit_is_drawn_beside_what_was_measured():
    costs = transfer_costs(TRANSFERS)
    lines = view.transfer_lines(TRANSFERS, "JAX")
    assert [line.label for line in lines] == ["copied", "aliased"], "there is nothing pinned on a processor"
    chart = view.seconds_chart(lines, 4**12, "s", ["copied"], "bytes", [*costs.values()])
    curves = [row for data in chart.spec["datasets"].values() for row in data if "curve" in row]
    assert {row["curve"] for row in curves} == {0, 1}
    assert max(row["y"] for row in curves) == pytest.approx(4**12 / 1e9, rel=0.01)


def test_what_the_article_calculated_is_not_called_measured():
    text = view.transfers_published("JAX", transfer_costs(TRANSFERS))
    assert "3.1\u202fμs at 32 GB/s; the setup takes 10 to 20 times that" in text
    assert "calculated there and not measured" in text
    assert "100\u202fμs; the call takes 0.1 times that (JAX, predicted by the fit)" in text
    assert "not measured yet" in view.transfers_published("JAX", {})


def first(runtime, **stages):
    task = Task(runtime, Operation("first use", 1024, depth=4))

    def record(name, seconds):
        blocks = Measurement(tuple(seconds * (1 + 0.01 * k) for k in range(3)), 1, Ended.CAP)
        return Record.of(Kind.OPERATION, task.subject | {"name": name, "work": 1.0}, blocks)

    return Point(task, {name.replace("_", " "): record(name.replace("_", " "), s) for name, s in stages.items()})


FIRST = [
    first(NUMPY, process=0.05, **{"import": 0.1}, context=1e-4, first=3e-5, second=5e-6, steady=5e-6),
    first(
        JAX,
        process=0.05,
        **{"import": 0.7},
        context=0.01,
        first=0.1,
        second=5e-5,
        steady=5e-5,
        compiled_first=0.06,
        compiled_second=4e-5,
    ),
]


def test_a_first_use_is_told_stage_by_stage():
    text = view.first_sentence(FIRST)
    assert text.startswith(
        "NumPy has its first result after 152\u202fms and JAX has its first result after 869\u202fms"
    )
    assert "81% of the latter is “import”." in text
    assert "the first one takes NumPy 6 times and JAX 2,000 times" in text
    assert "JAX's has earned its compilation after" in text
    assert "NumPy's" not in text
    assert view.first_sentence([]) == ""


def test_the_stages_are_stacked_and_those_that_a_library_lacks_left_out():
    chart = view.first_chart(FIRST, ["NumPy", "JAX", "TensorFlow"])
    stacked = rows(chart, "stage")
    assert {row["stage"] for row in stacked if row["label"] == "NumPy"} == {stage.label for stage in view.STAGES[:-1]}
    assert len([row for row in stacked if row["label"] == "JAX"]) == len(view.STAGES)
    assert view.first_chart([], ["NumPy", "JAX", "TensorFlow"]).height_px == chart.height_px
    assert "5\u202fμs to 15\u202fμs" in view.first_table(FIRST)


def counted(runtime, **counts):
    task = Task(runtime, Operation("fusion", 32, depth=4))
    records = {
        name.replace("_", "/"): Record.of(Kind.OPERATION, {"work": 1.0}, Measurement((float(n),), 1, Ended.CAP))
        for name, n in counts.items()
    }
    return Point(task, records)


COUNTED = counted(
    JAX,
    step_before_product=5,
    step_before_elementwise=40,
    step_after_product=5,
    step_after_fusion=10,
    step_inside_fusion=9,
    sine_before_elementwise=4,
    sine_after_fusion=1,
)


def test_kernels_are_counted_in_words_and_bars():
    text = view.fusion_sentence([COUNTED], 4)
    assert text == (
        "On the processor, XLA makes 15 kernels of the step's 45 operations: 5 of them products, and the largest fusion"
        " has 9 operations. Of 4 sines it makes 1."
    )
    assert view.fusion_sentence([], 4) == ""
    totals = {row["label"]: row["text"] for row in rows(view.fusion_chart([COUNTED]), "text")}
    assert totals == {
        "the step, before": "45",
        "the step, after": "15",
        "the sines, before": "4",
        "the sines, after": "1",
    }
    assert view.fusion_chart([]).height_px == view.fusion_chart([COUNTED]).height_px


def lanes(in_turn_s, in_pieces_s):
    task = Task(NUMPY, Operation("overlap", 64, depth=4, pieces=2))
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
    return Point(task, made)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [((6.0, 4.0), "1.5 times as fast"), ((4.0, 6.0), "1.5 times as slow"), ((4.0, 4.0), "as fast")],
)
def test_lanes_overlap_in_pieces_only(seconds, words):
    text = view.overlap_sentence([lanes(*seconds)])
    assert text == (
        "NumPy: in turn, two stages are at work for 0% of a run, in 2 pieces for 50%; with pieces it is " + words + "."
    )
    assert view.overlap_sentence([]) == ""


def test_lanes_are_drawn_to_one_scale():
    point = lanes(6.0, 4.0)
    assert view.last_end_s([point]) == 6.0
    charts = [view.lanes_chart(point, way, 6.0) for way in ("in turn", "in pieces")]
    assert [len(rows(chart, "piece")) for chart in charts] == [3, 6]
    assert len({str(chart.spec["layer"][0]["encoding"]["x"]["scale"]) for chart in charts}) == 1
    assert view.lanes_chart(None, "in turn", 0.01).height_px == charts[0].height_px
