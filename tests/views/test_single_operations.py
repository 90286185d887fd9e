"""Single operations as a reader sees them: from literal points, each sentence only what they show."""

import pytest

from lib.backends.registry import Runtime
from lib.experiments.single_operations import OperationPoint, OperationTask
from lib.profiling.request import MOVED, RETURNED, WAITED, Operation
from lib.storage.records import Kind, Record
from lib.timing.measurement import Ended, Measurement
from lib.views import single_operations as view

NUMPY, JAX, CARD = Runtime("numpy"), Runtime(), Runtime(device="gpu")


def timed(runtime, operation, work, spread=0.001, **ways):
    """A point whose ways took these seconds; `work` gives that of a way."""
    task = OperationTask(runtime, operation)

    def record(way, seconds):
        blocks = tuple(seconds * (1 + spread * (k % 5)) for k in range(9))
        subject = task.subject | {"name": way, "work": work(way)}
        return Record.of(Kind.OPERATION, subject, Measurement(blocks, 1, Ended.CAP))

    return OperationPoint(task, {way: record(way, seconds) for way, seconds in ways.items()})


def product(runtime, size, spread=0.001, **ways):
    return timed(runtime, Operation("product", size), lambda _: 2.0 * size**3, spread, **ways)


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


@pytest.mark.parametrize(("peak", "words"), [(214e9, "100 %"), (85e9, "250 %"), (1e12, "21 %")])
def test_shares_of_the_peak_are_written_out(peak, words):
    assert f"{words} of the float32 peak" in view.product_sentence(POINTS, "JAX", {"cpu": peak})


def test_what_cannot_be_told_apart_is_not_called_faster():
    alike = [product(NUMPY, 64, waited=1e-5), product(JAX, 64, waited=1e-5, moved=1e-5, returned=1e-5)]
    text = view.product_sentence(alike, "JAX", {})
    assert "not told apart from it: " in text
    assert "JAX is not certainly faster than NumPy at the largest n." in text
    assert "hides nothing that can be told here" in text
    assert "peak" not in text


def test_a_card_is_held_against_numpy_with_and_without_the_transfer():
    card = [product(CARD, 64, waited=2e-6, moved=1e-4, returned=1e-6), product(CARD, 1024, waited=1e-4, moved=1e-3)]
    text = view.product_sentence([*POINTS, *card], "JAX, GPU", {})
    assert (
        "JAX, GPU is faster than NumPy with the transfer from n = 1,024 on and without the transfer from n = 64 on."
        in text
    )
    dear = [product(CARD, size, waited=2e-6, moved=1.0) for size in (64, 1024)]
    text = view.product_sentence([*POINTS, *dear], "JAX, GPU", {})
    assert "NumPy without the transfer from n = 64 on, and with the transfer not certainly at the largest n." in text
    slow = [product(CARD, size, waited=1.0, moved=1.0) for size in (64, 1024)]
    text = view.product_sentence([*POINTS, *slow], "JAX, GPU", {})
    assert "JAX, GPU is not certainly faster than NumPy at the largest n, with or without the transfer." in text


def test_hollow_points_stand_where_they_are_predicted():
    refused = OperationPoint(OperationTask(NUMPY, Operation("product", 4096)), why_not="it needs 9 GB", predicted_s=2.0)
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
    assert "NumPy has one memory" in view.products_published(POINTS, "NumPy")
