"""Names that profilers gave on a processor, and those of CUDA, each with its kind."""

import pytest

from lib.profiling.traces.kinds import computes, cuda_kind, kind_of


@pytest.mark.parametrize(
    ("name", "operation", "kind"),
    [
        ("dot_general.9", True, "kernel"),
        ("multiply_subtract_fusion.3", True, "kernel"),
        ("while.1", True, "dispatch"),
        ("copy.2", True, "transfer"),
        ("PjitFunction(one_step)", False, "dispatch"),
        ("ThunkExecutor::Execute", False, "dispatch"),
        ("ThunkExecutor::Execute (wait for completion)", False, "wait"),
        ("np.asarray(jax.Array)", False, "wait"),
        ("DevicePut", False, "transfer"),
        ("ArrayImpl.copy_to_host_async", False, "transfer"),
        ("StatefulPartitionedCall/sequential_1/dense_1/Relu:_MklNativeFusedMatMul", False, "kernel"),
        ("EagerLocalExecute: AssignVariableOp", False, "dispatch"),
        ("Iterator::Root::Prefetch", False, "wait"),
        ("$train.py:12 step", False, "python"),
        ("cuLaunchKernel", False, "launch"),
        ("cudaMemcpyAsync", False, "transfer"),
        ("cudaStreamSynchronize", False, "wait"),
        ("custom", False, "dispatch"),
    ],
)
def test_a_name_has_its_kind(name, operation, kind):
    assert kind_of(name, operation) == kind


@pytest.mark.parametrize(
    ("name", "kind"), [("cuCtxSetCurrent", "launch"), ("cuEventRecord", "launch"), ("cuMemcpyDtoHAsync", "transfer")]
)
def test_cuda_s_calls_are_of_the_article_s_kinds(name, kind):
    assert cuda_kind(name) == kind


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("aten::mm", True),
        ("aten::add_", True),
        ("aten::t", False),
        ("aten::empty_like", False),
        ("aten::transpose", False),
        ("aten::threshold_backward", True),
        ("AddmmBackward0", False),
    ],
)
def test_what_only_makes_or_renames_a_tensor_computes_nothing(name, answer):
    assert computes(name) is answer
