"""What XLA makes of a step, as far as claims are judged by it."""

import re

import numpy as np

from lib.profiling.harness import Subject
from lib.profiling.operations import KERNELS, measure_operations
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
