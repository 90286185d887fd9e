"""Counts from the compiler's text: of texts with a known answer, and of programs that were compiled here."""

from collections import Counter

from lib.timing.profiling.fusion import counts, kernels, largest_fusion, operations, parsed

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

ENTRY %main.4 (x.4: f32[4]) -> (f32[], f32[]) {
  %x.4 = f32[4]{0} parameter(0)
  %f.4 = f32[4]{0} fusion(%x.4), kind=kLoop, calls=%fused_computation, metadata={op_name="jit(f)/sin"}
  %d.4 = f32[] fusion(%f.4), kind=kCustom, calls=%wrapped_dot
  %e.4 = f32[] fusion(%d.4), kind=kLoop, calls=%wrapped_exp
  %c.4 = (f32[4]{0}, s8[16]{0}) custom-call(%f.4, %f.4), custom_call_target="__cublas$gemm"
  ROOT %t.4 = (f32[], f32[]) tuple(%d.4, %e.4)
}
"""


def test_operations_are_counted_where_they_are_called_and_what_computes_nothing_is_not():
    assert operations(BEFORE) == Counter(product=1, elementwise=2, reduction=1)


def test_a_fusion_of_one_operation_is_none_and_a_library_call_is_a_product():
    assert kernels(AFTER) == Counter(fusion=1, product=2, single=1)
    assert largest_fusion(AFTER) == 2


CALLED = AFTER.replace("fusion(%x.4), kind=kLoop, calls=%fused_computation", "call(%x.4), to_apply=%f_computation")
GRAPH = """
%f_computation (p.9: f32[4]) -> f32[4] {
  %p.9 = f32[4]{0} parameter(0)
  %s.9 = (f32[4]{0}, f32[4]{0}, u32[]) copy-start(%p.9)
  %d.9 = f32[4]{0} copy-done(%s.9)
  ROOT %f.9 = f32[4]{0} fusion(%d.9), kind=kLoop, calls=%fused_computation
}

ENTRY"""


def test_what_a_call_groups_is_counted_one_by_one():
    """As on a card, where calls stand for graphs of kernels; an asynchronous copy is one kernel."""
    text = CALLED.replace("ENTRY", GRAPH.strip(), 1)
    assert kernels(text) == Counter(fusion=1, product=2, single=2)
    assert largest_fusion(text) == 2


def test_a_text_without_anything_has_nothing():
    assert parsed("") == {"ENTRY": []}
    assert operations("") == kernels("") == Counter()
    assert largest_fusion("") == 0


def test_what_is_compiled_here_has_fewer_kernels_than_operations():
    found = dict(counts("cpu", 32, 3))
    before, after = (
        sum(n for name, n in found.items() if name.startswith(f"step/{when}")) for when in ("before", "after")
    )
    assert found["step/before/product"] == found["step/after/product"] == 5, "two forward, three backward"
    assert 0 < after < before
    assert found["step/inside/fusion"] > 1
    assert {name: n for name, n in found.items() if name.startswith("sine")} == {
        "sine/before/elementwise": 3,
        "sine/after/fusion": 1,
        "sine/inside/fusion": 3,
    }
