"""What a worker is asked to measure other than a training, such as a step taken apart, or what feeds it.

The experiments run in the workers, each with its own library: `with_numpy`, `with_jax`, `with_keras`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from lib.model.backends.registry import BACKENDS
from lib.model.spec import N_PIXELS, Network
from lib.timing.prediction.remedies import Remedy

REFERENCE = "reference"  # the step timed well, beside which each trap is measured
TRAPS = ("synchronisation", "first call counted", "one sample", "best of n", "transfer inside", "busy is not working")
TRAP_EPOCHS = 5  # short ones, whose average counts the first call
TRAP_SAMPLES = 20  # single steps, of which the best is taken
PLAIN, PROFILED = "plain", "profiled"  # steps without a profiler, and those that the trace is of
# A batch that each step takes from the host's memory, beside one that is `RESIDENT`; their sizes, for a calibration.
FROM_HOST = "from host"
TAKEN = (1, 8, 64, 512, 4096)
CONVOLUTIONAL, RESNET = "convolutional", "resnet"  # a step of the small convolutional network, or of ResNet-18
FIRST_CALL = "first call"  # after another row's name: what compiled, tuned or recorded it, once
LAUNCHES = "launches"  # a step of PyTorch, launched in each way that it has
CALLS = "calls"  # of CUDA, counted in a step
# A step changed in one thing, by the backend whose worker measures it: what it saves, or costs, is measured at these
# batch sizes beside the plain step.
PLAIN_STEP = "plain step"
VARIANTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {key: tuple(one.variant for one in Remedy if one.variant and key in one.whom) for key in BACKENDS}
)
ON_CARDS = tuple(one.variant for one in Remedy if one.on_card)
VARIED = (8, 64, 256, 1024)

# What feeds a step with batches, by the backend whose worker measures it.
FEEDS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "keras-tensorflow": MappingProxyType(
            {
                "arrays": "arrays",
                "generator": "generator",
                "pydataset": "PyDataset",
                "tf.data": "tf.data",
                "batched": "tf.data, batch first",
                "cache": "tf.data + cache",
                "shuffle": "tf.data + shuffle",
                "prefetch": "tf.data + prefetch",
                "parallel": "tf.data + parallel map",
                "autotune": "tf.data, AUTOTUNE",
            }
        ),
        "torch": MappingProxyType({f"loader-{n}": f"DataLoader, {n} worker{'s' * (n != 1)}" for n in (0, 1, 2)}),
    }
)
MIN_ROWS, MAX_ROWS = 10, 100_000
MAX_PREPROCESSING_MS = 5.0
MAX_BATCH_S = 3.0  # of preprocessing alone: a run can be stopped between two batches only
MAX_FILL_S = 20.0  # of a cache


class NotMeasured(RuntimeError):
    """Something cannot be measured; the text says why, in a sentence for the person."""


@dataclass(frozen=True)
class Pipeline:
    """An input pipeline: what feeds a step, how many images there are, and what is done with each before its batch.

    Raises ValueError, with a sentence for the person, for what is outside of the limits above.

    Args:
        feed: Key of `FEEDS`.
        rows: Images of the data set; beyond MNIST's 48,000 they are repeated.
        batch_size: Images per step, at most `rows`.
        preprocessing_ms: Processor time that the preprocessing of one image takes.
        holds_lock: Whether it is Python code, which holds the interpreter's lock (the GIL); else it is compiled code
            that releases it.
    """

    feed: str = "tf.data"
    rows: int = 1_000
    batch_size: int = 32
    preprocessing_ms: float = 0.2
    holds_lock: bool = False

    def __post_init__(self) -> None:
        known = [feed for feeds in FEEDS.values() for feed in feeds]
        if self.feed not in known:
            raise ValueError(f"feed: expected one of {', '.join(known)}, got {self.feed!r}; choose one of these")
        if not MIN_ROWS <= self.rows <= MAX_ROWS:
            raise ValueError(f"rows: expected {MIN_ROWS} to {MAX_ROWS:,}, got {self.rows:,}; choose one in between")
        if not 1 <= self.batch_size <= self.rows:
            raise ValueError(
                f"batch size: expected 1 to {self.rows:,} (the rows), got {self.batch_size:,}; choose a smaller batch"
                " or more rows"
            )
        if not 0 <= self.preprocessing_ms <= MAX_PREPROCESSING_MS:  # also refuses NaN
            raise ValueError(
                f"preprocessing: expected 0 to {MAX_PREPROCESSING_MS:g} ms an image, got {self.preprocessing_ms:g};"
                " choose one in between"
            )
        if (batch_s := self.batch_size * self.preprocessing_ms * 1e-3) > MAX_BATCH_S:
            raise ValueError(
                f"preprocessing: expected at most {MAX_BATCH_S:g} s a batch, got {batch_s:.3g} s"
                f" ({self.batch_size:,} images of {self.preprocessing_ms:g} ms); choose a smaller batch or less of it"
            )

    @property
    def label(self) -> str:
        """What feeds the step, in words."""
        return next(feeds[self.feed] for feeds in FEEDS.values() if self.feed in feeds)

    @property
    def fill_s(self) -> float:
        """Seconds of preprocessing all rows once, on one core."""
        return self.rows * self.preprocessing_ms * 1e-3

    @property
    def needed_bytes(self) -> int:
        """Memory at most: the rows themselves, the library's copy, and a cache or the copies of two loaders."""
        return 4 * self.rows * (N_PIXELS + 1) * 4


