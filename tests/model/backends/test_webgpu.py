import re
from itertools import pairwise

import numpy as np
import pytest

from lib.model.backends import webgpu
from lib.model.backends.webgpu import (
    FIELDS,
    HERE,
    KERNELS,
    MAX_EPOCHS,
    MAX_GROUPS,
    MAX_STARTS,
    evaluation,
    first_images,
    sources,
    step,
)
from lib.model.data.mnist import batch_starts
from lib.model.spec import MAX_HIDDEN_LAYERS, MAX_WIDTH, Network, Training

WGSL = "\n".join(file.read_text() for file in sorted(HERE.glob("*.wgsl")))
NETWORKS = [Network(()), Network((1,)), Network((128,)), Network((32, 16, 8))]


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.label)
@pytest.mark.parametrize("batch_size", [1, 33])
def test_memory_regions_do_not_overlap(network, batch_size):
    for program in (step(network, batch_size), evaluation(network, batch_size)):
        places = sorted((first, rows * columns) for first, (rows, columns) in program.regions.values())
        assert all(first + size <= after for (first, size), (after, _) in pairwise(places))
        assert 4 * sum(places[-1]) <= program.memory_bytes
        assert all(first % webgpu.ALIGNMENT == 0 for first, _ in places)


def test_step_and_evaluation_share_the_layout_of_parameters():
    training, other = step(Network((32, 16)), 7), evaluation(Network((32, 16)), 2_000)
    assert training.parameter_bytes == other.parameter_bytes
    for name in ("rate", "layer 1", "layer 2", "layer 3"):
        assert training.regions[name] == other.regions[name]


@pytest.mark.parametrize("batch_size", [1, 48_000])
def test_no_dispatch_has_more_workgroups_than_every_adapter_allows(batch_size):
    program = step(Network((MAX_WIDTH,) * MAX_HIDDEN_LAYERS), batch_size)
    assert all(1 <= one.groups <= MAX_GROUPS for one in program.operations)
    assert all(word < 2**32 for one in program.operations for word in one.words)


def test_constants_and_kernel_numbers_match_the_shaders():
    struct = re.search(r"struct Operation \{(.*?)\n\}", WGSL, re.DOTALL)
    assert struct is not None
    assert re.findall(r"(\w+): u32", struct[1]) == list(FIELDS)
    numbers = dict(re.findall(r"const (\w+) = (\w+?)u?;", WGSL))
    for name in ("LANES", "TILE", "DEPTH", "NOTHING", "STORE", "RELU", "RELU_GRADIENT", "DESCEND"):
        assert int(numbers[name], 0) == getattr(webgpu, name), name
    entries = re.findall(r"fn (\w+)\(\s*@builtin", sources()["dispatched"])
    assert tuple(entries) == KERNELS
    called = {name: re.search(rf"fn {name}\([^{{]*\{{\s*(\w+)\(", sources()["dispatched"]) for name in KERNELS}
    by_number = re.findall(r"(?:case \d+u|default): \{ (\w+)\(", sources()["whole_steps"])
    assert by_number == [found[1] for found in called.values() if found is not None]


def test_empty_operations_are_dispatched():
    program = webgpu.nothing(7)
    assert [one.groups for one in program.operations] == [1] * 7
    assert all(one.words[FIELDS.index("rows")] == 0 for one in program.operations)
    assert program.memory_bytes == 0


@pytest.mark.parametrize(("n_images", "size", "seed"), [(640, 32, 0), (1_000, 7, 3), (48_000, 4_096, 1)])
def test_each_epoch_has_its_own_order_of_batches(n_images, size, seed):
    found = first_images(Training(Network((8,)), 0.1, size, 1, seed), n_images)
    steps = n_images // size
    n_epochs = min(MAX_EPOCHS, MAX_STARTS // steps)
    expected = [batch_starts(n_images, size, seed, epoch) for epoch in range(n_epochs)]
    np.testing.assert_array_equal(found, np.concatenate(expected))
    assert not np.array_equal(found[:steps], found[steps : 2 * steps])


def test_only_the_start_of_a_long_epoch_is_sent():
    found = first_images(Training(Network((8,)), 0.1, 1, 1), 48_000)
    np.testing.assert_array_equal(found, batch_starts(48_000, 1, 0, 0)[:MAX_STARTS])
