"""Operations by themselves as a reader sees them: from literal points, each sentence only what they show."""

from functools import partial
from types import SimpleNamespace

import pytest

from lib.labs import operations_and_feeds as lab
from lib.labs.operations_and_feeds import operations as view
from lib.labs.operations_and_feeds import programs
from lib.model.backends.registry import Runtime
from lib.sweeps.experiments.background import View
from lib.sweeps.experiments.single_operations import OperationPoint, OperationTask, libraries
from lib.sweeps.storage.records import Kind, Record
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.notes import State
from lib.timing.measurement import Ended, Measurement
from lib.timing.profiling.request import MOVED, RETURNED, WAITED, OperationRequest
from lib.timing.roofline import Cost
from lib.ui.lab import Shown
from lib.ui.url_state import Address
from notebooks import operations_and_feeds as notebook

NUMPY, JAX, CARD = Runtime("numpy"), Runtime(), Runtime(device="gpu")


def timed(runtime, operation, work=lambda _: 1.0, **blocks_s):
    """A point whose ways took these seconds: nine blocks of nearly as many, or those that are given."""
    task, records = OperationTask(runtime, operation), {}
    for way, s in blocks_s.items():
        name = way.replace("_", " ")
        blocks = s if isinstance(s, tuple) else tuple(s * (1 + 0.001 * (k % 5)) for k in range(9))
        subject = task.subject | {"name": name, "work": work(way)}
        records[name] = Record.of(Kind.OPERATION, subject, Measurement(blocks, 1, Ended.CAP))
    return OperationPoint(task, records)


def rows(chart, *wanted):
    found = [row for data in chart.spec["datasets"].values() for row in data if "label" in row]
    return [row for row in found if all(name in row for name in wanted)]


def seconds_chart(lines, largest=1024, names=("NumPy",), **more):
    return view.seconds_chart(lines, largest, names, "n", **more)


CELLS = {"product": "products", "sine": "sines", "transfer": "transfers"}
CELLS |= {"first": "first_use", "fusion": "fusions", "overlap": "overlap"}


@pytest.mark.slow
@pytest.mark.parametrize("prefix", lab.OPERATIONS)
def test_a_section_is_drawn_before_anything_is_measured_and_where_nothing_could_be(prefix, tmp_path):
    asked = []
    named = SimpleNamespace(time=lambda *given: asked.append(given))
    getattr(notebook, f"the_{CELLS[prefix]}").run(lab=named, **{prefix: None})
    ((_, tasks, draw),) = asked
    declared = lab.OPERATIONS[prefix]
    panel = {name: one.value for name, one in declared.elements(prefix, Address()).items()}
    at = declared.checked(prefix, panel)
    todo = tasks(at, libraries())
    assert todo
    section = SimpleNamespace(page=SimpleNamespace(store=Store(tmp_path / "results.sqlite")))
    failed = [OperationPoint(task, why_not="the worker ended") for task in todo]
    empty, full = (
        draw(Shown(at, View(points, State.DONE, "", "", 1), (todo, False), section))  # pyright: ignore[reportArgumentType]
        for points in ([], failed)
    )
    assert empty.result.count("<figure") == full.result.count("<figure") > 0, "the figures keep their places"
    assert (empty.sentence, full.sentence) == ("", ""), "nothing is said of what was not measured"
    assert "Not measured, and why" not in empty.result
    assert "the worker ended" in full.result


# Products.


def product(runtime, size, **ways):
    return timed(runtime, OperationRequest("product", size), lambda _: 2.0 * size**3, **ways)


POINTS = [
    product(NUMPY, 64, waited=1e-5),
    product(NUMPY, 1024, waited=2e-2),
    product(JAX, 64, waited=2e-5, moved=1e-4, returned=1e-5),
    product(JAX, 1024, waited=1e-2, moved=2e-2, returned=1e-4),
]


