"""What XLA compiles a step into, where claims depend on it, and the small convolutional network."""

from collections import Counter
from typing import Any

import jax
import numpy as np
import pytest

from lib.model.backends.with_jax import sgd_step
from lib.model.spec import Network
from lib.timing.prediction import workload
from lib.timing.prediction.remedies import RESIDENT, Remedy
from lib.timing.profiling import with_jax
from lib.timing.profiling.harness import Subject
from lib.timing.profiling.operations import KERNELS, measure_operations
from lib.timing.profiling.request import CONVOLUTIONAL, FROM_HOST, PLAIN_STEP, TAKEN, VARIED, Examination
from lib.timing.profiling.run import examine
from lib.timing.profiling.with_jax import fusion_counts, kernels, largest_fusion, operations


@pytest.mark.slow
def test_the_compiled_step_is_not_one_kernel(small_data):
    rows = measure_operations("jax", Subject(Network((128,)), 32, small_data, "cpu"))
    (n_kernels,) = (measured.median_s for name, measured, _ in filter(None, rows) if name == KERNELS)
    assert 5 + 10 < n_kernels < 100, "two products forward and three backward, and more"


@pytest.mark.slow
def test_batches_are_taken_from_host_and_device_at_every_size(small_data):
    rows = [row for row in examine("jax-step", "cpu", Examination("takings"), small_data) if row]
    sizes = [size for size in TAKEN if size <= 640]
    expected = {f"{where} {size}" for where in (FROM_HOST, RESIDENT) for size in sizes}
    changed = (PLAIN_STEP, Remedy.DONATED.variant)
    expected |= {f"{name} {size}" for name in changed for size in VARIED if size <= 640}
    assert {name for name, _, _ in rows} == expected
    assert all(min(measured.step_s) > 0 for _, measured, _ in rows)


@pytest.mark.slow
def test_a_step_with_resident_batches_trains_on_all_in_turn(small_data, monkeypatch):
    subject = Subject(Network((4,)), 64, small_data, "cpu")
    with monkeypatch.context() as patch:
        patch.setattr(with_jax, "repeated", lambda call, *_, **__: call)
        step: Any = with_jax.varied("jax-step", subject, RESIDENT)
    losses = [float(step()) for _ in range(11)]
    assert len(set(losses[:10])) == 10, "ten batches, each with a loss of its own"
    assert losses[10] == pytest.approx(losses[0], rel=1e-3), "the first batch again; next to nothing was learned"
    rows = [row for row in examine("jax-step", "cpu", Examination(RESIDENT, Network((4,)), 64), small_data) if row]
    assert [name for name, _, _ in rows] == [RESIDENT]


@pytest.mark.slow
def test_the_convolutional_network_matches_its_predicted_workload():
    parameters, counted = with_jax.convolutional_parameters(), workload.convolutional(2)
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(parameters)) == counted.parameter_bytes
    x = np.random.default_rng(1).random((2, 784), np.float32)
    analysis = jax.jit(with_jax.convolutional_logits).lower(parameters, x).compile().cost_analysis()
    assert analysis is not None
    # Nearly a third of all products: the first layer computes no gradient of its inputs.
    forward = sum(one.flops for one in counted.operations if one.kind is workload.OperationKind.PRODUCT) / 3
    assert analysis["flops"] == pytest.approx(forward, rel=0.1)


@pytest.mark.slow
def test_a_step_of_the_convolutional_network_learns(small_data):
    x, y = small_data.x_train[:64], small_data.y_train[:64]
    step = jax.jit(lambda p: sgd_step(p, x, y, np.float32(0.05), with_jax.convolutional_logits))
    parameters, losses = with_jax.convolutional_parameters(), []
    for _ in range(20):
        parameters, loss = step(parameters)
        losses.append(float(loss))
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.slow
def test_the_first_convolutional_call_is_a_separate_row(small_data):
    rows = filter(None, examine("jax-epoch", "cpu", Examination(CONVOLUTIONAL, Network((16,)), 2), small_data))
    found = {name: measured.median_s for name, measured, _ in rows}
    assert list(found) == ["convolutional", "convolutional/first call"]
    assert found["convolutional/first call"] > 10 * found["convolutional"]


