"""Experiments on the two JAX backends and on a small convolutional network, and counts of a program's XLA kernels.

The counts come from the compiler's text: operations before optimisation, and launched kernels after it. Both leave out
instructions that need no kernel: parameters, constants, tuples, and other views of the same bytes. Counts before fusion
also leave out `broadcast`, `reshape` and `iota`, which most operations absorb.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from timeit import timeit
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lib.model.backends.base import CHUNK_S, initial_parameters
from lib.model.backends.with_jax import BLOCK, in_blocks, logits_of, one_step, packed, run_steps, sgd_step
from lib.model.data.mnist import Data
from lib.model.spec import N_PIXELS, Network
from lib.timing.measurement import Step
from lib.timing.prediction.remedies import RESIDENT, Remedy
from lib.timing.profiling.harness import (
    IN_A_ROW,
    TINY,
    Row,
    StepExperiment,
    Subject,
    TimedStep,
    in_one_call,
    interleaved,
    loop,
    nested_sine,
    nothing,
    repeated,
    row_of,
)
from lib.timing.profiling.request import AFTER, BEFORE, CONVOLUTIONAL, FIRST_CALL, FROM_HOST, INSIDE, TAKEN

_wait = jax.block_until_ready
BATCHES = 500  # on the device at once


def experiments(backend: str, subject: Subject) -> dict[str, StepExperiment]:
    """Return the experiments of `lib.timing.profiling.run` on a JAX backend, by name."""
    return (_whole_epoch if backend == "jax-epoch" else _step_by_step)(subject) | many_steps(subject)


@jax.jit
def taken(x, y):
    """Take a batch (batch, 784) with its labels (batch,), and do almost nothing with it."""
    return x[0, 0] + y[0].astype(x.dtype)


def _step_by_step(subject: Subject) -> dict[str, StepExperiment]:
    return {
        "python": repeated(loop(subject, nothing)),
        "returns": repeated(one_call(subject.tiny), _wait, returns=True),
        "call": repeated(one_call(subject), _wait, config=IN_A_ROW),  # one wait per block, as in training
        "transfer": repeated(loop(subject, taken), _wait, config=IN_A_ROW),
        "transfer-base": repeated(loop(subject.tiny, taken), _wait, config=IN_A_ROW),
    }


def stepping(subject: Subject, run: Callable = one_step) -> Callable[[Any, Any], object]:
    """Return a step on a given batch, with parameters of its own; it returns the loss without waiting for it."""
    current, rate = on_device(subject)

    def step(x, y) -> object:
        nonlocal current
        current, loss = run(current, x, y, rate)
        return loss

    return step


def one_call(subject: Subject, run: Callable = one_step) -> Step:
    """Return a step on one batch that is already on the device."""
    return partial(stepping(subject, run), *jax.device_put(subject.batch, jax.devices(subject.device)[0]))


_undonated = jax.jit(sgd_step)


def varied(_backend: str, subject: Subject, variant: str) -> StepExperiment:
    """Measure training steps like `jax-step`'s, plain, on batches already on the device, or without donated buffers."""
    step = stepping(subject, _undonated if variant == Remedy.DONATED.variant else one_step)
    if variant != RESIDENT:
        return repeated(loop(subject, step), _wait, config=IN_A_ROW)
    batches = cycle(_batches_there(subject))
    return repeated(lambda: step(*next(batches)), _wait, config=IN_A_ROW)


def takings(data: Data, device: str) -> dict[str, StepExperiment]:
    """Return experiments that take a batch of each size from host memory, like `jax-step`, and from the device."""
    found: dict[str, StepExperiment] = {}
    for size in (one for one in TAKEN if one <= len(data.x_train)):
        subject = Subject(TINY, size, data, device)
        there = cycle(_batches_there(subject))
        found[f"{FROM_HOST} {size}"] = repeated(loop(subject, taken), _wait)
        found[f"{RESIDENT} {size}"] = repeated(lambda there=there: taken(*next(there)), _wait)
    return found


def _batches_there(subject: Subject) -> list:
    """Return at most `BATCHES` batches of an epoch in order, each a separate array on the device."""
    x, y, size = subject.data.x_train, subject.data.y_train, subject.batch_size
    few = [(x[start : start + size], y[start : start + size]) for start in subject.starts[:BATCHES]]
    return jax.block_until_ready(jax.device_put(few, jax.devices(subject.device)[0]))


def timed_step(subject: Subject) -> TimedStep:
    """Return a step that is one compiled call, for the traps."""
    step, (x, y), target = stepping(subject), subject.batch, jax.devices(subject.device)[0]

    def with_transfer() -> object:
        return _wait(step(*jax.device_put((x.copy(), y.copy()), target)))

    def fresh() -> Step:
        of_its_own = float(time.time_ns() % 1_000_003) * 1e-12  # a unique constant, so that no cache has this program
        return one_call(subject, jax.jit(lambda p, x, y, rate: sgd_step(p, x, y, rate + of_its_own)))

    return TimedStep(one_call(subject), _wait, with_transfer, fresh)


