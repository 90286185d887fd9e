"""Every kernel against NumPy in float64, on a software adapter; and what an adapter refuses."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.model.backends.base import CannotTrain, initial_parameters
from lib.model.data.mnist import batch_starts
from lib.model.hardware.webgpu import SOFTWARE
from lib.model.spec import N_CLASSES, N_PIXELS, Network
from tests.software_adapter import needs_software_adapter

pytestmark = needs_software_adapter

N_IMAGES = 100
RNG = np.random.default_rng(5)
X, Y = RNG.random((N_IMAGES, N_PIXELS), np.float32), RNG.integers(0, N_CLASSES, N_IMAGES).astype(np.int32)


@pytest.fixture(scope="module")
def gpu():
    from lib.model.backends.with_webgpu import gpu

    return gpu(SOFTWARE)


@pytest.fixture(scope="module")
def images(gpu):
    from lib.model.backends.with_webgpu import Images

    return Images.upload(gpu, X, Y)


def execution(gpu, images, program, most_steps=40):
    from lib.model.backends.with_webgpu import Execution

    return Execution(gpu, program, images, most_steps, "This network")


class OneOperation:
    """What an operation makes of the memory, in float64, read from its fields alone."""

    def __init__(self, operation, memory: np.ndarray, first_image: int) -> None:
        from lib.model.backends.webgpu import FIELDS, NOTHING

        self.field: dict[str, int] = dict(zip(FIELDS, operation.words, strict=True))
        self.given = {name for name, word in self.field.items() if word != NOTHING}
        self.memory, self.first_image = memory, first_image
        getattr(self, operation.kernel)()

    def matrix(self, name: str, rows: int, columns: int) -> np.ndarray:
        """A part of the memory, to be read or written."""
        first = self.field[name]
        return self.memory[first : first + rows * columns].reshape(rows, columns)

    def factor(self, name: str, rows: int, columns: int) -> np.ndarray:
        by_row, by_column = self.field[f"{name}_by_row"], self.field[f"{name}_by_column"]
        places = np.arange(rows)[:, None] * by_row + np.arange(columns) * by_column
        inside = np.minimum(self.field[name] + places, len(self.memory) - 1)  # a row of ones lies nowhere
        return self.memory[inside]

    def batch(self) -> None:
        rows = self.field["rows"]
        self.matrix("result", rows, N_PIXELS)[:] = X[self.first_image : self.first_image + rows]

    def product(self) -> None:
        rows, columns, inner = (self.field[name] for name in ("rows", "columns", "inner"))
        left = self.factor("left", rows, inner)
        if "row_of_ones" in self.given:
            left[self.field["row_of_ones"]] = 1
        self.end(left @ self.factor("right", inner, columns))

    def product_and_loss(self) -> None:
        self.product()
        self.loss()

    def elements(self) -> None:
        self.end(self.matrix("left", self.field["rows"], self.field["columns"]).copy())

    def end(self, values: np.ndarray | None = None) -> None:
        if values is None:
            return  # the end of a step leaves the memory as it is
        from lib.model.backends.webgpu import DESCEND, RELU, RELU_GRADIENT

        rows, columns = values.shape
        if "biases" in self.given:
            values = values + self.matrix("biases", 1, columns)
        result, ending = self.matrix("result", rows, columns), self.field["ending"]
        if ending == RELU:
            values = np.maximum(values, 0)
        elif ending == RELU_GRADIENT:
            values = values * (self.matrix("mask", rows, columns) > 0)
        elif ending == DESCEND:
            values = result - self.memory[self.field["rate"]] * values
        result[:] = values

    def loss(self) -> None:
        rows, columns = self.field["rows"], self.field["columns"]
        logits = self.matrix("result", rows, columns)
        y = Y[self.first_image : self.first_image + rows]
        shares = np.exp(logits - logits.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        losses = self.matrix("losses", 2, rows)
        losses[0] = -np.log(shares[np.arange(rows), y])
        losses[1] = logits.argmax(1) == y
        self.matrix("gradient", rows, columns)[:] = (shares - np.eye(columns)[y]) / rows


@pytest.mark.slow
@settings(max_examples=12)
@given(
    hidden=st.lists(st.integers(1, 70), max_size=3),
    batch_size=st.integers(1, 70),
    fused=st.booleans(),
    seed=st.integers(0, 9),
)
def test_every_operation_agrees_with_float64_and_writes_nothing_else(gpu, images, hidden, batch_size, fused, seed):
    from lib.model.backends.webgpu import step

    network, rng = Network(tuple(hidden)), np.random.default_rng(seed)
    running = execution(gpu, images, step(network, batch_size, fused))
    running.set(initial_parameters(network, seed), 0.5)
    starts = rng.integers(0, N_IMAGES - batch_size + 1, 3)
    running.schedule(starts)

    def memory() -> np.ndarray:
        return np.frombuffer(gpu.queue.read_buffer(running.memory), np.float32).astype(np.float64)

    for index, operation in enumerate(running.program.operations):
        expected = OneOperation(operation, memory(), int(starts[0])).memory
        running.submit(index)
        np.testing.assert_allclose(memory(), expected, rtol=2e-5, atol=2e-6, err_msg=operation.name)
    losses = running.read("losses")
    (loss, correct), *_ = running.results(0, 1).tolist()
    assert loss == pytest.approx(losses[0].mean(dtype=np.float64), rel=1e-5)
    assert correct == losses[1].sum()


@pytest.mark.slow
@settings(max_examples=5)
@given(hidden=st.lists(st.integers(1, 40), max_size=2), batch_size=st.integers(1, 50))
def test_every_way_of_launching_makes_the_same_steps(gpu, images, hidden, batch_size):
    """To the bit, as each number is the sum of the same numbers in the same order."""
    from lib.model.backends.webgpu import step
    from lib.model.backends.with_webgpu import LAUNCHES

    network, found = Network(tuple(hidden)), []
    starts = batch_starts(N_IMAGES, batch_size, 3, 0)[:5]
    for launch in LAUNCHES.values():
        running = execution(gpu, images, step(network, batch_size))
        running.set(initial_parameters(network, 3), 0.1)
        running.schedule(starts)
        for part in (len(starts) // 2, len(starts) - len(starts) // 2):
            if part:
                launch(running, part)
        found.append((running.results(0, len(starts)), running.parameters()))
    for results, parameters in found[1:]:
        np.testing.assert_array_equal(results, found[0][0])
        for layer, first in zip(parameters, found[0][1], strict=True):
            np.testing.assert_array_equal(layer[0], first[0])
            np.testing.assert_array_equal(layer[1], first[1])


@pytest.mark.slow
def test_one_kernel_is_given_no_more_steps_than_a_software_adapter_makes(gpu, images):
    """llvmpipe leaves all loops of a kernel after 65,535 turns: a later step would be missing, and nothing said."""
    from lib.model.backends.webgpu import step

    found, n = [], 160
    for launch in ("one_submission", "one_kernel"):
        running = execution(gpu, images, step(Network(()), 1), n)
        running.set(initial_parameters(Network(()), 0), 0.1)
        running.schedule(np.arange(n) % N_IMAGES)
        getattr(running, launch)(n)
        found.append(running.results(0, n))
    np.testing.assert_array_equal(*found)
    too_large = execution(gpu, images, step(Network((2048,)), 100))
    with pytest.raises(CannotTrain, match=r"after 65,535 turns, and a step takes up to \d+,\d+; choose a smaller"):
        too_large.one_kernel(1)


def test_what_fills_the_last_slice_of_an_evaluation_counts_for_nothing(gpu):
    from lib.model.backends.webgpu import evaluation
    from lib.model.backends.with_webgpu import Images

    network, slice_size, n = Network((7,)), 40, 97
    running = execution(gpu, Images.upload(gpu, X[:n], Y[:n], multiple=slice_size), evaluation(network, slice_size))
    parameters = initial_parameters(network, 0)
    running.set(parameters, 0.0)
    running.schedule(np.arange(0, n, slice_size))
    running.one_submission(3)
    losses, correct = running.results(0, 3).sum(0) * (slice_size, 1)
    (weights, biases), (weights_2, biases_2) = [(w.astype(float), b.astype(float)) for w, b in parameters]
    logits = np.maximum(X[:n] @ weights + biases, 0) @ weights_2 + biases_2
    log_sum = np.log(np.exp(logits).sum(1))
    assert losses == pytest.approx((log_sum - logits[np.arange(n), Y[:n]]).sum(), rel=1e-5)
    assert correct == (logits.argmax(1) == Y[:n]).sum()


def test_a_network_beyond_the_adapters_limit_is_refused_by_the_figure(gpu, images, monkeypatch):
    from lib.model.backends.webgpu import step

    def allocate(**_):
        raise AssertionError("it was allocated")

    monkeypatch.setattr(gpu.device, "create_buffer", allocate)
    monkeypatch.setattr(gpu, "largest_bytes", 2**27)
    program = step(Network((4096,) * 8), 4096)
    with pytest.raises(CannotTrain, match=r"This network needs one buffer of 1,\d+ MiB, and .* allows at most 128 MiB"):
        execution(gpu, images, program)


def test_what_wgpu_says_comes_in_one_line_and_of_its_kind():
    import wgpu

    from lib.model.backends.with_webgpu import errors_in_one_line

    with pytest.raises(MemoryError, match=r"^Not enough memory left$"), errors_in_one_line():
        raise wgpu.GPUOutOfMemoryError("Not enough\n  memory left")
    with pytest.raises(RuntimeError, match=r"^Validation Error Caused by: In wgpuQueueSubmit$"), errors_in_one_line():
        raise wgpu.GPUValidationError("Validation Error\n\nCaused by:\n  In wgpuQueueSubmit")


def test_a_kernel_that_does_not_compile_says_what_the_driver_says(gpu, monkeypatch):
    from lib.model.backends import with_webgpu as module

    broken = {name: text.replace("fn end_step", "fn end_of_step") for name, text in module.sources().items()}
    monkeypatch.setattr(module, "sources", lambda: broken)
    monkeypatch.setattr(gpu, "_modules", {})
    monkeypatch.setattr(gpu, "_pipelines", {})
    with pytest.raises(CannotTrain, match=r"does not compile the kernel “steps” \(whole_steps\.wgsl\).*end_step"):
        gpu.pipeline("steps")
