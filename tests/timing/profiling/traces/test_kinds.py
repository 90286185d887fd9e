"""Names that profilers gave on a processor, and those of CUDA, each with its kind."""

import pytest

from lib.timing.profiling.traces.kinds import computes, cuda_kind, device_kind, kind_of, launches


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
        ("$profiler.py:101 start_trace", False, "profiler"),
        ("$profiler_v2.py:60 start", False, "profiler"),
        ("$profiler.py:355 wrapper", False, "python"),
        ("torch/profiler/profiler.py(811): step", False, "profiler"),
        ("Command Buffer Full", False, "profiler"),
        ("Activity Buffer Request", False, "profiler"),
        ("Lazy Function Loading", False, "profiler"),
        ("gloo:all_reduce", False, "communication"),
        ("NCCL_ALLREDUCE", False, "communication"),
        ("all-reduce.3", True, "communication"),
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


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(RankData*)", "communication"),
        ("void at::native::reduce_kernel<512, 1>", "kernel"),
        ("Memcpy HtoD (Pageable -> Device)", "transfer"),
        ("__amd_rocclr_copyBuffer.kd", "transfer"),
    ],
)
def test_what_runs_on_a_device_is_arithmetic_unless_it_moves_bytes_or_tells_other_devices(name, kind):
    assert device_kind(name) == kind


@pytest.mark.parametrize(
    ("name", "answer"),
    [("cudaLaunchKernel", True), ("hipExtModuleLaunchKernel", True), ("cudaGraphLaunch", True), ("queue.submit", True)]
    + [("cudaEventRecord", False), ("cuCtxSetCurrent", False), ("cudaLaunchHostFunc", False), ("cudaMalloc", False)],
)
def test_what_puts_work_into_a_card_s_queue_is_told_from_what_prepares_it(name, answer):
    assert launches(name) is answer
