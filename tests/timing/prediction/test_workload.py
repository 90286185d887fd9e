import json
import math
from dataclasses import replace
from datetime import date

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.model.spec import Network
from lib.timing.prediction.workload import (
    FILE,
    Ceiling,
    Ceilings,
    NoPrediction,
    OperationKind,
    Way,
    convolutional,
    cost_of,
    fully_connected,
    read_devices,
    resnet18,
    step_floors,
)
from tests.timing.prediction.invented import FIGURES, device, workload

NETWORKS = st.lists(st.integers(1, 64), max_size=4).map(lambda widths: Network(tuple(widths)))
SIZES = st.integers(1, 512)


def test_resnet_18_has_the_size_of_its_paper():
    work = resnet18(1)
    products = [one for one in work.operations if one.kind is OperationKind.PRODUCT]
    layers = sum(one.kind is OperationKind.UPDATE for one in work.operations)
    forward = sum(one.flops for one in products[:layers]) / 2
    assert layers == 21, "17 convolutions, 3 of shortcuts, and one fully connected layer"
    assert forward == pytest.approx(1.8e9, rel=0.01)
    assert work.parameter_bytes / 4 == pytest.approx(11.69e6, rel=0.01)
    assert work.flops / 2 == pytest.approx(3 * forward - products[0].flops / 2), "images need no gradient"


def test_the_small_convolutional_network_matches_a_hand_count():
    work = convolutional(2)
    weights = (9 * 32, 9 * 32 * 64, 7 * 7 * 64 * 128, 128 * 10)
    positions = (28 * 28, 14 * 14, 1, 1)
    assert work.parameter_bytes == 4 * (sum(weights) + 128 + 10), "convolutions have no biases"
    each = [2 * 2 * size * places for size, places in zip(weights, positions, strict=True)]
    assert work.flops == 3 * sum(each) - each[0]


@given(NETWORKS, SIZES)
def test_a_fully_connected_step_matches_the_counts_of_its_network(network, batch_size):
    work = fully_connected(network, batch_size)
    assert work.flops == network.step_flops(batch_size)
    assert work.parameter_bytes == network.parameter_bytes
    assert work.activation_bytes == 4 * batch_size * sum(network.widths[1:])
    assert work.input_bytes == 4 * batch_size * 784


@given(NETWORKS, SIZES, st.integers(1, 16))
def test_several_networks_multiply_the_work_but_not_the_launches(network, batch_size, networks):
    one, several = fully_connected(network, batch_size), fully_connected(network, batch_size, networks=networks)
    assert several.flops == networks * one.flops
    assert several.launches == one.launches
    assert several.working_bytes - one.working_bytes == (networks - 1) * (one.working_bytes - one.input_bytes)


@given(NETWORKS, SIZES)
def test_a_compiler_never_launches_more(network, batch_size):
    work = fully_connected(network, batch_size)
    by_way = {way: work.by(way).launches for way in Way}
    assert by_way[Way.WAITED] == by_way[Way.OPERATIONS] == sum(one.calls for one in work.operations)
    assert by_way[Way.STEP] == by_way[Way.EPOCH] == by_way[Way.GRAPH] <= by_way[Way.OPERATIONS]


def test_only_the_first_layers_work_depends_on_the_inputs():
    work = fully_connected(Network((64, 32)), 16)
    of_inputs = [one for one in work.operations if one.by_inputs]
    assert [one.kind for one in of_inputs] == [OperationKind.PRODUCT, OperationKind.PRODUCT, OperationKind.UPDATE]
    assert [one.flops for one in of_inputs] == [2 * 16 * 784 * 64] * 2 + [0]
    assert of_inputs[-1].n_bytes == 3 * 4 * 785 * 64


def test_images_are_resident_where_the_host_is_not_called_each_step():
    here = {way for way in Way if fully_connected(Network(), 32, way).resident}
    assert here == {way for way in Way if resnet18(1).by(way).resident} == {Way.EPOCH, Way.GRAPH}
    assert fully_connected(Network(), 32, Way.STEP, resident=True).resident
    assert not fully_connected(Network(), 1, Way.EPOCH, resident=False).resident


