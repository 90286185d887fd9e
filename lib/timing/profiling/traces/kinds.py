"""What a row of a trace is: arithmetic, or what arithmetic waits for, told by the names that profilers give.

The kinds of CUDA's calls are the first article's: what moves bytes is a transfer, everything else a launch. What a
profiler does itself is a kind of its own, and so is what cards tell each other.
"""

import re
from functools import lru_cache

# What a row is. `kernel` is arithmetic; `other` is not known. Saved traces hold the numbers: new kinds go to the end.
KERNEL, TRANSFER, LAUNCH, DISPATCH, PYTHON, WAIT, OTHER, PROFILER, COMMUNICATION = KINDS = (
    "kernel",
    "transfer",
    "launch",
    "dispatch",
    "python",
    "wait",
    "other",
    "profiler",
    "communication",
)

_CUDA = re.compile(r"(cuda|cu|hip)[A-Z]\w*")
_LAUNCHES = re.compile(r"Launch(?!HostFunc)")
# Collective operations: on a device of NCCL and its kin, vLLM, SGLang and XLA; on the host of Gloo, MPI and Horovod.
_COLLECTIVE = re.compile(
    r"(?i)nccl|rccl|oneccl|nvshmem|mscclpp|deep_ep::|cross_device_reduce|shot_all_?reduce|multimem_all_?(reduce|gather)"
    r"|^(all-reduce|all-gather|all-to-all|reduce-scatter|collective-(permute|broadcast))"
)
_COLLECTIVE_OF_HOST = re.compile(
    r"^gloo:|^MPI_[A-Z]|^(NEGOTIATE_|NCCL_|MPI_|GLOO_)?(ALLREDUCE|ALLGATHER|BROADCAST|REDUCESCATTER|ALLTOALL)"
)
_MOVES = re.compile(r"(?i)memcpy|memset|__amd_rocclr_(copy|fill)")
# In order: the first that is found in the name says the kind.
_RULES = tuple(
    (re.compile(words), kind)
    for words, kind in (
        # JAX's and TensorFlow's profilers in Python, but for what wraps a function of the user's; then PyTorch's
        (r"^\$profiler(_v2)?\.py:\d+ (?!wrapper)", PROFILER),
        (
            r"torch/(profiler|autograd)/profiler\.py\(\d+\)|_disable_profiler|_enable_profiler|^PyTorch Profiler",
            PROFILER,
        ),
        (r"^(Activity|Command) Buffer|^(Lazy Function|Runtime Triggered Module) Loading|^Buffer Flush", PROFILER),
        (r"^(Profiler|Cupti|Rocm)(Session|Tracer|Controller|Lock)|^Iteration Start: PyTorch Profiler", PROFILER),
        (r"^\$", PYTHON),
        (r"^Wait for|::Await$|wait for completion|block_until_ready|BlockHostUntilReady|^np\.asarray\(", WAIT),
        (r"^Iterator|^IteratorGetNextOp|^Prefetch(Produce|Consume)|^ParallelMap(Produce|Consume)", WAIT),
        (r"DevicePut|copy_to_host|TransferTo|TransferFrom|CopyToDevice|BufferFromHost|^shard_args", TRANSFER),
        (r"[Mm]emcpy|[Mm]emset", TRANSFER),
        (r"^[\w/.\-]+:_?[A-Z]\w+$", KERNEL),  # TensorFlow's operations: where in the model, and which kernel
    )
)
# Compiled programs' own containers, and what moves bytes in them.
_CONTAINER = re.compile(r"(while|conditional|call)(\.\d+)?")
_COPY = re.compile(r"copy|transpose_copy|infeed|outfeed")
# PyTorch's operations that only make, name or look at tensors.
_NO_ARITHMETIC = re.compile(
    r"aten::(as_strided|view|_unsafe_view|_reshape_alias|reshape|expand(_as)?|t|transpose|permute|slice|select|narrow"
    r"|squeeze|unsqueeze|flatten|split|chunk|unbind|detach_?|alias|to|_to_copy|contiguous|item|_local_scalar_dense"
    r"|is_nonzero|result_type|resolve_conj|resolve_neg|empty\w*|new_empty\w*|ones_like|zeros_like|zeros|ones|full\w*"
    r"|resize_?|set_?|lift_fresh|_has_compatible_shallow_copy_type|record_stream)"
)


@lru_cache(maxsize=4096)
def kind_of(name: str, operation: bool = False, untold: str = DISPATCH) -> str:
    """The kind of a row on a thread of the host.

    Args:
        name: As the profiler wrote it.
        operation: Whether the profiler says that it is an operation of a compiled program.
        untold: The kind where the name tells none.
    """
    if operation:
        if _CONTAINER.fullmatch(name):
            return DISPATCH
        return TRANSFER if _COPY.match(name) else device_kind(name)
    if _CUDA.fullmatch(name.split("(")[0]):
        return cuda_kind(name)
    if _COLLECTIVE_OF_HOST.search(name):
        return COMMUNICATION
    return next((kind for words, kind in _RULES if words.search(name)), untold)


@lru_cache(maxsize=4096)
def device_kind(name: str) -> str:
    """The kind of what runs on a device."""
    if _MOVES.search(name):
        return TRANSFER
    return COMMUNICATION if _COLLECTIVE.search(name) else KERNEL


@lru_cache(maxsize=4096)
def cuda_kind(name: str) -> str:
    """The kind of a call of CUDA's runtime or driver."""
    if "emcpy" in name or "emset" in name:
        return TRANSFER
    return WAIT if "Synchronize" in name or "WaitEvent" in name else LAUNCH


def launches(name: str) -> bool:
    """Whether a row of the kind `launch` puts work into a device's queue, and does not only prepare it."""
    return bool(_LAUNCHES.search(name)) or not _CUDA.fullmatch(name.split("(")[0])


def computes(name: str) -> bool:
    """Whether PyTorch's operation of this name does arithmetic on a processor, where it runs in the call itself."""
    return name.startswith("aten::") and not _NO_ARITHMETIC.fullmatch(name)
