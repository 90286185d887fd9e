"""What a row of a trace is: arithmetic, or what arithmetic waits for, told by the names that profilers give.

The kinds of CUDA's calls are the first article's: what moves bytes is a transfer, everything else a launch.
"""

import re
from functools import lru_cache

# What a row is. `kernel` is arithmetic; the others are what arithmetic waits for, in order of their precedence.
KERNEL, TRANSFER, LAUNCH, DISPATCH, PYTHON, WAIT, OTHER = KINDS = (
    "kernel",
    "transfer",
    "launch",
    "dispatch",
    "python",
    "wait",
    "other",
)

_CUDA = re.compile(r"(cuda|cu|hip)[A-Z]\w*")
# In order: the first that is found in the name says the kind.
_RULES = tuple(
    (re.compile(words), kind)
    for words, kind in (
        (r"^\$", PYTHON),
        (r"^Activity Buffer", OTHER),  # PyTorch's profiler itself
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
def kind_of(name: str, operation: bool = False) -> str:
    """The kind of a row on a thread of the host.

    Args:
        name: As the profiler wrote it.
        operation: Whether the profiler says that it is an operation of a compiled program.
    """
    if operation:
        if _CONTAINER.fullmatch(name):
            return DISPATCH
        return TRANSFER if _COPY.match(name) else KERNEL
    if _CUDA.fullmatch(name.split("(")[0]):
        return cuda_kind(name)
    return next((kind for words, kind in _RULES if words.search(name)), DISPATCH)


@lru_cache(maxsize=4096)
def cuda_kind(name: str) -> str:
    """The kind of a call of CUDA's runtime or driver."""
    if "emcpy" in name or "emset" in name:
        return TRANSFER
    return WAIT if "Synchronize" in name or "WaitEvent" in name else LAUNCH


def computes(name: str) -> bool:
    """Whether PyTorch's operation of this name does arithmetic on a processor, where it runs in the call itself."""
    return name.startswith("aten::") and not _NO_ARITHMETIC.fullmatch(name)
