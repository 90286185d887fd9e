"""Single operations, from literal points: charts, and sentences that claim no more than the points."""

from types import SimpleNamespace

import pytest

from lib.labs.operations_and_feeds import operations as view
from lib.model.backends.registry import Runtime
from lib.sweeps.experiments.results import View
from lib.sweeps.experiments.single_operations import OperationPoint, OperationTask
from lib.sweeps.storage.records import Kind, Record
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.messages import State
from lib.timing.measurement import Ended, Measurement
from lib.timing.profiling.request import OperationRequest
from lib.ui.lab import Shown
from lib.ui.url_state import Address
from notebooks import operations_and_feeds as notebook

NUMPY, JAX, CARD = Runtime("numpy"), Runtime(), Runtime(device="gpu")


def timed(runtime, operation, work=lambda _: 1.0, **blocks_s):
    """A point with nine blocks of about this many seconds per way, or with the given blocks."""
    task, records = OperationTask(runtime, operation), {}
    for way, s in blocks_s.items():
        name = way.replace("_", " ")
        blocks = s if isinstance(s, tuple) else tuple(s * (1 + 0.001 * (k % 5)) for k in range(9))
        subject = task.subject | {"name": name, "work": work(way)}
        records[name] = Record.of(Kind.OPERATION, subject, Measurement(blocks, 1, Ended.CAP))
    return OperationPoint(task, records)


CELLS = {"product": "products", "sine": "sines", "transfer": "transfers"}
CELLS |= {"first": "first_use", "fusion": "fusions", "overlap": "overlap"}


@pytest.mark.slow
@pytest.mark.parametrize("prefix", view.OPERATIONS)
def test_a_section_is_drawn_without_results_and_with_failures_only(prefix, tmp_path):
    asked, store = [], Store(tmp_path / "results.sqlite")
    named = SimpleNamespace(page=SimpleNamespace(store=store), work=lambda *given: asked.append(given))
    getattr(notebook, f"the_{CELLS[prefix]}").run(lab=named, **{prefix: None})
    ((_, ask, draw),) = asked
    declared = view.OPERATIONS[prefix]
    panel = {name: one.value for name, one in declared.elements(prefix, Address()).items()}
    at = declared.checked(prefix, panel)
    todo = list(ask(at).about)
    assert todo
    section = SimpleNamespace(page=SimpleNamespace(store=store))
    failed = [OperationPoint(task, why_not="the worker ended") for task in todo]
    empty, full = (
        draw(Shown(at, View(points, State.DONE, "", "", 1), (todo, False), section))  # pyright: ignore[reportArgumentType]
        for points in ([], failed)
    )
    assert empty.result.count("<figure") == full.result.count("<figure") > 0, "the figures keep their places"
    assert (empty.sentence, full.sentence) == ("", ""), "nothing is said of what was not measured"
    assert "Not measured, and why" not in empty.result
    assert "the worker ended" in full.result


def product(runtime, size, **ways):
    return timed(runtime, OperationRequest("product", size), lambda _: 2.0 * size**3, **ways)


POINTS = [
    product(NUMPY, 64, waited=1e-5),
    product(NUMPY, 1024, waited=2e-2),
    product(JAX, 64, waited=2e-5, moved=1e-4, returned=1e-5),
    product(JAX, 1024, waited=1e-2, moved=2e-2, returned=1e-4),
]


def test_the_sentence_states_time_rate_and_crossover():
    text = view.product_sentence(POINTS, "JAX", {"cpu": 400e9})
    assert text.startswith("At n = 1,024, JAX has the shortest time, 10\u202fms: 214 GFLOP/s, 54 % of the float32 peak")
    assert "JAX is faster than NumPy from n = 1,024." in text
    assert "JAX's product of n = 1,024 100 times too fast" in text
    assert view.product_sentence([], "JAX", {}) == ""
    for peak, words in ((214e9, "100 %"), (85e9, "250 %"), (1e12, "21 %")):
        assert f"{words} of the float32 peak" in view.product_sentence(POINTS, "JAX", {"cpu": peak})


@pytest.mark.parametrize(
    ("waited", "moved", "words"),
    [
        ((2e-6, 1e-4), (1e-4, 1e-3), "with the transfer from n = 1,024 and without the transfer from n = 64."),
        ((2e-6, 2e-6), (1.0, 1.0), "from n = 64, and with the transfer not certainly at the largest n."),
        ((1.0, 1.0), (1.0, 1.0), "not certainly faster than NumPy at the largest n, with or without the transfer."),
    ],
)
def test_a_card_is_compared_with_numpy_with_and_without_the_transfer(waited, moved, words):
    card = [product(CARD, size, waited=w, moved=m) for size, w, m in zip((64, 1024), waited, moved, strict=True)]
    assert words in view.product_sentence([*POINTS, *card], "JAX, GPU", {})


def sine(runtime, size, eager_s, fused_s=None):
    """Work in bytes: two arrays of float32 per pass; four passes if eager."""
    ways = {"eager/waited": eager_s} | ({"fused/waited": fused_s} if fused_s else {})
    operation = OperationRequest("sine", size, depth=4)
    return timed(runtime, operation, lambda way: 8.0 * size * (4 if way.startswith("eager") else 1), **ways)


