"""An epoch in one launch, on the small card of `tests.cuda_stand_in`, which runs blocks concurrently."""

from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest

from lib.model.backends import reference
from lib.model.backends.base import CannotTrain, initial_parameters
from lib.model.spec import Network, Training
from tests import cuda_stand_in
from tests.cuda_stand_in import in_numba_cudas_place
from tests.model.backends.comparing import assert_near, losses_of
from tests.model.programs import said_by

SHORT = Training(Network((9, 5)), 0.1, 64, epochs=1)
# Numba's own simulator allows one cooperative block. It knows neither the number of multiprocessors nor the limit of
# shared memory, and does not accept `forceinline`.
SIMULATED = """
from types import SimpleNamespace
import numpy as np
from numba import cuda
from numba.cuda.simulator.kernel import FakeOverload
card = SimpleNamespace(MULTIPROCESSOR_COUNT=1, MAX_SHARED_MEMORY_PER_BLOCK=48 * 1024)
cuda.get_current_device = lambda: card
FakeOverload.max_cooperative_grid_blocks = lambda *_: 1
plain = cuda.jit
cuda.jit = lambda *arguments, forceinline=False, **options: plain(*arguments, **options)
from lib.model.backends import reference, with_numba_cuda
from lib.model.spec import Network, Training
from tests.model.backends.comparing import losses_of
from tests.model.backends.test_backends import ODD, odd_data
with_numba_cuda.THREADS, with_numba_cuda.LANES = 4, 2
for hidden in ((6, 3), (4,), ()):
    training, data = Training(Network(hidden, 5, 3), 0.1, 20, epochs=1, data=ODD), odd_data(5, 3)
    events = list(with_numba_cuda.train(training, data))
    losses = losses_of(events)
    expected, parameters = reference.train(training, data, len(losses))
    found = [array for layer in events[-1].parameters() for array in layer]
    wanted = [array for layer in parameters for array in layer]
    print(max(np.abs(one - other).max() for one, other in zip([losses, *found], [expected, *wanted], strict=True)))
"""
COMPILED = """
import sys
from types import SimpleNamespace
from numba import cuda
from numba.cuda import compile_ptx
from numba.cuda import dispatcher
from lib.model.backends import with_numba_cuda
from lib.model.spec import Network
capability = tuple(map(int, sys.argv[1].split(".")))
dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=capability)
kernels = []
with_numba_cuda.cuda.jit = lambda _: kernels.append
for hidden, size in (((128,), 32), ((256, 128, 64), 1)):
    with_numba_cuda.compiled(with_numba_cuda.plan(Network(hidden), size, 132, 48 * 1024, 256, 64))
    ptx, _ = compile_ptx(kernels.pop(), with_numba_cuda.SIGNATURE.args, cc=capability)
    print(".target sm_%d%d" % capability in ptx, "cudaCGSynchronize" in ptx, "ld.local" in ptx, ".f64" in ptx)
"""


@pytest.fixture(scope="module", autouse=True)
def module():
    with in_numba_cudas_place():
        import lib.model.backends.with_numba_cuda as found

        yield found


@pytest.mark.slow
def test_training_is_bit_identical_for_any_number_of_blocks(module, small_data, monkeypatch):
    first, second = (list(module.train(SHORT, small_data)) for _ in range(2))
    monkeypatch.setattr(cuda_stand_in, "PROCESSORS", 1)
    alone = list(module.train(SHORT, small_data))
    for other in (second, alone):
        np.testing.assert_array_equal(losses_of(first), losses_of(other))
        assert_near(first[-1].parameters(), other[-1].parameters(), rtol=0)


def test_neurons_are_divided_so_that_all_blocks_run_at_once(module):
    plan = module.plan(Network((128,)), 32, 132, 48 * 1024, 256, 64)
    assert (plan.blocks, plan.each, plan.loss_in_shared) == (32, (4,), True)
    assert module.plan(Network((1024,)), 1, 132, 48 * 1024, 256, 64).blocks == 128
    assert module.plan(Network((256, 128, 64)), 1, 132, 48 * 1024, 256, 64).each == (4, 2, 1)
    assert module.plan(Network(()), 1, 132, 48 * 1024, 256, 64).blocks == 1
    large = module.plan(Network((128,)), 4096, 132, 48 * 1024, 256, 64)
    assert not large.loss_in_shared
    assert large.shared_bytes <= 48 * 1024


def test_a_batch_with_logits_beyond_shared_memory_trains(module, small_data, monkeypatch):
    monkeypatch.setattr(cuda_stand_in, "SHARED_BYTES", 16_000)
    training = replace(SHORT, batch_size=320)
    assert not module.plan(training.network, 320, 3, 16_000, module.THREADS, module.LANES).loss_in_shared
    expected, _ = reference.train(training, small_data, 2)
    np.testing.assert_allclose(losses_of(module.train(training, small_data)), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("network", "shared_bytes", "says"),
    [
        (Network((8,)), 2_000, r"shared memory: expected at least 3,716 bytes a block for a neuron of 784 inputs"),
        (Network((30,)), 10_000, r"needs 10 blocks to run at once, but this card runs 6 with .*; choose fewer neurons"),
    ],
)
def test_oversized_networks_name_the_limit(module, small_data, monkeypatch, network, shared_bytes, says):
    monkeypatch.setattr(cuda_stand_in, "SHARED_BYTES", shared_bytes)
    with pytest.raises(CannotTrain, match=says):
        next(module.train(replace(SHORT, network=network), small_data))


@pytest.mark.parametrize("name", ["copies", "outgoing"])
def test_differing_copies_of_weights_are_detected(module, small_data, name):
    divided = module.plan(SHORT.network, 64, 3, 48 * 1024, module.THREADS, module.LANES)
    current = module.CardArrays(divided, initial_parameters(SHORT.network, 0))
    current.parameters()
    getattr(current, name)[3] += 0.01
    with pytest.raises(RuntimeError, match="in all 3 blocks, but they differ"):
        current.parameters()


@pytest.mark.slow
def test_numbas_own_simulator_agrees_with_float64():
    found = list(map(float, said_by(SIMULATED, NUMBA_ENABLE_CUDASIM="1").split()))
    assert len(found) == 3
    assert max(found) < 1e-5


@pytest.mark.release
@pytest.mark.skipif(
    not find_spec("numba_cuda"), reason="numba-cuda, which compiles for cards, is not installed (requirements-gpu.txt)"
)
@pytest.mark.parametrize("capability", ["8.0", "8.9", "9.0"])
def test_kernels_compile_without_a_card(capability):
    assert said_by(COMPILED, capability) == "True True False False\n" * 2
