"""Transfers as a reader sees them: from literal points, each sentence only what they show."""

import pytest

from lib.backends.registry import Runtime
from lib.experiments.single_operations import transfer_costs
from lib.profiling.request import Operation
from lib.timing.latency import Cost
from lib.views import transfers as view
from lib.views.single_operations import seconds_chart
from tests.views.test_single_operations import timed

JAX = Runtime()


def transfer(runtime, size, **ways):
    return timed(runtime, Operation("transfer", size), lambda _: float(size), **ways)


TRANSFERS = [transfer(JAX, 4**k, copied=1e-5 + 4**k / 1e9, aliased=1e-5 * (1 + 0.01 * (-1) ** k)) for k in range(1, 13)]


def test_a_transfer_is_a_latency_and_a_bandwidth_with_intervals():
    costs = transfer_costs(TRANSFERS)
    text = view.transfer_sentence(TRANSFERS, "JAX", costs)
    assert "JAX, copied: 10\u202fμs (10\u202fμs to 10\u202fμs) + size ÷ 1 GB/s (1 to 1)." in text
    assert "JAX, aliased: 10\u202fμs (9.9\u202fμs to 10\u202fμs) at any size." in text
    assert "Below 9.77 KiB, most of a copy's time is the call" in text
    assert "At 16 MiB a copy takes 1,700 times as long as an alias." in text
    assert view.transfer_sentence(TRANSFERS[:2], "JAX", transfer_costs(TRANSFERS[:2])) == ""


def test_a_latency_that_the_fit_puts_below_nothing_is_nothing():
    """A copy within a cache is no line: it may begin below 0, and no transfer takes less than that."""
    below = Cost(-2e-6, (-3e-6, -1e-6), 1e-9, (0.9e-9, 1.1e-9))
    text = view.transfer_sentence(TRANSFERS, "JAX", {"copied": below})
    assert text.startswith("JAX, copied: 0\u202fμs (0\u202fμs to 0\u202fμs) + size ÷ 1 GB/s (0.91 to 1.1).")
    assert "Below" not in text


def test_the_fit_is_drawn_beside_what_was_measured():
    costs = transfer_costs(TRANSFERS)
    lines = view.transfer_lines(TRANSFERS, "JAX")
    assert [line.label for line in lines] == ["copied", "aliased"], "there is nothing pinned on a processor"
    chart = seconds_chart(lines, 4**12, "s", ["copied"], "bytes", [*costs.values()])
    curves = [row for data in chart.spec["datasets"].values() for row in data if "curve" in row]
    assert {row["curve"] for row in curves} == {0, 1}
    assert max(row["y"] for row in curves) == pytest.approx(4**12 / 1e9, rel=0.01)


def test_what_the_article_calculated_is_not_called_measured():
    text = view.transfers_published("JAX", transfer_costs(TRANSFERS))
    assert "3.1\u202fμs at 32 GB/s; the setup takes 10 to 20 times that" in text
    assert "calculated there and not measured" in text
    assert "100\u202fμs; the call takes 0.1 times that (JAX, predicted by the fit)" in text
    assert "not measured yet" in view.transfers_published("JAX", {})
    flat = Cost(1e-5, (9e-6, 1.1e-5), 0.0, (-1e-12, 1e-12))
    assert "more bytes take no more time" in view.transfers_published("JAX", {"copied": flat})