def test_the_sentence_says_what_the_points_show():
    text = view.product_sentence(POINTS, "JAX", {"cpu": 400e9})
    assert text.startswith("At n = 1,024, JAX has the shortest time, 10\u202fms: 214 GFLOP/s, 54 % of the float32 peak")
    assert "Half of the peak is reached by JAX from n = 1,024." in text
    assert "JAX is faster than NumPy from n = 1,024 on." in text
    assert "JAX's product of n = 1,024 100 times too fast" in text
    assert view.product_sentence([], "JAX", {}) == ""
    for peak, words in ((214e9, "100 %"), (85e9, "250 %"), (1e12, "21 %")):
        assert f"{words} of the float32 peak" in view.product_sentence(POINTS, "JAX", {"cpu": peak})


def test_what_cannot_be_told_apart_is_not_called_faster():
    alike = [product(NUMPY, 64, waited=1e-5), product(JAX, 64, waited=1e-5, moved=1e-5, returned=1e-5)]
    text = view.product_sentence(alike, "JAX", {})
    assert "not told apart from it: " in text
    assert "JAX is not certainly faster than NumPy at the largest n." in text
    assert "hides nothing that can be told here" in text
    assert "peak" not in text


@pytest.mark.parametrize(
    ("waited", "moved", "words"),
    [
        ((2e-6, 1e-4), (1e-4, 1e-3), "with the transfer from n = 1,024 on and without the transfer from n = 64 on."),
        ((2e-6, 2e-6), (1.0, 1.0), "from n = 64 on, and with the transfer not certainly at the largest n."),
        ((1.0, 1.0), (1.0, 1.0), "not certainly faster than NumPy at the largest n, with or without the transfer."),
    ],
)
def test_a_card_is_held_against_numpy_with_and_without_the_transfer(waited, moved, words):
    card = [product(CARD, size, waited=w, moved=m) for size, w, m in zip((64, 1024), waited, moved, strict=True)]
    assert words in view.product_sentence([*POINTS, *card], "JAX, GPU", {})


def test_a_library_pays_from_where_it_is_faster_to_the_end():
    usual = [product(NUMPY, size, waited=1e-6 * size) for size in (1, 2, 4, 8)]

    def from_size(*seconds, way=WAITED):
        return view.worth_from([product(CARD, 2**k, **{way: one}) for k, one in enumerate(seconds)], usual, way)

    assert from_size(5e-6, 5e-6, 3e-6, 3e-6) == 4
    assert from_size(5e-7, 5e-6, 5e-6, 3e-6) == 8, "an early win that is lost again does not count"
    assert from_size(9e-6, 9e-6, 9e-6, 9e-6) is None
    assert from_size(5e-7, 5e-7, 5e-7, 5e-7, way=MOVED) == 1
    vague = product(CARD, 8, waited=tuple(7e-6 * (1 + 0.5 * k) for k in range(9)))
    assert view.worth_from([vague], usual, WAITED) is None, "not told apart is not faster"


def test_the_peak_is_the_best_that_was_seen(tmp_path):
    store = Store(tmp_path / "results.sqlite")
    seen = timed(NUMPY, OperationRequest("product", 100), lambda _: 2e6, waited=(1e-5,) * 9)
    assert view.peak_rates([seen], store) == {}, "without a probe there is no peak"
    for name in ("product", "copy"):
        subject = {"library": "numpy", "device": "cpu", "name": name, "work": 1e9}
        store.add(Record.of(Kind.CEILING, subject, Measurement((0.1,) * 9, 1, Ended.CAP)))
    assert view.peak_rates([], store) == {"cpu": pytest.approx(1e10)}
    assert view.peak_rates([seen], store) == {"cpu": pytest.approx(2e11)}
    assert view.half_peak_from([seen], 2e11) == 100
    assert view.half_peak_from([seen], 5e11) is None


def test_hollow_points_stand_where_they_are_predicted():
    refused = OperationPoint(
        OperationTask(NUMPY, OperationRequest("product", 4096)), why_not="it needs 9 GB", predicted_s=2.0
    )
    chart = seconds_chart(view.lines_of([*POINTS, refused], WAITED), 4096)
    assert [(row["x"], row["y"], row["why"]) for row in rows(chart, "why")] == [(4096, 2.0, "it needs 9 GB")]
    assert {row["x"] for row in rows(chart, "low")} == {64, 1024}
    assert "NumPy, size 4,096: it needs 9 GB." in view._not_measured([*POINTS, refused])