def _whole_epoch(subject: Subject) -> dict[str, StepExperiment]:
    target = jax.devices(subject.device)[0]
    x, y, starts = jax.device_put((subject.data.x_train, subject.data.y_train, np.array(subject.starts)), target)
    n = len(starts)

    def epoch(of: Subject, steps: int) -> Step:
        current, rate = on_device(of)
        losses = jax.device_put(jnp.zeros(n, jnp.float32), target)

        def call() -> object:
            nonlocal current, losses
            current, losses = run_steps(
                current, losses, starts, 0, steps, x, y, rate, batch_size=of.batch_size, block=BLOCK[of.device]
            )
            return losses

        return call

    steps = _steps_of_one_call(epoch(subject, n), n)
    empty = epoch(subject.tiny, 0)  # the call alone, without steps
    slot = jax.device_put(jnp.zeros((subject.batch_size, N_PIXELS), jnp.float32), target)
    return {
        "python": repeated(loop(subject, nothing), steps=steps),
        "returns": repeated(empty, _wait, steps, returns=True),
        "transfer": repeated(lambda: _slices(x, starts, slot), _wait, n),
    }


def _steps_of_one_call(epoch: Step, n: int) -> float:
    _wait(epoch())
    epoch_s = timeit(lambda: _wait(epoch()), number=1)
    return max(1.0, min(1.0, CHUNK_S / epoch_s) * n)


@jax.jit
def _slices(x, starts, slot):
    """Copy every batch of an epoch out of the images, as the compiled loop does, and nothing else."""
    return jax.lax.fori_loop(
        0, len(starts), lambda index, _: jax.lax.dynamic_slice(x, (starts[index], 0), slot.shape), slot
    )


def many_steps(subject: Subject) -> dict[str, StepExperiment]:
    """Return the experiments `many` and `many-tiny`: steps on one batch in a compiled loop."""

    def one(of: Subject) -> StepExperiment:
        return _in_a_loop(of, packed(of.parameters))

    return {"many": one(subject), "many-tiny": one(subject.tiny)}


def _in_a_loop(subject: Subject, parameters, logits: Callable = logits_of) -> StepExperiment:
    @jax.jit
    def many(parameters, x, y, rate, n):
        step = partial(sgd_step, logits=logits)
        return in_blocks(lambda _, p: step(p, x, y, rate)[0], 0, n, parameters, BLOCK[subject.device])

    there = (parameters, *subject.batch, np.float32(subject.training.learning_rate))
    there = jax.device_put(there, jax.devices(subject.device)[0])
    return in_one_call(lambda n: many(*there, n), _wait)


def convolutional_step(subject: Subject) -> Iterator[Row | None]:
    """Measure steps of the small convolutional network, in a compiled loop like `jax-epoch`'s, and its first call."""
    loop = _in_a_loop(subject, convolutional_parameters(), convolutional_logits)
    first_call_s = next(loop)
    yield None
    yield from interleaved({CONVOLUTIONAL: loop})
    yield row_of(f"{CONVOLUTIONAL}/{FIRST_CALL}", [first_call_s])


def kernels_of_step(subject: Subject) -> int:
    """Return the number of kernels that one compiled step launches."""
    parameters, rate = on_device(subject)
    text = jax.jit(sgd_step).lower(parameters, *subject.batch, rate).compile().as_text() or ""
    return kernels(text).total()


def on_device(subject: Subject):
    """Return parameters on the subject's device, packed for the compiled steps, and the learning rate."""
    target = jax.devices(subject.device)[0]
    return jax.device_put((packed(subject.parameters), np.float32(subject.training.learning_rate)), target)


