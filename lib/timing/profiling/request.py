"""Requests for measurements other than trainings, such as a step's profile or its input pipeline.

The experiments run in the workers, each with its own library: `with_numpy`, `with_jax`, `with_keras`.
"""

from collections import namedtuple
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from lib.formatting import counted
from lib.model.backends.registry import BACKENDS, Runtime
from lib.model.spec import N_PIXELS, Network
from lib.timing.prediction.remedies import Remedy

REFERENCE = "reference"  # the correctly timed step, to compare each trap with
TRAPS = ("synchronisation", "first call counted", "one sample", "best of n", "transfer inside", "busy is not working")
TRAP_EPOCHS = 5  # short epochs, whose average counts the first call
TRAP_SAMPLES = 20  # single steps, from which the best is taken
PLAIN, PROFILED = "plain", "profiled"  # steps without a profiler, and the steps in the trace
# A batch that each step takes from host memory, as opposed to `RESIDENT`; and the batch sizes of a calibration.
FROM_HOST = "from host"
TAKEN = (1, 8, 64, 512, 4096)
CONVOLUTIONAL, RESNET = "convolutional", "resnet"  # a step of the small convolutional network, or of ResNet-18
FIRST_CALL = "first call"  # suffix of a row: the call that compiled, tuned or recorded it
LAUNCHES = "launches"  # a PyTorch step, launched in each available way
CALLS = "calls"  # CUDA calls, counted in a step
# Single changes to a step, by the backend whose worker measures them against the plain step at these batch sizes.
PLAIN_STEP = "plain step"
VARIANTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {key: tuple(one.variant for one in Remedy if one.variant and key in one.backends) for key in BACKENDS}
)
ON_CARDS = tuple(one.variant for one in Remedy if one.on_card)
VARIED = (8, 64, 256, 1024)

# Feeds of batches, by the backend whose worker measures them.
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
        "torch": MappingProxyType({f"loader-{n}": f"DataLoader, {counted(n, 'worker')}" for n in (0, 1, 2)}),
    }
)
MIN_ROWS, MAX_ROWS = 10, 100_000
MAX_PREPROCESSING_MS = 5.0
MAX_BATCH_S = 3.0  # of preprocessing alone, because a run can be stopped only between batches
MAX_FILL_S = 20.0  # of a cache


class NotMeasured(RuntimeError):
    """Something cannot be measured; the text says why, in a sentence for the user."""


@dataclass(frozen=True)
class Pipeline:
    """An input pipeline: its feed, its number of images, and the preprocessing of each image.

    Raises ValueError, with a sentence for the user, for values beyond the limits above.

    Args:
        feed: Key of a feed in `FEEDS`.
        rows: Images in the data set; beyond MNIST's 48,000 they are repeated.
        batch_size: Images per step, at most `rows`.
        preprocessing_ms: Processor time to preprocess one image.
        holds_lock: Whether preprocessing is Python code, which holds the interpreter's lock (GIL), or compiled code,
            which releases it.
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
                f"preprocessing: expected 0 to {MAX_PREPROCESSING_MS:g} ms per image, got {self.preprocessing_ms:g};"
                " choose one in between"
            )
        if (batch_s := self.batch_size * self.preprocessing_ms * 1e-3) > MAX_BATCH_S:
            raise ValueError(
                f"preprocessing: expected at most {MAX_BATCH_S:g} s per batch, got {batch_s:.3g} s"
                f" ({self.batch_size:,} images of {self.preprocessing_ms:g} ms); choose a smaller batch or less work"
            )

    @property
    def label(self) -> str:
        return next(feeds[self.feed] for feeds in FEEDS.values() if self.feed in feeds)

    @property
    def fill_s(self) -> float:
        """Seconds to preprocess all rows once, on one core."""
        return self.rows * self.preprocessing_ms * 1e-3

    @property
    def needed_bytes(self) -> int:
        """Upper bound of memory: the rows, the library's copy, and a cache or the copies of two loaders."""
        return 4 * self.rows * (N_PIXELS + 1) * 4