def test_a_chart_keeps_its_size_and_its_first_axis_while_it_fills():
    empty, full = (seconds_chart(view.lines_of(some, WAITED)) for some in ([], POINTS))
    assert empty.height_px == full.height_px
    scales = [chart.spec["layer"][0]["encoding"]["x"]["scale"] for chart in (empty, full)]
    assert scales == [{"type": "log", "domain": [1, 1024], "nice": False, "base": 2}] * 2


def test_the_ways_of_a_library_have_the_mistake_among_them():
    lines = view.ways_of(POINTS, "JAX", view.PRODUCT_WAYS, WAITED)
    assert [(line.label, line.way, line.dash) for line in lines] == [
        ("NumPy", WAITED, "solid"),
        ("waited for", WAITED, "solid"),
        ("there and back", MOVED, "solid"),
        ("not waited for", RETURNED, "dashed"),
    ]
    assert view.ways_of([], "JAX", view.PRODUCT_WAYS, WAITED) == []


def test_shares_are_drawn_where_there_is_a_peak():
    drawn = partial(view.share_chart, view.lines_of(POINTS, WAITED), 1024, ["NumPy"], "n", of="peak")
    chart = drawn(peaks={"cpu": 400e9})
    shares = {(row["label"], row["x"]): row["y"] for row in rows(chart, "low")}
    assert shares["JAX", 1024] == pytest.approx(0.536, abs=0.01)
    assert all(row["text"] == row["label"] and 0 <= row["at"] <= 1 for row in chart.spec["datasets"]["ends"])
    assert rows(drawn(peaks={}), "low") == []


def test_published_figures_stand_beside_and_are_called_so():
    text = view.products_published(POINTS, "JAX")
    assert "50%, A100" in text
    assert "272\u202fμs" in text
    assert "50% by JAX at n = 1,024" in text
    assert "not measured yet" in view.products_published([], "JAX")
    assert "NumPy has one memory" in view.products_published(POINTS, "NumPy")


# Nested sines.


def sine(runtime, size, eager_s, fused_s=None):
    """Bytes of work: two arrays of float32 a pass, four passes one by one."""
    ways = {"eager/waited": eager_s} | ({"fused/waited": fused_s} if fused_s else {})
    operation = OperationRequest("sine", size, depth=4)
    return timed(runtime, operation, lambda way: 8.0 * size * (4 if way.startswith("eager") else 1), **ways)


@pytest.mark.parametrize(
    ("eager_s", "fused_s", "bandwidth", "words"),
    [
        (4e-3, 1e-3, 10e9, ["3 of 4 passes", "JAX is 4 times as fast with it", "8.37 GB/s, 84%", ": memory bound."]),
        (1e-3, 1e-3, 100e9, ["takes the same time with it", "8% of what a copy moves", "not memory bound"]),
        (1e-3, 2e-3, 7e9, ["takes 2 times as long with it", "memory and arithmetic take about as long"]),
        (4e-3, 1e-3, 2e9, ["419% of what a copy moves here: not from memory, but from a cache."]),
    ],
)
def test_memory_bound_is_computed(eager_s, fused_s, bandwidth, words):
    points = [sine(JAX, 2**20, eager_s, fused_s)]
    text = view.sine_sentence(points, "JAX", 4, {"cpu": bandwidth})
    assert [word for word in words if word not in text] == [], text
    assert view.sine_sentence(points, "NumPy", 4, {"cpu": bandwidth}) == ""
    assert "bound" not in view.sine_sentence(points, "JAX", 4, {})


def test_a_single_sine_has_nothing_to_fuse():
    assert view.sine_sentence([sine(JAX, 64, 1e-3, 1e-3)], "JAX", 1, {}) == (
        "Compiling a single sine saves no pass over memory; at 64 elements JAX takes the same time with it."
    )


