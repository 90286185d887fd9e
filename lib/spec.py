"""What is trained and how: frozen descriptions of a network and of a training, validated on creation.

Imports nothing heavy, so that the notebook's kernel, the workers and the tests can all afford it.
"""

import operator
import re
from dataclasses import dataclass
from itertools import pairwise
from numbers import Real

N_PIXELS = 784
N_CLASSES = 10
N_TRAIN = 48_000  # the articles hold out the last 20 % of MNIST's 60,000 training images
N_VALIDATION = 12_000
N_TEST = 10_000

MAX_HIDDEN_LAYERS = 8
MAX_WIDTH = 4_096
MAX_EPOCHS = 100
MAX_LEARNING_RATE = 1_000.0
MAX_TEXT = 200  # characters of the text that describes a network

_SEPARATORS = re.compile(r"\s*(?:,|→|->|–|-|;|\s)\s*")


def _whole(name: str, value: object) -> int:
    """The value as an `int`, also from NumPy's integers; ValueError for anything else, True and 32.0 included."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise ValueError(f"{name}: expected a whole number, got {value!r}; write one such as 32")


@dataclass(frozen=True, order=True)
class Network:
    """A fully connected network, 784 inputs → hidden layers with ReLU → 10 logits.

    `hidden` holds the width of each hidden layer: 0 to 8 layers of width 1 to 4,096, else ValueError.
    """

    hidden: tuple[int, ...] = (128,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(_whole("width of a hidden layer", width) for width in self.hidden))
        if len(self.hidden) > MAX_HIDDEN_LAYERS:
            raise ValueError(
                f"hidden layers: expected at most {MAX_HIDDEN_LAYERS}, got {len(self.hidden)}; remove some"
            )
        for width in self.hidden:
            if not 1 <= width <= MAX_WIDTH:
                raise ValueError(
                    f"width of a hidden layer: expected 1 to {MAX_WIDTH}, got {width}; choose one in between"
                )

    @classmethod
    def parse(cls, text: str) -> "Network":
        """Read widths as people write them: `128`, `256, 128, 64`, `256→128→64`; empty for no hidden layer.

        Raises ValueError, with a sentence for the user, for any other text.
        """
        if len(text) > MAX_TEXT:
            raise ValueError(
                f"hidden layers: expected at most {MAX_TEXT} characters, got {len(text):,}; write fewer widths"
            )
        words = [word for word in _SEPARATORS.split(text.strip()) if word]
        # Separators are generous, so a minus sign would vanish: refuse it before it is taken for an arrow.
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
        """All widths from the pixels to the logits."""
        return (N_PIXELS, *self.hidden, N_CLASSES)

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Shape of each layer's weights, (inputs, outputs)."""
        return tuple(pairwise(self.widths))

    @property
    def n_parameters(self) -> int:
        """Number of weights and biases."""
        return sum(inputs * outputs + outputs for inputs, outputs in self.shapes)

    @property
    def parameter_bytes(self) -> int:
        """Memory of all parameters in float32."""
        return 4 * self.n_parameters

    def step_flops(self, batch_size: int) -> int:
        """Floating-point operations of the matrix products in one training step.

        Two operations per multiply-add, for the forward pass, the gradient of the weights, and the gradient of the
        inputs, which the first layer does not need. Elementwise work (below 1 % at 784→128→10) is left out, so this is
        a floor.
        """
        first, *others = (inputs * outputs for inputs, outputs in self.shapes)
        return 2 * batch_size * (2 * first + 3 * sum(others))

    @property
    def label(self) -> str:
        """The hidden layers as text, such as `256→128→64`, which `parse` reads again."""
        return "→".join(map(str, self.hidden)) if self.hidden else "no hidden layer"


@dataclass(frozen=True, order=True)
class Training:
    """One training: a network, and how it is trained with plain SGD on mean cross-entropy.

    Raises ValueError, with a sentence for the user, for a value outside of its limits.
    """

    network: Network = Network()
    learning_rate: float = 0.1
    batch_size: int = 32
    epochs: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.learning_rate, bool) or not isinstance(self.learning_rate, Real):
            raise ValueError(f"learning rate: expected a number, got {self.learning_rate!r}; write one such as 0.1")
        object.__setattr__(self, "learning_rate", float(self.learning_rate))
        for name in ("batch_size", "epochs", "seed"):
            object.__setattr__(self, name, _whole(name.replace("_", " "), getattr(self, name)))
        if not 0 < self.learning_rate <= MAX_LEARNING_RATE:  # also refuses NaN
            raise ValueError(
                f"learning rate: expected above 0 and at most {MAX_LEARNING_RATE:g}, got {self.learning_rate:g}; "
                "0.001 to 1 is usual"
            )
        if not 1 <= self.batch_size <= N_TRAIN:
            raise ValueError(
                f"batch size: expected 1 to {N_TRAIN:,} (the number of training images), got {self.batch_size:,}; "
                "choose a smaller one"
                if self.batch_size > N_TRAIN
                else f"batch size: expected 1 to {N_TRAIN:,}, got {self.batch_size}; choose a positive one"
            )
        if not 1 <= self.epochs <= MAX_EPOCHS:
            raise ValueError(f"epochs: expected 1 to {MAX_EPOCHS}, got {self.epochs}; choose one in between")
        if self.seed < 0:
            raise ValueError(f"seed: expected 0 or more, got {self.seed}; choose a whole number from 0")

    def steps_per_epoch(self, n_images: int = N_TRAIN) -> int:
        """Number of full batches in an epoch; the last, incomplete one is dropped."""
        return n_images // self.batch_size


CHANCE_ACCURACY = 0.15  # with ten classes, a network that did not learn stays near 10 %

# What the controls offer.
MIN_RATE = 1e-4
MAX_RATE = 10.0
RATE_STEPS = tuple(float(f"{digit}e{power}") for power in range(-4, 1) for digit in (1, 2, 5)) + (10.0,)
BATCH_SIZES = (1, 8, 32, 128, 256, 512, 1024, 2048, 4096)
