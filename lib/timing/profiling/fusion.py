"""What XLA makes of a program: its operations before, and what is launched after, counted from the compiler's text.

Counts, not seconds. Left out on both sides is what needs no kernel: parameters, constants, tuples, and other views of
the same bytes; before fusion also shapes (`broadcast`, `reshape`, `iota`), which most operations take in passing.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from lib.model.backends.base import initial_parameters
from lib.model.backends.with_jax import packed, sgd_step
from lib.model.spec import N_PIXELS, Network
from lib.timing.profiling.request import AFTER, BEFORE, INSIDE

NETWORK = Network((128,))
SINE_ELEMENTS = 2**20
KINDS = ("product", "reduction", "elementwise", "fusion", "single")
NO_KERNEL = frozenset(["parameter", "constant", "tuple", "get-tuple-element", "bitcast"])
SHAPES = frozenset(["broadcast", "reshape", "iota"])
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?[\w.\-]+ = (?:\([^=]*\)|\S+) ([\w\-]+)\((.*)$")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+)[^=]*\{$")
_CALLED = re.compile(r"(?:to_apply|calls)=%?([\w.\-]+)")

Instruction = tuple[str, str]  # its kind, such as `dot`, and what follows


def counts(device: str, batch_size: int, depth: int) -> Iterator[tuple[str, int]]:
    """Counts of a training step of 784→128→10, and of nested sines, by `PROGRAM/before/KIND` and so on.

    Args:
        device: `cpu` or `gpu`.
        batch_size: Images of the step.
        depth: Sines in one another.

    Yields:
        A name and how many there are; `PROGRAM/inside/fusion` is how many operations the largest fusion has.
    """
    for name, lowered in _lowered(device, batch_size, depth).items():
        compiled = lowered.compile().as_text() or ""
        for when, found in ((BEFORE, operations(lowered.as_text(dialect="hlo"))), (AFTER, kernels(compiled))):
            yield from ((f"{name}/{when}/{kind}", found[kind]) for kind in KINDS if found[kind])
        yield f"{name}/{INSIDE}/fusion", largest_fusion(compiled)


def _lowered(device: str, batch_size: int, depth: int) -> Mapping[str, jax.stages.Lowered]:
    target = jax.devices(device)[0]
    parameters, x, y, rate, elements = jax.device_put(
        (
            packed(initial_parameters(NETWORK, 0)),
            np.zeros((batch_size, N_PIXELS), np.float32),
            np.zeros(batch_size, np.int32),
            np.float32(0.1),
            np.zeros(SINE_ELEMENTS, np.float32),
        ),
        target,
    )

    def nested(array):
        for _ in range(depth):
            array = jnp.sin(array)
        return array

    return {"step": jax.jit(sgd_step).lower(parameters, x, y, rate), "sine": jax.jit(nested).lower(elements)}


def operations(text: str) -> Counter[str]:
    """The operations of a program that is not optimised yet: products, reductions and others, element by element.

    Args:
        text: HLO; functions that it calls are counted where they are called.
    """
    found, computations = Counter[str](), parsed(text)

    def count(name: str) -> None:
        for kind, rest in computations[name]:
            if kind == "call" and (called := _CALLED.search(rest)):
                count(called[1])
            elif kind not in NO_KERNEL | SHAPES:
                found[{"dot": "product", "reduce": "reduction"}.get(kind, "elementwise")] += 1

    count("ENTRY")
    return found


def kernels(text: str) -> Counter[str]:
    """What a compiled program launches: products, fusions of several operations, and operations by themselves.

    Args:
        text: HLO, as compiled. A call of a library is taken for a product: that is what it is in these programs.
    """
    found = Counter[str]()
    for kind, inside in launched(text):
        product = {"dot", "custom-call"} & {kind, *inside}
        found["product" if product else "fusion" if len(inside) > 1 else "single"] += 1
    return found


def largest_fusion(text: str) -> int:
    """How many operations the largest fusion of a compiled program has; 0 without any."""
    return max((len(inside) for _, inside in launched(text)), default=0)


def launched(text: str) -> list[tuple[str, list[str]]]:
    """The kind of each kernel of a compiled program, and the operations in it where that is a fusion.

    What a call does is looked at where it is called: on a card calls group kernels that are launched as one graph, on a
    processor they divide one among threads.
    """
    computations, found = parsed(text), []

    def enter(name: str) -> None:
        for kind, rest in computations[name]:
            called = _CALLED.search(rest)
            if kind == "call" and called:
                enter(called[1])
            elif kind not in NO_KERNEL and not kind.endswith("-done"):  # it is what `-start` has launched
                inside = computations[called[1]] if kind == "fusion" and called else []
                found.append((kind, [one for one, _ in inside if one not in NO_KERNEL | SHAPES]))

    enter("ENTRY")
    return found


def parsed(text: str) -> dict[str, list[Instruction]]:
    """The instructions of each computation of an HLO text, by its name; the main one's is `ENTRY`."""
    found: dict[str, list[Instruction]] = {"ENTRY": []}
    inside: list[Instruction] = []
    for line in text.splitlines():
        if not line.startswith(" ") and (begins := _COMPUTATION.match(line)):
            inside = found.setdefault("ENTRY" if begins[1] else begins[2], [])
        elif instruction := _INSTRUCTION.match(line):
            inside.append((instruction[1], instruction[2]))
    return found
