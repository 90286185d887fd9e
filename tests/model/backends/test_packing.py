from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.model.backends.packing import VACANT, Shape, arrange, chunks, stacks, waste
from lib.model.spec import Network, Training

hidden_layers = st.lists(st.integers(1, 12), max_size=3).map(tuple)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.integers(1, 8))
def test_every_training_is_placed_once(seeds, n_devices):
    grid = arrange(seeds, n_devices)
    found = [index for row in grid.places for index in row if index != VACANT]
    assert sorted(found) == list(range(len(seeds)))
    assert len({len(row) for row in grid.places}) == 1
    divided = len(grid.places) if grid.split_rows else len(grid.places[0])
    assert divided % n_devices == 0
    for row in grid.places:
        assert len({seeds[index] for index in row if index != VACANT}) <= 1, "a row has one order of batches"
    assert grid.n_places <= (len(seeds) + n_devices) / (1 - 0.25) + n_devices * len(set(seeds))


@given(st.lists(hidden_layers, min_size=1, max_size=20), st.sampled_from([0.0, 0.2, 0.4, 1.0]))
def test_padding_stays_below_its_limit(networks, most):
    trainings = [Training(Network(hidden), 0.1, size) for hidden in networks for size in (16, 32)]
    groups = stacks(trainings, most)
    assert Counter(training for group in groups for training in group) == Counter(trainings)
    for group in groups:
        assert len({training.batch_size for training in group}) == 1
        assert waste([training.network for training in group]) <= most
    if most == 0.0:
        shapes = {(training.network, training.batch_size) for training in trainings}
        assert len(groups) == len(shapes)


def test_waste_is_the_share_of_padded_operations():
    one, two = Network((100,)), Network((50, 20))
    useful = one.step_flops(1) + two.step_flops(1)
    padded = 2 * Shape.of([one, two]).step_flops
    assert Shape.of([one]).step_flops == one.step_flops(1)
    assert Shape.of([two]).step_flops == two.step_flops(1)
    assert Shape.of([Network(())]).step_flops == Network(()).step_flops(1)
    assert waste([one, two]) == pytest.approx(1 - useful / padded)
    assert Shape.of([one, two]).n_parameters == 784 * 100 + 100 + 100 * 20 + 20 + 10 * (100 + 20) + 10


def test_parts_fit_into_memory_and_caches():
    everything = tuple(Training(Network((128,)), 0.1, 32, seed=seed) for seed in range(1000))
    by_cache = chunks(everything, memory_bytes=1e12, cache_bytes=4 * 2**20, n_devices=2)
    assert tuple(training for part in by_cache for training in part) == everything
    assert max(map(len, by_cache)) <= 20
    by_memory = chunks(everything, memory_bytes=10e6, cache_bytes=1e12, n_devices=1)
    place_bytes = Shape.of([Network((128,))]).place_bytes(32)
    assert max(map(len, by_memory)) * place_bytes <= 10e6
    with pytest.raises(MemoryError, match="choose a smaller one"):
        chunks(everything, memory_bytes=1e6, cache_bytes=1e12, n_devices=1)