def test_launches_of_the_articles_network_match_a_hand_count():
    work = fully_connected(Network(), 32)
    assert work.launches == 5 + 1 + 2
    assert work.by(Way.OPERATIONS).launches == 13 + 7 + 8


PEAKS = {  # of the cards: FLOP/s are cores × 2 × clock, and byte/s are width of the bus × its rate
    "quadro-rtx-5000": (3072 * 2 * 1.815e9, 256 / 8 * 14e9),
    "l4": (7424 * 2 * 2.04e9, 192 / 8 * 12.5e9),
    "a100-pcie-40gb": (6912 * 2 * 1.41e9, 5120 / 8 * 2.43e9),
    "t4": (2560 * 2 * 1.59e9, 256 / 8 * 10e9),
    "h100-pcie": (14592 * 2 * 1.755e9, 5120 / 8 * 3.2e9),
    "h100-sxm": (16896 * 2 * 1.98e9, 5120 / 8 * 5.2e9),
    "h200-sxm": (16896 * 2 * 1.98e9, 6144 / 8 * 6.25e9),
}


@pytest.mark.parametrize("key", PEAKS)
def test_peaks_are_cores_times_clock_and_bus_times_rate(key):
    figures, (flops_per_s, memory_bytes_per_s) = read_devices()[key].figures, PEAKS[key]
    assert figures["product_flops_per_s"].value == pytest.approx(flops_per_s, rel=0.02)
    assert figures["memory_bytes_per_s"].value == pytest.approx(memory_bytes_per_s, rel=0.03)


@pytest.mark.parametrize("row", json.loads(FILE.read_text())["devices"], ids=lambda row: row["key"])
def test_every_preset_has_a_source_for_each_figure_and_wide_assumptions(row):
    figures, one = row["figures"], read_devices()[row["key"]]
    assert figures.keys() - {"price_per_h", "example_s"} == FIGURES.keys()
    assert one.on_gpu == (row["key"] in PEAKS)
    assert row["remarks"]
    assert bool(one.dated) == ("price_per_h" in figures), "a price is dated"
    assert not one.dated or date.fromisoformat(one.dated), "to the day"
    for name, each in figures.items():
        assert len(each["source"]) > 10
        assert each["origin"] in ("published", "data sheet", "assumed"), "no measurement"
        if each["origin"] == "assumed":
            assert each["low"] == 0 or each["high"] / each["low"] >= 2, f"{name}: a guess is not that sure"
    cache, memory = one.figures["cache_bytes_per_s"], one.figures["memory_bytes_per_s"]
    assert (cache.low, cache.value, cache.high) >= (memory.low, memory.value, memory.high)
    assert one.figures["host_call_s"].high < 0.1 > one.figures["dispatch_s"].high, "in seconds"


def test_steps_beyond_the_memory_are_refused():
    device().check(workload(parameter_bytes=499_000_000))
    too_large = r"an invented layer: expected a step of at most the 1 GB of an invented card, got .* 1.2"
    with pytest.raises(NoPrediction, match=too_large):
        device().check(workload(parameter_bytes=600_000_000))
    with pytest.raises(NoPrediction, match="batch size 4,096 and 64 at once; choose a smaller batch"):
        read_devices()["l4"].check(replace(resnet18(4_096), networks=64))


MACHINE = Ceilings(400e9, 20e9, {"jax-step": 50e-6}, cache_bytes=32 * 2**20)


@pytest.mark.parametrize("size", [1, 32])
def test_the_articles_step_matches_a_hand_calculation(size):
    floors_s = step_floors(Network((128,)), size, Ceilings(1.0, 1.0))
    assert floors_s[Ceiling.PRODUCT] == 2 * size * (2 * 784 * 128 + 3 * 128 * 10)
    assert floors_s[Ceiling.COPY] == 4 * 784 * size + 2 * 4 * (784 * 128 + 128 + 128 * 10 + 10)


