"""What XLA makes of a step, as far as claims are judged by it."""

import re

import numpy as np
import pytest

from lib.model.spec import Network
from lib.timing.prediction import workload
from lib.timing.prediction.remedies import RESIDENT, Remedy
from lib.timing.profiling.harness import Repeated, Subject
from lib.timing.profiling.operations import KERNELS, measure_operations
from lib.timing.profiling.request import CONVOLUTIONAL, FROM_HOST, PLAIN_STEP, TAKEN, VARIED, Examination
from lib.timing.profiling.run import examine


@pytest.mark.slow
def test_the_compiled_step_is_not_one_kernel(small_data):
    """What a claim of `lib.labs.claims` is judged by:

    XLA leaves the products alone and fuses what is between them.
    """
    import jax

    from lib.model.backends.with_jax import packed, sgd_step
    from lib.timing.profiling.with_jax import kernels_of_step

    subject = Subject(Network((128,)), 32, small_data, "cpu")
    text = (
        jax.jit(sgd_step).lower(packed(subject.parameters), *subject.batch, np.float32(0.1)).compile().as_text() or ""
    )
    assert len(re.findall(r" dot\(", text)) == 5, "two forward, three backward: each stays a product of its own"
    assert 5 + 10 < kernels_of_step(subject) < 100
    rows = {row[0]: row[1] for row in measure_operations("jax", subject) if row}
    assert rows[KERNELS].median_s == kernels_of_step(subject)


@pytest.mark.slow
def test_a_batch_is_taken_from_the_host_and_from_the_device_at_every_size_that_the_data_have(small_data):
    rows = [row for row in examine("jax-step", "cpu", Examination("takings"), small_data) if row]
    sizes = [size for size in TAKEN if size <= 640]
    expected = {f"{where} {size}" for where in (FROM_HOST, RESIDENT) for size in sizes}
    changed = (PLAIN_STEP, Remedy.DONATED.variant)
    expected |= {f"{name} {size}" for name in changed for size in VARIED if size <= 640}
    assert {name for name, _, _ in rows} == expected
    assert all(min(measured.step_s) > 0 for _, measured, _ in rows)


@pytest.mark.slow
def test_a_step_whose_batches_lie_on_the_device_trains_on_all_of_them_in_turn(small_data):
    from lib.timing.profiling.with_jax import varied

    subject = Subject(Network((4,)), 64, small_data, "cpu")
    experiment = varied("jax-step", subject, RESIDENT)
    assert isinstance(experiment, Repeated)
    losses = [float(experiment.call()) for _ in range(11)]  # type: ignore[arg-type]
    assert len(set(losses[:10])) == 10, "ten batches, each with a loss of its own"
    assert losses[10] == pytest.approx(losses[0], rel=1e-3), "the first batch again; next to nothing was learned"
    rows = [row for row in examine("jax-step", "cpu", Examination(RESIDENT, Network((4,)), 64), small_data) if row]
    assert [name for name, _, _ in rows] == [RESIDENT]


@pytest.mark.slow
def test_the_convolutional_network_is_the_one_that_is_predicted():
    """Its logits are those of sums written out in float64, and its size and arithmetic what `convolutional` counts."""
    import jax

    from lib.timing.profiling import convolutional

    (first, second), layers = parameters = convolutional.initial()
    counted = workload.convolutional(2)
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(parameters)) == counted.parameter_bytes
    x = np.random.default_rng(1).random((2, 784), np.float32)
    found = np.asarray(convolutional.logits_of(parameters, x))
    images = x.reshape(2, 28, 28, 1).astype(np.float64)
    for kernel in (first, second):
        images = pooled(np.maximum(convolved(images, kernel.astype(np.float64)), 0))
    (hidden, hidden_biases), (weights, biases) = layers
    expected = np.maximum(images.reshape(2, -1) @ hidden.T + hidden_biases, 0) @ weights.T + biases
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    analysis = jax.jit(convolutional.logits_of).lower(parameters, x).compile().cost_analysis()
    assert analysis is not None
    # Forward is a third of the products, but for the gradient of the images, which nobody needs.
    forward = sum(one.flops for one in counted.operations if one.kind is workload.OperationKind.PRODUCT) / 3
    assert analysis["flops"] == pytest.approx(forward, rel=0.1)


def convolved(images, kernel):
    """(n, side, side, channels) by (3, 3, channels, filters), with a border of zeros."""
    side = images.shape[1]
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return sum(
        padded[:, row : row + side, column : column + side] @ kernel[row, column]
        for row in range(3)
        for column in range(3)
    )


def pooled(images):
    corners = [images[:, row::2, column::2] for row in (0, 1) for column in (0, 1)]
    return np.maximum.reduce(corners)


@pytest.mark.slow
def test_a_step_of_the_convolutional_network_learns(small_data):
    import jax

    from lib.model.backends.with_jax import sgd_step
    from lib.timing.profiling import convolutional

    x, y = small_data.x_train[:64], small_data.y_train[:64]
    step = jax.jit(lambda p: sgd_step(p, x, y, np.float32(0.05), convolutional.logits_of))
    parameters, losses = convolutional.initial(), []
    for _ in range(20):
        parameters, loss = step(parameters)
        losses.append(float(loss))
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.slow
def test_what_compiles_the_convolutional_step_is_a_row_of_its_own(small_data):
    rows = filter(None, examine("jax-epoch", "cpu", Examination(CONVOLUTIONAL, Network((16,)), 2), small_data))
    found = {name: measured.median_s for name, measured, _ in rows}
    assert list(found) == ["convolutional", "convolutional/first call"]
    assert found["convolutional/first call"] > 10 * found["convolutional"]
