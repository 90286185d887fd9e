"""A training step taken apart: operation by operation (`operations`), and into the parts of its time (`parts`).

The experiments run in the workers, each with its own library: `with_numpy`, `with_jax`, `with_keras`.
"""

from dataclasses import dataclass, field

from lib.spec import Network

REFERENCE = "reference"  # the step timed well, beside which each trap is measured
TRAPS = ("synchronisation", "first call counted", "one sample", "best of n", "transfer inside", "busy is not working")
TRAP_EPOCHS = 5  # short ones, whose average counts the first call
TRAP_SAMPLES = 20  # single steps, of which the best is taken


WAITED, MOVED, RETURNED = (
    "waited",
    "moved",
    "returned",
)  # ways to time an operation: see `lib.profiling.single_operations`
EAGER, FUSED = "eager", "fused"  # nested sines: one call each, or compiled into one
COPIED, PINNED, ALIASED = "copied", "pinned", "aliased"  # transfers: see `lib.profiling.transfers`
BEFORE, AFTER, INSIDE = "before", "after", "inside"  # counts: see `lib.profiling.fusion`
IN_TURN, IN_PIECES = "in turn", "in pieces"  # see `lib.profiling.overlap`
LANES = ("there", "compute", "back")
PRECISIONS = ("float64", "float32", "tf32", "bfloat16", "float16")
ITEM_BYTES = {"float64": 8, "float32": 4, "tf32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Operation:
    """An operation by itself: what a notebook asks about it, and at which size.

    Args:
        name: `product` of two `size` × `size` matrices; `sine`, nested `depth` times, of `size` elements; `transfer` of
            `size` bytes; `first use` of a library, for such sines; `fusion` of a training step on `size` images, and of
            such sines: counts, not seconds; `overlap` of such sines with the transfers there and back.
        size: Rows and columns, elements, bytes, or images.
        precision: One of `PRECISIONS`; TF32 is float32 whose factors a card rounds to ten bits.
        threads: At most so many cores compute; 0: as many as there are.
        depth: Sines in one another.
        pieces: Of the array, in `overlap`.
    """

    name: str
    size: int = 1
    precision: str = "float32"
    threads: int = 0
    depth: int = 1
    pieces: int = 1


@dataclass(frozen=True)
class Examination:
    """What a worker shall measure other than a training.

    `kind` is `ceilings`, `operations`, `parts`, `traps`, or `operation`: of one by itself, which `operation` describes.
    """

    kind: str
    network: Network = field(default_factory=Network)
    batch_size: int = 32
    operation: Operation | None = None