SIDE, KERNEL, FILTERS = 28, 3, (32, 64)
LAYERS = Network((128,), n_inputs=(SIDE // 4) ** 2 * FILTERS[-1])  # after both convolutions


def convolutional_parameters() -> tuple:
    """Return He-normal float32 parameters: kernels (3, 3, inputs, filters), and layers packed for the JAX backends."""
    rng = np.random.default_rng(0)
    shapes = [(KERNEL, KERNEL, inputs, filters) for inputs, filters in zip((1, *FILTERS), FILTERS, strict=False)]
    kernels = [rng.standard_normal(shape, np.float32) * np.float32(np.sqrt(2 / np.prod(shape[:3]))) for shape in shapes]
    return kernels, packed(initial_parameters(LAYERS, 0))


def convolutional_logits(parameters, x):
    """Forward pass (batch, 784) → (batch, classes): twice convolution, ReLU and 2×2 pooling, then two layers."""
    kernels, layers = parameters
    x = x.reshape(len(x), SIDE, SIDE, 1)
    for kernel in kernels:
        x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu(x).reshape(len(x), x.shape[1] // 2, 2, x.shape[2] // 2, 2, -1)
        x = jnp.max(x, axis=(2, 4))  # (batch, side / 2, side / 2, filters)
    return logits_of(layers, x.reshape(len(x), -1))


SINE_ELEMENTS = 2**20
KINDS = ("product", "reduction", "elementwise", "fusion", "single")
NO_KERNEL = frozenset(["parameter", "constant", "tuple", "get-tuple-element", "bitcast"])
SHAPES = frozenset(["broadcast", "reshape", "iota"])
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?[\w.\-]+ = (?:\([^=]*\)|\S+) ([\w\-]+)\((.*)$")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+)[^=]*\{$")
_CALLED = re.compile(r"(?:to_apply|calls)=%?([\w.\-]+)")

Instruction = tuple[str, str]  # its kind, such as `dot`, and the rest of its line


def fusion_counts(device: str, batch_size: int, depth: int) -> Iterator[tuple[str, int]]:
    """Count the operations and kernels of a training step of 784→128→10, and of nested sines.

    Args:
        device: `cpu` or `gpu`.
        batch_size: Images in the step.
        depth: Number of nested sines.

    Yields:
        A name and its count: `PROGRAM/before/KIND`, `PROGRAM/after/KIND`, and `PROGRAM/inside/fusion`, the number of
        operations in the largest fusion.
    """
    target = jax.devices(device)[0]
    parameters, x, y, rate, elements = jax.device_put(
        (
            packed(initial_parameters(Network((128,)), 0)),
            np.zeros((batch_size, N_PIXELS), np.float32),
            np.zeros(batch_size, np.int32),
            np.float32(0.1),
            np.zeros(SINE_ELEMENTS, np.float32),
        ),
        target,
    )
    step, sine = jax.jit(sgd_step).lower(parameters, x, y, rate), jax.jit(nested_sine(jnp.sin, depth)).lower(elements)
    for name, lowered in (("step", step), ("sine", sine)):
        compiled = lowered.compile().as_text() or ""
        for when, found in ((BEFORE, operations(lowered.as_text(dialect="hlo"))), (AFTER, kernels(compiled))):
            yield from ((f"{name}/{when}/{kind}", found[kind]) for kind in KINDS if found[kind])
        yield f"{name}/{INSIDE}/fusion", largest_fusion(compiled)


def operations(text: str) -> Counter[str]:
    """Count the operations of an unoptimised program by kind: products, reductions, and elementwise operations.

    Args:
        text: HLO; called functions count at each call.
    """
    named = {"dot": "product", "reduce": "reduction"}
    return Counter(named.get(kind, "elementwise") for kind, _ in launched(text) if kind not in SHAPES)


def kernels(text: str) -> Counter[str]:
    """Count the launches of a compiled program: products, fusions of several operations, and single operations.

    Args:
        text: Compiled HLO. Library calls count as products, because in these programs they are.
    """
    found = Counter[str]()
    for kind, inside in launched(text):
        product = {"dot", "custom-call"} & {kind, *inside}
        found["product" if product else "fusion" if len(inside) > 1 else "single"] += 1
    return found


def largest_fusion(text: str) -> int:
    """Return the number of operations in the largest fusion of a compiled program; 0 if there is none."""
    return max((len(inside) for _, inside in launched(text)), default=0)


def launched(text: str) -> list[tuple[str, list[str]]]:
    """Return the kind of each operation that needs a kernel, and for fusions, their operations.

    Calls are followed: in a compiled program on a card they group kernels launched as one graph; on a processor they
    divide a kernel among threads.
    """
    computations, found = parsed(text), []

    def enter(name: str) -> None:
        for kind, rest in computations[name]:
            called = _CALLED.search(rest)
            if kind == "call" and called:
                enter(called[1])
            elif kind not in NO_KERNEL and not kind.endswith("-done"):  # `-start` has launched it
                inside = computations[called[1]] if kind == "fusion" and called else []
                found.append((kind, [one for one, _ in inside if one not in NO_KERNEL | SHAPES]))

    enter("ENTRY")
    return found


def parsed(text: str) -> dict[str, list[Instruction]]:
    """Return the instructions of each computation in an HLO text, by name; the main computation is `ENTRY`."""
    found: dict[str, list[Instruction]] = {"ENTRY": []}
    inside: list[Instruction] = []
    for line in text.splitlines():
        if not line.startswith(" ") and (begins := _COMPUTATION.match(line)):
            inside = found.setdefault("ENTRY" if begins[1] else begins[2], [])
        elif instruction := _INSTRUCTION.match(line):
            inside.append((instruction[1], instruction[2]))
    return found