def test_parameters_that_fit_the_cache_cost_no_memory_traffic():
    small, large = Network((128,)), Network((4096, 4096))
    needed = [step_floors(one, 32, replace(MACHINE, copy_bytes_per_s=1.0))[Ceiling.COPY] for one in (small, large)]
    assert needed == [4 * 784 * 32, 4 * 784 * 32 + 2 * (large.parameter_bytes - 32 * 2**20)]


@pytest.mark.parametrize(
    ("network", "batch_size", "backend", "calls", "by"),
    [
        (Network((128,)), 32, "jax-step", 1.0, Ceiling.DISPATCH),
        (Network((128,)), 32, "jax-step", 1 / 1500, Ceiling.PRODUCT),
        (Network((128,)), 4096, "jax-step", 1.0, Ceiling.PRODUCT),
        (Network(()), 512, "", 1.0, Ceiling.COPY),
    ],
)
def test_the_floor_is_set_by_the_slowest_ceiling(network, batch_size, backend, calls, by):
    floors_s = step_floors(network, batch_size, MACHINE, backend, calls)
    assert floors_s[by] == max(floors_s.values())


@given(st.lists(st.integers(1, 4096), max_size=4), st.integers(1, 4096), st.floats(1e9, 1e14), st.floats(1e9, 1e13))
def test_a_floor_rises_with_the_batch_and_falls_with_the_machine(hidden, batch_size, product, copy):
    network, ceilings = Network(tuple(hidden)), Ceilings(product, copy)
    here, more, quicker = (
        max(step_floors(network, size, ceilings).values())
        for size, ceilings in (
            (batch_size, ceilings),
            (batch_size + 1, ceilings),
            (batch_size, Ceilings(2 * product, 2 * copy)),
        )
    )
    assert more > here > 0
    assert quicker == pytest.approx(here / 2)


SIZES_BYTES = [4.0**k for k in range(1, 15)]


@given(st.floats(1e-7, 1e-2), st.floats(1e6, 1e12))
def test_the_fit_recovers_latency_and_bandwidth(latency_s, bytes_per_s):
    cost = cost_of(SIZES_BYTES, [latency_s + n / bytes_per_s for n in SIZES_BYTES])
    assert cost is not None
    assert cost.seconds(SIZES_BYTES[0]) == pytest.approx(latency_s + SIZES_BYTES[0] / bytes_per_s, rel=1e-6)
    assert cost.seconds(SIZES_BYTES[-1]) == pytest.approx(latency_s + SIZES_BYTES[-1] / bytes_per_s, rel=1e-6)


def test_intervals_of_a_fit_have_the_stated_coverage():
    rng, held = np.random.default_rng(0), np.zeros(2)
    for _ in range(400):
        times = [(1e-5 + n / 1e9) * (1 + 0.03 * rng.standard_normal()) for n in SIZES_BYTES]
        cost = cost_of(SIZES_BYTES, times)
        assert cost is not None
        intervals = (cost.latency_interval_s, 1e-5), (cost.bandwidth_interval, 1e9)
        held += [low <= truth <= high for (low, high), truth in intervals]
    assert (held / 400 > 0.9).all()
    assert (held / 400 < 0.99).all()


def test_constant_times_have_no_bandwidth():
    flat = cost_of(SIZES_BYTES, [1e-6 * (1 + 0.01 * (-1) ** k) for k in range(len(SIZES_BYTES))])
    assert flat is not None
    assert not flat.grows
    assert flat.bandwidth_interval[1] == math.inf
    steep = cost_of(SIZES_BYTES, [1e-6 + n / 1e9 for n in SIZES_BYTES])
    assert steep is not None
    assert steep.grows
    assert steep.half_bytes == pytest.approx(1000, rel=1e-3)


def test_too_few_sizes_have_no_fit():
    assert cost_of([4, 16], [1.0, 2.0]) is None