BEFORE = """HloModule jit_f, entry_computation_layout={(f32[4]{0})->f32[4]{0}}

relu.1 {
  Arg_0.1 = f32[4]{0} parameter(0)
  constant.1 = f32[] constant(0)
  zeros.1 = f32[4]{0} broadcast(constant.1), dimensions={}
  ROOT max.1 = f32[4]{0} maximum(Arg_0.1, zeros.1)
}

add.2 {
  a.2 = f32[] parameter(0)
  b.2 = f32[] parameter(1)
  ROOT sum.2 = f32[] add(a.2, b.2)
}

ENTRY main.3 {
  x.3 = f32[4]{0} parameter(0)
  product.3 = f32[4]{0} dot(x.3, x.3), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  one.3 = f32[4]{0} call(product.3), to_apply=relu.1
  two.3 = f32[4]{0} call(one.3), to_apply=relu.1
  zero.3 = f32[] constant(0)
  total.3 = f32[] reduce(two.3, zero.3), dimensions={0}, to_apply=add.2
  ROOT out.3 = (f32[], f32[4]{0}) tuple(total.3, two.3)
}
"""
AFTER = """HloModule jit_f, is_scheduled=true

%fused_computation (p.1: f32[4]) -> f32[4] {
  %p.1 = f32[4]{0} parameter(0)
  %a.1 = f32[4]{0} sine(%p.1)
  ROOT %b.1 = f32[4]{0} cosine(%a.1)
}

%wrapped_dot (p.2: f32[4]) -> f32[] {
  %p.2 = f32[4]{0} parameter(0)
  ROOT %d.2 = f32[] dot(%p.2, %p.2), lhs_contracting_dims={0}
}

%wrapped_exp (p.3: f32[]) -> f32[] {
  %p.3 = f32[] parameter(0)
  ROOT %e.3 = f32[] exponential(%p.3)
}

%f_computation (p.9: f32[4]) -> f32[4] {
  %p.9 = f32[4]{0} parameter(0)
  %s.9 = (f32[4]{0}, f32[4]{0}, u32[]) copy-start(%p.9)
  %d.9 = f32[4]{0} copy-done(%s.9)
  ROOT %f.9 = f32[4]{0} fusion(%d.9), kind=kLoop, calls=%fused_computation
}

ENTRY %main.4 (x.4: f32[4]) -> (f32[], f32[]) {
  %x.4 = f32[4]{0} parameter(0)
  %f.4 = f32[4]{0} call(%x.4), to_apply=%f_computation, metadata={op_name="jit(f)/sin"}
  %d.4 = f32[] fusion(%f.4), kind=kCustom, calls=%wrapped_dot
  %e.4 = f32[] fusion(%d.4), kind=kLoop, calls=%wrapped_exp
  %c.4 = (f32[4]{0}, s8[16]{0}) custom-call(%f.4, %f.4), custom_call_target="__cublas$gemm"
  ROOT %t.4 = (f32[], f32[]) tuple(%d.4, %e.4)
}
"""


def test_computing_operations_are_counted_where_they_are_called():
    assert operations(BEFORE) == Counter(product=1, elementwise=2, reduction=1)
    assert kernels(AFTER) == Counter(fusion=1, product=2, single=2)
    assert largest_fusion(AFTER) == 2


def test_a_compiled_step_has_fewer_kernels_than_operations():
    found = dict(fusion_counts("cpu", 32, 3))
    before, after = (sum(n for name, n in found.items() if f"step/{when}" in name) for when in ("before", "after"))
    assert found["step/before/product"] == found["step/after/product"] == 5, "two forward, three backward"
    assert 0 < after < before
    assert found["step/inside/fusion"] > 1
    assert {name: n for name, n in found.items() if name.startswith("sine")} == {
        "sine/before/elementwise": 3,
        "sine/after/fusion": 1,
        "sine/inside/fusion": 3,
    }