# Operations by themselves: ways to time them (see `lib.timing.profiling.single_operations`).
WAITED, MOVED, RETURNED = "waited", "moved", "returned"
EAGER, FUSED = "eager", "fused"  # nested sines: one call each, or compiled into one
COPIED, PINNED, ALIASED = "copied", "pinned", "aliased"  # transfers: see `lib.timing.profiling.transfers`
BEFORE, AFTER, INSIDE = "before", "after", "inside"  # counts: see `lib.timing.profiling.fusion`
IN_TURN, IN_PIECES = "in turn", "in pieces"  # see `lib.timing.profiling.overlap`
LANES = ("there", "compute", "back")
OPERATION_PRECISIONS = ("float64", "float32", "tf32", "bfloat16", "float16")
ITEM_BYTES = {"float64": 8, "float32": 4, "tf32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class OperationRequest:
    """An operation by itself: what a notebook asks about it, and at which size.

    Args:
        name: `product` of two `size` × `size` matrices; `sine`, nested `depth` times, of `size` elements; `transfer` of
            `size` bytes; `first use` of a library, for such sines; `fusion` of a training step on `size` images, and of
            such sines: counts, not seconds; `overlap` of such sines with the transfers there and back.
        size: Rows and columns, elements, bytes, or images.
        precision: One of `OPERATION_PRECISIONS`; TF32 is float32 whose factors a card rounds to ten bits.
        depth: Sines in one another.
        pieces: Of the array, in `overlap`.
    """

    name: str
    size: int = 1
    precision: str = "float32"
    depth: int = 1
    pieces: int = 1


@dataclass(frozen=True)
class Examination:
    """What a worker shall measure other than a training.

    `kind` is `ceilings`, `operations`, `parts`, `traps`, `placement`, `takings`, what changes of a step save, one of
    `VARIANTS`, such a step, `convolutional` or `resnet`, of a step of a network of its own, `launches`, of a step in
    each way to launch it, `calls`, which are CUDA's in a step, `pipelines`, which are those of `pipelines`,
    `operation`, of one by itself, which `operation` describes, or `trace`, whose profile is written into `folder`,
    which is empty when the worker gets it.
    """

    kind: str
    network: Network = field(default_factory=Network)
    batch_size: int = 32
    pipelines: tuple[Pipeline, ...] = ()
    folder: str = field(default="", compare=False)
    operation: OperationRequest | None = None
