"""Frozen descriptions of a network and of a training, validated on creation.

Imports nothing heavy, so the notebook's kernel, the workers and the tests can all afford it.
"""

import operator
import re
from dataclasses import asdict, dataclass
from itertools import pairwise
from numbers import Real
from typing import Any

N_PIXELS = 784
N_CLASSES = 10
N_TRAIN = 48_000  # the articles hold out the last 20 % of MNIST's 60,000 training images
N_VALIDATION = 12_000

MAX_INPUTS = 4_096  # per network, e.g. the pixels of a 64 × 64 image
MAX_CLASSES = 100
MAX_HIDDEN_LAYERS = 8
MAX_WIDTH = 4_096
MAX_EPOCHS = 100
MAX_LEARNING_RATE = 1_000.0
MAX_TEXT = 200  # characters in a network's text form

_SEPARATORS = re.compile(r"\s*(?:,|→|->|–|-|;|\s)\s*")


def _whole(name: str, value: object) -> int:
    """Return `value` as an `int`, accepting NumPy integers; ValueError for anything else, including True and 32.0."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise ValueError(f"{name}: expected a whole number, got {value!r}; enter one such as 32")


def _within(
    name: str, value: object, low: int, high: int, what: str = "", advice: str = "choose one in between"
) -> int:
    """Return `value` as an `int`; ValueError, with a sentence for the user, unless it is from `low` to `high`."""
    whole = _whole(name, value)
    if not low <= whole <= high:
        raise ValueError(f"{name}: expected {low:,} to {high:,}{what}, got {whole:,}; {advice}")
    return whole


@dataclass(frozen=True, order=True)
class Network:
    """A fully connected network, inputs → hidden layers with ReLU → one logit per class.

    `hidden` holds the width of each hidden layer: 0 to 8 layers of width 1 to 4,096, else ValueError. Inputs and
    classes default to MNIST's.
    """

    hidden: tuple[int, ...] = (128,)
    n_inputs: int = N_PIXELS
    n_classes: int = N_CLASSES

    def __post_init__(self) -> None:
        for name, low, high in (("inputs", 1, MAX_INPUTS), ("classes", 2, MAX_CLASSES)):
            value = getattr(self, f"n_{name}")
            within = _within(f"{name} of a network", value, low, high, advice="choose other data")
            object.__setattr__(self, f"n_{name}", within)
        if len(self.hidden) > MAX_HIDDEN_LAYERS:
            raise ValueError(
                f"hidden layers: expected at most {MAX_HIDDEN_LAYERS}, got {len(self.hidden)}; remove some"
            )
        widths = (_within("width of a hidden layer", width, 1, MAX_WIDTH) for width in self.hidden)
        object.__setattr__(self, "hidden", tuple(widths))

    @classmethod
    def parse(cls, text: str) -> "Network":
        """Parse widths as people write them: `128`, `256, 128, 64`, `256→128→64`; an empty text means no hidden layer.

        Raises ValueError, with a sentence for the user, for any other text.
        """
        if len(text) > MAX_TEXT:
            raise ValueError(
                f"hidden layers: expected at most {MAX_TEXT} characters, got {len(text):,}; enter fewer widths"
            )
        words = [word for word in _SEPARATORS.split(text.strip()) if word]
        # The separators are lenient and would swallow a minus sign, so reject it first.
        negative = re.search(r"(?:^|[,;→\s])\s*(-\d+)", text)
        unreadable = negative.group(1) if negative else next((word for word in words if not word.isdecimal()), None)
        if unreadable is not None:
            raise ValueError(
                f"hidden layers: expected widths such as “256, 128, 64”, got “{unreadable}”; "
                "use whole numbers separated by commas, or leave the field empty for no hidden layer"
            )
        return cls(tuple(int(word) for word in words))

    @property
    def widths(self) -> tuple[int, ...]:
        """All widths, from the inputs to the logits."""
        return (self.n_inputs, *self.hidden, self.n_classes)

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Shape of each layer's weights, (inputs, outputs)."""
        return tuple(pairwise(self.widths))

    @property
    def n_parameters(self) -> int:
        return sum(inputs * outputs + outputs for inputs, outputs in self.shapes)

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all parameters in float32."""
        return 4 * self.n_parameters

    def step_flops(self, batch_size: int) -> int:
        """Floating-point operations of the matrix products in one training step.

        Two operations per multiply-add, for the forward pass, the gradient of the weights, and the gradient of the
        inputs, which the first layer does not need. Elementwise work (below 1 % at 784→128→10) is left out, so this is
        a lower bound.
        """
        first, *others = (inputs * outputs for inputs, outputs in self.shapes)
        return 2 * batch_size * (2 * first + 3 * sum(others))

    @property
    def label(self) -> str:
        """The hidden layers as text, such as `256→128→64`; `parse` accepts it."""
        return "→".join(map(str, self.hidden)) if self.hidden else "no hidden layer"

    @property
    def whole_label(self) -> str:
        """All widths as text, such as `784→128→10`."""
        return "→".join(map(str, self.widths))


CHANCE_ACCURACY = 0.15  # with ten classes, a network that learned nothing stays near 10 %


@dataclass(frozen=True, order=True)
class DataSet:
    """The facts about a data set that a training needs before loading it; the defaults describe MNIST.

    `digest` identifies data supplied by the user (`lib.model.data.prepared`); MNIST's is empty. A network whose
    validation accuracy is at most `chance` did not learn.
    """

    digest: str = ""
    n_train: int = N_TRAIN
    n_validation: int = N_VALIDATION
    chance: float = CHANCE_ACCURACY

    @property
    def rows(self) -> str:
        """The noun for this data's rows in a sentence."""
        return "rows" if self.digest else "images"

    def gap_by_chance(self, accuracy: float, other: float) -> float:
        """Two standard errors of the difference of two validation accuracies, 0 to 1 (binomial, at their mean)."""
        share = (accuracy + other) / 2
        return 2 * (2 * share * (1 - share) / self.n_validation) ** 0.5


