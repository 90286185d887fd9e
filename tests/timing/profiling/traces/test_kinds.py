"""Names that profilers gave on a processor, and those of CUDA, each with its kind."""

import pytest

from lib.timing.profiling.traces.form import computes, cuda_kind, device_kind, kind_of, launches

OF_HOST = {
    "dispatch": ["PjitFunction(one_step)", "ThunkExecutor::Execute", "EagerLocalExecute: AssignVariableOp", "custom"],
    "wait": [
        *("ThunkExecutor::Execute (wait for completion)", "np.asarray(jax.Array)", "Iterator::Root::Prefetch"),
        "cudaStreamSynchronize",
    ],
    "transfer": ["DevicePut", "ArrayImpl.copy_to_host_async", "cudaMemcpyAsync"],
    "kernel": ["StatefulPartitionedCall/sequential_1/dense_1/Relu:_MklNativeFusedMatMul"],
    "python": ["$train.py:12 step", "$profiler.py:355 wrapper"],
    "launch": ["cuLaunchKernel"],
    "profiler": [
        *("$profiler.py:101 start_trace", "$profiler_v2.py:60 start", "torch/profiler/profiler.py(811): step"),
        *("Command Buffer Full", "Activity Buffer Request", "Lazy Function Loading"),
    ],
    "communication": ["gloo:all_reduce", "NCCL_ALLREDUCE"],
}
OF_PROGRAMS = {
    "kernel": ["dot_general.9", "multiply_subtract_fusion.3"],
    "dispatch": ["while.1"],
    "transfer": ["copy.2"],
    "communication": ["all-reduce.3"],
}
OF_CUDA = {"launch": ["cuCtxSetCurrent", "cuEventRecord"], "transfer": ["cuMemcpyDtoHAsync"]}
OF_DEVICES = {
    "communication": [
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(RankData*)",
    ],
    "kernel": ["void at::native::reduce_kernel<512, 1>"],
    "transfer": ["Memcpy HtoD (Pageable -> Device)", "__amd_rocclr_copyBuffer.kd"],
}


@pytest.mark.parametrize(
    ("known", "kind"),
    [
        (OF_HOST, kind_of),
        (OF_PROGRAMS, lambda name: kind_of(name, operation=True)),
        (OF_CUDA, cuda_kind),
        (OF_DEVICES, device_kind),
    ],
    ids=["host", "programs", "CUDA", "devices"],
)
def test_a_name_has_its_kind(known, kind):
    assert {name: kind(name) for names in known.values() for name in names} == {
        name: expected for expected, names in known.items() for name in names
    }


def test_what_only_makes_or_renames_a_tensor_computes_nothing():
    names = ("aten::mm", "aten::add_", "aten::threshold_backward", "aten::t", "aten::empty_like", "aten::transpose")
    assert [computes(name) for name in (*names, "AddmmBackward0")] == [True] * 3 + [False] * 4


def test_what_puts_work_into_a_card_s_queue_is_told_from_what_prepares_it():
    assert all(map(launches, ("cudaLaunchKernel", "hipExtModuleLaunchKernel", "cudaGraphLaunch", "queue.submit")))
    assert not any(map(launches, ("cudaEventRecord", "cuCtxSetCurrent", "cudaLaunchHostFunc", "cudaMalloc")))