def test_published_sines_stand_beside_those_measured_here():
    points = [sine(JAX, 64, 4e-3, 1e-3), sine(NUMPY, 64, 1e-3)]
    text = view.sines_published(points, "JAX", 4)
    assert "100\u202fμs → 50\u202fμs, four, A100" in text
    assert "4\u202fms → 1\u202fms, 4 sines of 64 by JAX" in text
    assert "not measured yet" in view.sines_published([], "JAX", 4)
    assert "NumPy makes them one by one only" in view.sines_published(points, "NumPy", 4)
    ways = {(line.label, line.way) for line in view.bandwidth_lines(points)}
    assert ways == {("JAX", "fused/waited"), ("NumPy", "eager/waited")}
    text = view.times_table(points, view.SINE_WAYS, view._sine_rates)
    assert "0.000511, 0.000511 GB/s" in text
    assert "–" in text


# Transfers.


TRANSFERS = [
    timed(JAX, OperationRequest("transfer", 4**k), copied=1e-5 + 4**k / 1e9, aliased=1e-5 * (1 + 0.01 * (-1) ** k))
    for k in range(1, 13)
]


def test_a_transfer_is_a_latency_and_a_bandwidth_with_intervals():
    text = view.transfer_sentence(TRANSFERS, "JAX", view.transfer_costs(TRANSFERS))
    assert "JAX, copied: 10\u202fμs (10\u202fμs to 10\u202fμs) + size ÷ 1 GB/s (1 to 1)." in text
    assert "JAX, aliased: 10\u202fμs (9.9\u202fμs to 10\u202fμs) at any size." in text
    assert "Below 9.77 KiB, most of a copy's time is the call" in text
    assert "At 16 MiB a copy takes 1,700 times as long as an alias." in text
    assert view.transfer_sentence(TRANSFERS[:2], "JAX", view.transfer_costs(TRANSFERS[:2])) == ""


def test_a_latency_that_the_fit_puts_below_nothing_is_nothing():
    """A copy within a cache is no line: it may begin below 0, and no transfer takes less than that."""
    below = Cost(-2e-6, (-3e-6, -1e-6), 1e-9, (0.9e-9, 1.1e-9))
    text = view.transfer_sentence(TRANSFERS, "JAX", {"copied": below})
    assert text.startswith("JAX, copied: 0\u202fμs (0\u202fμs to 0\u202fμs) + size ÷ 1 GB/s (0.91 to 1.1).")
    assert "Below" not in text


def test_the_fit_is_drawn_beside_what_was_measured():
    lines = view.ways_of(TRANSFERS, "JAX", view.TRANSFER_WAYS)
    assert [line.label for line in lines] == ["copied", "aliased"], "there is nothing pinned on a processor"
    chart = seconds_chart(lines, 4**12, costs=view.transfer_costs(TRANSFERS).values())
    curves = [row for data in chart.spec["datasets"].values() for row in data if "curve" in row]
    assert {row["curve"] for row in curves} == {0, 1}
    assert max(row["y"] for row in curves) == pytest.approx(4**12 / 1e9, rel=0.01)


def test_what_the_article_calculated_is_not_called_measured():
    text = view.transfers_published("JAX", view.transfer_costs(TRANSFERS))
    assert "3.1\u202fμs at 32 GB/s; the setup takes 10 to 20 times that" in text
    assert "calculated there and not measured" in text
    assert "100\u202fμs; the call takes 0.1 times that (JAX, predicted by the fit)" in text
    assert "not measured yet" in view.transfers_published("JAX", {})
    flat = Cost(1e-5, (9e-6, 1.1e-5), 0.0, (-1e-12, 1e-12))
    assert "more bytes take no more time" in view.transfers_published("JAX", {"copied": flat})


# First uses, compilers, overlap.


def first(runtime, **stages):
    return timed(runtime, OperationRequest("first use", 1024, depth=4), **stages)


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
        compiled_second=6e-5,
        compiled_steady=4e-5,
    ),
]