# Ways to time single operations (see `lib.timing.profiling.operations`).
WAITED, MOVED, RETURNED = "waited", "moved", "returned"
EAGER, FUSED = "eager", "fused"  # nested sines: one call each, or compiled into one
COPIED, PINNED, ALIASED = "copied", "pinned", "aliased"  # transfers: see `lib.timing.profiling.operations`
BEFORE, AFTER, INSIDE = "before", "after", "inside"  # counts: see `lib.timing.profiling.with_jax`
IN_TURN, IN_PIECES = "in turn", "in pieces"  # see `lib.timing.profiling.operations`
LANES = ("there", "compute", "back")
OPERATION_PRECISIONS = ("float64", "float32", "tf32", "bfloat16", "float16")
ITEM_BYTES = {"float64": 8, "float32": 4, "tf32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class OperationRequest:
    """A single operation to measure, and its size.

    Args:
        name: `product` of two `size` × `size` matrices; `sine`, nested `depth` times, of `size` elements; `transfer` of
            `size` bytes; `first use` of a library, for such sines; `fusion` of a training step on `size` images and of
            such sines (counts, not seconds); or `overlap` of such sines with the transfers in both directions.
        size: Rows and columns, elements, bytes, or images.
        precision: One of `OPERATION_PRECISIONS`; TF32 is float32 whose factors a card rounds to ten bits.
        depth: Number of nested sines.
        pieces: Pieces of the array, for `overlap`.
    """

    name: str
    size: int = 1
    precision: str = "float32"
    depth: int = 1
    pieces: int = 1


@dataclass(frozen=True)
class Examination:
    """A request to a worker for a measurement other than a training.

    `kind` is `ceilings`, `operations`, `parts`, `traps`, `placement`, `model` (building one), `takings` (the savings of
    each change to a step), one of `VARIANTS` (one changed step), `convolutional` or `resnet` (a step of that network),
    `launches` (a step in each way to launch it), `calls` (CUDA calls in a step), `pipeline` or `operation` (of the
    attribute by that name), or `trace` (writes a profile into `folder`, which is empty when the worker gets it).
    """

    kind: str
    network: Network = field(default_factory=Network)
    batch_size: int = 32
    pipeline: Pipeline | None = None
    folder: str = field(default="", compare=False)
    operation: OperationRequest | None = None


EXPLAINED = 0.15  # share of the step by which the sum of its parts may differ


StepPart = namedtuple("StepPart", "name color how")  # `how`: its derivation from the experiments
PARTS = (
    StepPart(
        "arithmetic",
        "#0b7a57",
        "many uninterrupted steps on one batch (NumPy, and PyTorch on a CPU: the call on one batch that is already"
        " there, including waking the library’s threads), minus the same for one neuron and one image",
    ),
    StepPart("transfer", "#b9801c", "fetching a batch as this backend does, minus the same with nothing to fetch"),
    StepPart(
        "launch and wait",
        "#d04a78",
        "the call on one batch that is already there, minus its arithmetic and its dispatch: handing over to threads or"
        " GPU, and waking up; none if the library works in the caller’s thread, because its call includes all of that",
    ),
    StepPart("dispatch", "#3a72d8", "the time until the call for one neuron and one image returns"),
    StepPart("Python", "#7b62d3", "the loop without the call; for Keras, fit of the tiny network minus its bare call"),
    StepPart("idle", "#8a8f98", "wall time in which none of the training’s cores worked, beyond launch and wait"),
)

ONE_CALL = ("jax-epoch", "numba")  # backends that make many steps in one call
IN_CALLER = (Runtime("numpy"), Runtime("numba"), Runtime("torch"))  # work in the caller's thread, so launch nothing


@dataclass(frozen=True)
class Split:
    """A step's time and its parts, in seconds."""

    step_s: float
    parts_s: Mapping[str, float]

    @property
    def unexplained_s(self) -> float:
        """Seconds of the step beyond the sum of its parts; negative if parts overlap, as on two cores."""
        return self.step_s - sum(self.parts_s.values())

    @property
    def adds_up(self) -> bool:
        """Whether the parts add up to the measured step within `EXPLAINED`."""
        return abs(self.unexplained_s) <= EXPLAINED * self.step_s

    @property
    def drawn_s(self) -> float:
        """Length of the bar in a chart: the step or the sum of its parts, whichever is longer."""
        return max(self.step_s, sum(self.parts_s.values()))

    @property
    def overhead(self) -> float | None:
        """Share of the whole bar that is not arithmetic, 0 to 1; None if the parts do not add up to the step."""
        return sum(self.share(one) or 0 for one in self.parts_s if one != "arithmetic") if self.adds_up else None

    def share(self, part: str) -> float | None:
        """Return the part's share of the whole bar, 0 to 1; None if the parts do not add up to the step."""
        return self.parts_s[part] / self.drawn_s if self.adds_up else None


def split(runtime: Runtime, found: Mapping[str, float]) -> Split | None:
    """Derive the parts of a step's time from the experiments.

    Args:
        runtime: The backend and device that run the step.
        found: Seconds of one training step by experiment, as named in `lib.timing.profiling.run`.

    Returns:
        The `PARTS` that such a step has, none below 0; None while an experiment is missing.
    """
    keras, in_one_call, in_caller = "fit-tiny" in found, runtime.backend in ONE_CALL, runtime in IN_CALLER
    whole, tiny = ("call", "returns") if in_caller and not in_one_call else ("many", "many-tiny")
    needed = {"step", "busy", "returns", "transfer", whole, tiny}
    needed |= {"fit-tiny", "call-tiny"} if keras else {"python"}
    if not needed <= found.keys() or not (in_one_call or "call" in found):
        return None
    arithmetic_s = max(0.0, found[whole] - found[tiny])
    # Within one call there are no further calls, but even the smallest operation has a cost.
    rest_s = found["many-tiny"] if in_one_call else max(0.0, found["call"] - arithmetic_s - found["returns"])
    wait_s, dispatch_s = (0.0, found["returns"] + rest_s) if in_caller else (rest_s, found["returns"])
    parts = {
        "arithmetic": arithmetic_s,
        "transfer": max(0.0, found["transfer"] - found.get("transfer-base", 0.0)),
        "launch and wait": wait_s,
        "dispatch": dispatch_s,
        "Python": max(0.0, found["fit-tiny"] - found["call-tiny"]) if keras else found["python"],
        "idle": max(0.0, found["step"] - found["busy"] - wait_s),
    }
    if in_caller:  # the call contains everything that it waits for
        del parts["launch and wait"], parts["idle"]
    return Split(found["step"], parts)
