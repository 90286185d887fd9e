"""What XLA makes of a step, as far as claims are judged by it."""

import re

import numpy as np
import pytest

from lib.profiling.harness import Repeated, Subject
from lib.profiling.operations import KERNELS, measure_operations
from lib.profiling.request import FROM_HOST, RESIDENT, TAKEN, Examination
from lib.profiling.run import examine
from lib.spec import Network


def test_the_compiled_step_is_not_one_kernel(small_data):
    """What a claim of `lib.experiments.claims` is judged by:

    XLA leaves the products alone and fuses what is between them.
    """
    import jax

    from lib.backends.with_jax import packed, sgd_step
    from lib.profiling.with_jax import kernels_of_step

    subject = Subject(Network((128,)), 32, small_data, "cpu")
    text = (
        jax.jit(sgd_step).lower(packed(subject.parameters), *subject.batch, np.float32(0.1)).compile().as_text() or ""
    )
    assert len(re.findall(r" dot\(", text)) == 5, "two forward, three backward: each stays a product of its own"
    assert 5 + 10 < kernels_of_step(subject) < 100
    rows = {name: measured for name, measured, _ in measure_operations("jax", subject)}
    assert rows[KERNELS].median_s == kernels_of_step(subject)


def test_a_batch_is_taken_from_the_host_and_from_the_device_at_every_size_that_the_data_have(small_data):
    rows = [row for row in examine("jax-step", "cpu", Examination("takings"), small_data) if row]
    sizes = [size for size in TAKEN if size <= 640]
    assert {name for name, _, _ in rows} == {f"{where} {size}" for where in (FROM_HOST, RESIDENT) for size in sizes}
    assert all(min(measured.step_s) > 0 for _, measured, _ in rows)


def test_a_step_whose_batches_lie_on_the_device_trains_on_all_of_them_in_turn(small_data):
    from lib.profiling.with_jax import resident_step

    subject = Subject(Network((4,)), 64, small_data, "cpu")
    (experiment,) = resident_step(subject).values()
    assert isinstance(experiment, Repeated)
    losses = [float(experiment.call()) for _ in range(11)]  # type: ignore[arg-type]
    assert len(set(losses[:10])) == 10, "ten batches, each with a loss of its own"
    assert losses[10] == pytest.approx(losses[0], rel=1e-3), "the first batch again; next to nothing was learned"
    rows = [row for row in examine("jax-step", "cpu", Examination(RESIDENT, Network((4,)), 64), small_data) if row]
    assert [name for name, _, _ in rows] == [RESIDENT]