def test_a_first_use_is_told_stage_by_stage():
    text = programs.first_sentence(FIRST)
    assert text.startswith("NumPy has its first result after 150\u202fms and JAX has its first result after 86")
    assert "81% of the latter is “import”." in text
    assert "takes 6 times as long with NumPy and 2,000 times as long with JAX." in text
    assert "JAX's compiled program has earned its compilation after 6,000 calls." in text
    assert "NumPy's" not in text
    assert programs.first_sentence([]) == ""
    assert ": 67% of that is “import”." in programs.first_sentence(FIRST[:1])
    for steady_s in (5e-5, 4e-5):
        jax = first(JAX, first=0.1, steady=4e-5, compiled_first=0.06, compiled_steady=steady_s)
        assert "JAX's compiled program is no quicker at this size." in programs.first_sentence([jax])


def test_the_stages_are_stacked_and_those_that_a_library_lacks_left_out():
    names = ["NumPy", "JAX", "TensorFlow"]
    chart = programs.first_chart(FIRST, names)
    stacked = rows(chart, "kind")
    assert {row["kind"] for row in stacked if row["label"] == "NumPy"} == {one.label for one in programs.STAGES[:-1]}
    assert len([row for row in stacked if row["label"] == "JAX"]) == len(programs.STAGES)
    assert programs.first_chart([], names).height_px == chart.height_px
    assert "Table" in programs.first_table(FIRST)


def test_kernels_are_counted_in_words_and_bars():
    names = ("step/before/product", "step/before/elementwise", "step/after/product", "step/after/fusion")
    names += ("step/inside/fusion", "sine/before/elementwise", "sine/after/fusion")
    counts = {name: (float(n),) for name, n in zip(names, (5, 40, 5, 10, 9, 4, 1), strict=True)}
    counted = timed(JAX, OperationRequest("fusion", 32, depth=4), **counts)
    assert programs.fusion_sentence([counted], 4) == (
        "On the processor, XLA makes 15 kernels of the step's 45 operations: 5 of them products, and the largest fusion"
        " has 9 operations. Of 4 sines it makes 1."
    )
    assert programs.fusion_sentence([], 4) == ""
    chart = programs.fusion_chart([counted])
    totals = {row["label"]: row["text"] for row in rows(chart, "text")}
    wanted = {"the step, before": "45", "the step, after": "15", "the sines, before": "4", "the sines, after": "1"}
    assert totals == wanted
    assert programs.fusion_chart([]).height_px == chart.height_px


def lanes(in_turn_s, in_pieces_s):
    blocks = {"in_turn": in_turn_s, "in_pieces": in_pieces_s}
    spans = {"there": [(0.0, 1.0), (1.0, 2.0)], "compute": [(1.0, 2.0), (2.0, 3.0)], "back": [(2.0, 3.0), (3.0, 4.0)]}
    for number, (lane, pieces) in enumerate(spans.items()):
        begins, ends = zip(*pieces, strict=True)
        blocks |= {f"in pieces/{lane}/begins": begins, f"in pieces/{lane}/ends": ends}
        blocks |= {f"in turn/{lane}/begins": (2.0 * number,), f"in turn/{lane}/ends": (2.0 * number + 2.0,)}
    return timed(NUMPY, OperationRequest("overlap", 64, depth=4, pieces=2), **blocks)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [((6.0, 4.0), "1.5 times as fast"), ((4.0, 6.0), "1.5 times as slow"), ((4.0, 4.0), "as fast")],
)
def test_lanes_overlap_in_pieces_only(seconds, words):
    assert programs.overlap_sentence([lanes(*seconds)]) == (
        "NumPy: in turn, two stages are at work for 0% of a run, in 2 pieces for 50%; with pieces it is " + words + "."
    )
    assert programs.overlap_sentence([]) == ""


def test_lanes_are_drawn_to_one_scale():
    point = lanes(6.0, 4.0)
    assert programs.last_end_s([point]) == 6.0
    charts = [programs.lanes_chart(point, way, 6.0) for way in ("in turn", "in pieces")]
    assert [len(rows(chart, "piece")) for chart in charts] == [3, 6]
    assert len({str(chart.spec["layer"][0]["encoding"]["x"]["scale"]) for chart in charts}) == 1
    assert programs.lanes_chart(None, "in turn", 0.01).height_px == charts[0].height_px