MNIST = DataSet()


@dataclass(frozen=True, order=True)
class Training:
    """One training: a network and its settings for plain SGD on mean cross-entropy.

    Raises ValueError, with a sentence for the user, for a value out of range.
    """

    network: Network = Network()
    learning_rate: float = 0.1
    batch_size: int = 32
    epochs: int = 3
    seed: int = 0
    data: DataSet = MNIST

    def __post_init__(self) -> None:
        if isinstance(self.learning_rate, bool) or not isinstance(self.learning_rate, Real):
            raise ValueError(f"learning rate: expected a number, got {self.learning_rate!r}; enter one such as 0.1")
        which = f" (the number of training {self.data.rows})"
        plain = {
            "learning_rate": float(self.learning_rate),
            "batch_size": _within("batch size", self.batch_size, 1, self.data.n_train, which),
            "epochs": _within("epochs", self.epochs, 1, MAX_EPOCHS),
            "seed": _whole("seed", self.seed),
        }
        for name, value in plain.items():
            object.__setattr__(self, name, value)
        if not 0 < self.learning_rate <= MAX_LEARNING_RATE:  # also refuses NaN
            raise ValueError(
                f"learning rate: expected more than 0 and at most {MAX_LEARNING_RATE:g}, got {self.learning_rate:g};"
                " 0.001 to 1 is usual"
            )
        if self.seed < 0:
            raise ValueError(f"seed: expected 0 or more, got {self.seed}; choose a whole number from 0")

    def steps_per_epoch(self, n_images: int | None = None) -> int:
        """Full batches in an epoch of `n_images`, by default the data set's size; an incomplete batch is dropped."""
        return (self.data.n_train if n_images is None else n_images) // self.batch_size

    def described(self) -> dict[str, Any]:
        """Return a dictionary for keys and files. MNIST's values are omitted, so keys match those of older versions."""
        found = asdict(self)
        network, usual = found["network"], asdict(Network())
        found["network"] = {name: network[name] for name in network if name == "hidden" or network[name] != usual[name]}
        if self.data == MNIST:
            del found["data"]
        return found


# Values offered by the controls.
MIN_RATE = 1e-4
MAX_RATE = 10.0
RATE_STEPS = tuple(float(f"{digit}e{power}") for power in range(-4, 1) for digit in (1, 2, 5)) + (10.0,)
BATCH_SIZES = (1, 8, 32, 64, 128, 256, 512, 1024, 2048, 4096)
