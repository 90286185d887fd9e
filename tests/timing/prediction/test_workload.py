"""What a step needs: against published counts, against the network's own, and properties of any network."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.model.spec import Network
from lib.timing.prediction.workload import OperationKind, Way, convolutional, fully_connected, resnet18

NETWORKS = st.lists(st.integers(1, 64), max_size=4).map(lambda widths: Network(tuple(widths)))
SIZES = st.integers(1, 512)


def n_bytes(work):
    return sum(one.n_bytes for one in work.operations)


def test_resnet_18_is_as_large_as_its_paper_says():
    """He et al. 2015, table 1: 1.8 billion multiply-adds forward; torchvision: 11.69 million parameters."""
    work = resnet18(1)
    products = [one for one in work.operations if one.kind is OperationKind.PRODUCT]
    layers = sum(one.kind is OperationKind.UPDATE for one in work.operations)
    forward = sum(one.flops for one in products[:layers]) / 2
    assert layers == 21, "17 convolutions, 3 of shortcuts, and one fully connected layer"
    assert forward == pytest.approx(1.8e9, rel=0.01)
    assert work.parameter_bytes / 4 == pytest.approx(11.69e6, rel=0.01)
    assert work.flops / 2 == pytest.approx(3 * forward - products[0].flops / 2), "images need no gradient"


def test_the_small_convolutional_network_counted_by_hand():
    work = convolutional(2)
    weights = (9 * 32, 9 * 32 * 64, 7 * 7 * 64 * 128, 128 * 10)
    positions = (28 * 28, 14 * 14, 1, 1)
    assert work.parameter_bytes == 4 * (sum(weights) + 128 + 10), "convolutions have no biases"
    each = [2 * 2 * size * places for size, places in zip(weights, positions, strict=True)]
    assert work.flops == 3 * sum(each) - each[0]


@given(NETWORKS, SIZES)
def test_a_fully_connected_step_needs_what_the_network_counts(network, batch_size):
    work = fully_connected(network, batch_size)
    assert work.flops == network.step_flops(batch_size)
    assert work.parameter_bytes == network.parameter_bytes
    assert work.activation_bytes == 4 * batch_size * sum(network.widths[1:])
    assert work.input_bytes == 4 * batch_size * 784


@given(NETWORKS, SIZES, st.integers(1, 16))
def test_networks_add_up_and_are_started_together(network, batch_size, networks):
    one, several = fully_connected(network, batch_size), fully_connected(network, batch_size, networks=networks)
    assert several.flops == networks * one.flops
    assert several.launches == one.launches
    assert several.working_bytes - one.working_bytes == (networks - 1) * (one.working_bytes - one.input_bytes)


@given(NETWORKS, SIZES)
def test_a_compiler_never_starts_more(network, batch_size):
    work = fully_connected(network, batch_size)
    by_way = {way: work.by(way).launches for way in Way}
    assert by_way[Way.WAITED] == by_way[Way.OPERATIONS] == sum(one.calls for one in work.operations)
    assert by_way[Way.STEP] == by_way[Way.EPOCH] == by_way[Way.GRAPH] <= by_way[Way.OPERATIONS]


def test_inputs_ask_for_the_first_layer_s_products_and_update_and_for_nothing_else():
    work = fully_connected(Network((64, 32)), 16)
    of_inputs = [one for one in work.operations if one.by_inputs]
    assert [one.kind for one in of_inputs] == [OperationKind.PRODUCT, OperationKind.PRODUCT, OperationKind.UPDATE]
    assert [one.flops for one in of_inputs] == [2 * 16 * 784 * 64] * 2 + [0]
    assert of_inputs[-1].n_bytes == 3 * 4 * 785 * 64


def test_images_lie_on_the_device_where_no_host_is_asked_for_every_step():
    here = {way for way in Way if fully_connected(Network(), 32, way).resident}
    assert here == {way for way in Way if resnet18(1).by(way).resident} == {Way.EPOCH, Way.GRAPH}
    assert fully_connected(Network(), 32, Way.STEP, resident=True).resident
    assert not convolutional(1, Way.EPOCH, resident=False).resident


def test_launches_of_the_articles_network_by_hand():
    """Compiled: five products, the loss, two updates; by call: 13 until the loss's gradient, 7 back, 8 of update."""
    work = fully_connected(Network(), 32)
    assert work.launches == 5 + 1 + 2
    assert work.by(Way.OPERATIONS).launches == 13 + 7 + 8