@pytest.mark.parametrize(
    ("eager_s", "fused_s", "bandwidth", "words"),
    [
        (4e-3, 1e-3, 10e9, ["3 of 4 passes", "JAX is 4 times as fast with it", "8.4 GB/s, 84%", ": memory bound."]),
        (1e-3, 1e-3, 100e9, ["takes the same time with it", "8% of what a copy moves", "not memory bound"]),
        (1e-3, 2e-3, 7e9, ["takes 2 times as long with it", "memory and arithmetic take about equally long"]),
        (4e-3, 1e-3, 2e9, ["419% of what a copy moves here: from a cache, not from memory."]),
    ],
)
def test_memory_bound_is_derived_from_the_copy_bandwidth(eager_s, fused_s, bandwidth, words):
    points = [sine(JAX, 2**20, eager_s, fused_s)]
    text = view.sine_sentence(points, "JAX", 4, {"cpu": bandwidth})
    assert [word for word in words if word not in text] == [], text
    assert view.sine_sentence(points, "NumPy", 4, {"cpu": bandwidth}) == ""
    assert "bound" not in view.sine_sentence(points, "JAX", 4, {})


TRANSFERS = [
    timed(JAX, OperationRequest("transfer", 4**k), copied=1e-5 + 4**k / 1e9, aliased=1e-5 * (1 + 0.01 * (-1) ** k))
    for k in range(1, 13)
]


def test_a_transfer_is_fitted_as_latency_plus_bandwidth():
    text = view.transfer_sentence(TRANSFERS, "JAX", view.transfer_costs(TRANSFERS))
    assert "JAX, copied: 10\u202fμs (10\u202fμs to 10\u202fμs) + size ÷ 1 GB/s (1 to 1)." in text
    assert "JAX, aliased: 10\u202fμs (9.9\u202fμs to 10\u202fμs) at any size." in text
    assert "Below 9.77 KiB, most of a copy's time is the call" in text
    assert "At 16 MiB a copy takes 1,700 times as long as an alias." in text
    assert view.transfer_sentence(TRANSFERS[:2], "JAX", view.transfer_costs(TRANSFERS[:2])) == ""


def first(runtime, **stages):
    return timed(runtime, OperationRequest("first use", 1024, depth=4), **stages)


COMPILED = {"compiled_first": 0.06, "compiled_steady": 4e-5}
FIRST = [
    first(NUMPY, process=0.05, **{"import": 0.1}, context=1e-4, first=3e-5, steady=5e-6),
    first(JAX, process=0.05, **{"import": 0.7}, context=0.01, first=0.1, steady=5e-5, **COMPILED),
]


def test_a_first_use_is_described_by_its_stages():
    text = view.first_sentence(FIRST)
    assert text.startswith("NumPy has its first result after 150\u202fms and JAX has its first result after 86")
    assert "81% of the latter is “import”." in text
    assert "takes 6 times as long with NumPy and 2,000 times as long with JAX." in text
    assert "JAX's compiled program pays for its compilation after 6,000 calls." in text
    assert "NumPy's" not in text
    assert view.first_sentence([]) == ""
    assert ": 67% of that is “import”." in view.first_sentence(FIRST[:1])
    for steady_s in (5e-5, 4e-5):
        jax = first(JAX, first=0.1, steady=4e-5, compiled_first=0.06, compiled_steady=steady_s)
        assert "JAX's compiled program is no quicker at this size." in view.first_sentence([jax])


def test_kernel_counts_are_in_the_sentence_and_the_chart():
    names = ("step/before/product", "step/before/elementwise", "step/after/product", "step/after/fusion")
    names += ("step/inside/fusion", "sine/before/elementwise", "sine/after/fusion")
    counts = {name: (float(n),) for name, n in zip(names, (5, 40, 5, 10, 9, 4, 1), strict=True)}
    counted = timed(JAX, OperationRequest("fusion", 32, depth=4), **counts)
    assert view.fusion_sentence([counted], 4) == (
        "On the CPU, XLA turns the step's 45 operations into 15 kernels: 5 of them are products, and the largest fusion"
        " has 9 operations. It turns 4 sines into 1."
    )
    assert view.fusion_sentence([], 4) == ""
    chart = view.fusion_chart([counted], {})
    rows = [row for data in chart.spec["datasets"].values() for row in data]
    totals = {row["label"]: row["text"] for row in rows if "label" in row and "text" in row}
    wanted = {"the step, before": "45", "the step, after": "15", "the sines, before": "4", "the sines, after": "1"}
    assert totals == wanted
    assert view.fusion_chart([], {}).height_px == chart.height_px


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
    assert view.overlap_sentence([lanes(*seconds)]) == (
        "NumPy: two stages overlap for 0% of a run in turn, and for 50% in 2 pieces; with pieces it is " + words + "."
    )
    assert view.overlap_sentence([]) == ""
