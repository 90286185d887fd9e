"""What a worker is asked to measure other than a training, such as a step taken apart, or what feeds it.

The experiments run in the workers, each with its own library: `with_numpy`, `with_jax`, `with_keras`.
"""

from collections import namedtuple
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from lib.model.backends.registry import BACKENDS, Runtime
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


# Operations by themselves: ways to time them (see `lib.timing.profiling.operations`).
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


ON_DEVICE = "many-on-device"  # an experiment that no part needs: `many` by the device's own clock
EXPLAINED = 0.15  # of the step: how far the parts may be from adding up


StepPart = namedtuple("StepPart", "name color how")  # and how it is derived from the experiments
PARTS = (
    StepPart(
        "arithmetic",
        "#0b7a57",
        "many steps on one batch with nobody asked in between (NumPy, and PyTorch on a processor: the call on one batch"
        " that is there already, with the waking of the library’s threads), less the same for one neuron and one image",
    ),
    StepPart("transfer", "#c48600", "fetching a batch as this backend does, less the same with nothing to fetch"),
    StepPart(
        "launch and wait",
        "#3a72d8",
        "the call on one batch that is there already, less its arithmetic and its dispatch: handing over to threads or"
        " card, and waking up; none where the library works in the caller’s thread: all of that is in its call",
    ),
    StepPart("dispatch", "#8d6fd1", "the call for one neuron and one image, until it returns"),
    StepPart(
        "Python", "#d1623a", "the loop with the call left out; for Keras, fit of the tiny network less its bare call"
    ),
    StepPart("idle", "#8a8f98", "wall time of the training in which none of its cores worked, beyond launch and wait"),
)

ONE_CALL = ("jax-epoch", "numba")  # backends that make many steps in one call
IN_CALLER = (Runtime("numpy"), Runtime("numba"), Runtime("torch"))  # work in the caller's thread: they launch nothing


@dataclass(frozen=True)
class Split:
    """A step's time in parts, all in seconds."""

    step_s: float
    parts_s: Mapping[str, float]

    @property
    def unexplained_s(self) -> float:
        """What the parts leave of the measured step; negative where they overlap in time, as on two cores."""
        return self.step_s - sum(self.parts_s.values())

    @property
    def adds_up(self) -> bool:
        """Whether the parts make up the measured step to within `EXPLAINED`."""
        return abs(self.unexplained_s) <= EXPLAINED * self.step_s

    @property
    def drawn_s(self) -> float:
        """The longer of step and parts: as far as a bar reaches."""
        return max(self.step_s, sum(self.parts_s.values()))

    def share(self, part: str) -> float | None:
        """The part's share of the whole bar, 0 to 1; None where the parts do not add up to the step."""
        return self.parts_s[part] / self.drawn_s if self.adds_up else None


def split(runtime: Runtime, found: Mapping[str, float]) -> Split | None:
    """The parts of a step's time, from the experiments.

    Args:
        runtime: What makes the step.
        found: Seconds of one training step by experiment, as `lib.timing.profiling.run` names them.

    Returns:
        All of `PARTS` that such a step has, none below 0; None while an experiment is missing.
    """
    keras, in_one_call, in_caller = "fit-tiny" in found, runtime.backend in ONE_CALL, runtime in IN_CALLER
    whole, tiny = ("call", "returns") if in_caller and not in_one_call else ("many", "many-tiny")
    needed = {"step", "busy", "returns", "transfer", whole, tiny}
    needed |= {"fit-tiny", "call-tiny"} if keras else {"python"}
    if not needed <= found.keys() or not (in_one_call or "call" in found):
        return None
    arithmetic_s = max(0.0, found[whole] - found[tiny])
    # Inside one call nobody is called, but each operation costs something, however small it is.
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
    if in_caller:  # whose call contains whatever it waits for
        del parts["launch and wait"], parts["idle"]
    return Split(found["step"], parts)
