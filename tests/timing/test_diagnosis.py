import sys
from types import SimpleNamespace

import jax
import numba
import numpy as np
import pytest

from lib.model.backends.base import CannotTrain
from lib.model.backends.registry import BACKENDS, JAX_PRECISION, PRECISIONS, Runtime, unavailable
from lib.model.backends.with_jax import packed, sgd_step
from lib.model.spec import Training
from lib.sweeps.workers.messages import TrainingFailed
from lib.timing import diagnosis
from lib.timing.diagnosis import CardFacts, card_of
from tests.sweeps.workers.test_engine import run

# function: (figures with the finding, without it, numbers in the evidence, expected factor)
CASES = {
    diagnosis.compilation_counted: ([(6, 1, 1, 1)], [(1.05, 1, 1, 1)], ("2.25 s", "1.00 s", "6.0 s"), "2.2"),
    diagnosis.unsynchronised_timing: ([20e-6, 541e-6], [530e-6, 541e-6], ("540 μs", "20.0 μs"), "27"),
    diagnosis.tiny_work_on_a_gpu: ([2.8e-3, 0.14e-3], [2.8e-3, 1e-3], ("2.80 ms", "140 μs"), "20"),
    diagnosis.transfer_in_the_loop: ([0.5e-3, 1e-3], [0.05e-3, 1e-3], ("500 μs", "50%"), "2"),
    diagnosis.disturbed_measurement: ([0.25], [0.02], ("25%",), None),
}


@pytest.mark.parametrize("detector", CASES, ids=lambda detector: detector.__name__)
def test_a_finding_is_reported_only_when_it_applies(detector):
    wrong, right, numbers, factor = CASES[detector]
    found = detector(*wrong)
    assert all(number in found for number in numbers), found
    assert found.partition(" Expected: ")[2] == (f"a factor of {factor}." if factor else "")
    assert detector(*right) == ""


GPU = [backend.key for backend in BACKENDS.values() if "gpu" in backend.devices]


@pytest.fixture
def libraries(driver, monkeypatch):
    """Stand-ins for all libraries on a machine with an L4 of 7 bytes; tests may take the cards away."""
    driver("570.86.10")
    l4 = "NVIDIA L4"
    cards = [SimpleNamespace(name=l4, device_kind=l4, memory_stats=lambda: {"bytes_limit": 7})]
    matmul, jax_config = SimpleNamespace(allow_tf32=False), SimpleNamespace()

    def jax_devices(_kind):
        if not cards:
            raise RuntimeError("Unable to initialize backend 'cuda': libcudart.so.13 not found\nTraceback …")
        return cards

    def no_cuda() -> None:
        raise RuntimeError("Found no NVIDIA driver on your system")

    experimental = SimpleNamespace(
        enable_tensor_float_32_execution=lambda on: setattr(matmul, "allow_tf32", on),
        tensor_float_32_execution_enabled=lambda: matmul.allow_tf32,
        get_device_details=lambda one: {"device_name": one.name},
    )
    tf_config = SimpleNamespace(experimental=experimental, list_physical_devices=lambda _kind: cards)
    cuda = SimpleNamespace(
        is_available=lambda: bool(cards),
        init=no_cuda,
        device_count=lambda: len(cards),
        get_device_name=lambda number: cards[number].name,
        get_device_properties=lambda _: SimpleNamespace(total_memory=7),
    )
    torch = SimpleNamespace(
        set_float32_matmul_precision=lambda name: setattr(matmul, "allow_tf32", name == "high"),
        backends=SimpleNamespace(cuda=SimpleNamespace(matmul=matmul)),
        cuda=cuda,
    )
    runtime = SimpleNamespace(
        getDeviceCount=lambda: len(cards),
        getDeviceProperties=lambda number: {"name": cards[number].name.encode()},
        memGetInfo=lambda: (5, 7),
    )
    context = SimpleNamespace(get_memory_info=lambda: (5, 7))
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(devices=jax_devices, config=jax_config))
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(config=tf_config))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
    numba_cuda = SimpleNamespace(gpus=cards, current_context=lambda: context)
    monkeypatch.setattr(numba, "cuda", numba_cuda, raising=False)
    return SimpleNamespace(cards=cards, jax=jax_config)


def asked(libraries, monkeypatch, runtime: Runtime) -> CardFacts | None:
    """Ask as a worker would, with the settings that libraries read from the environment when imported."""
    libraries.jax.jax_default_matmul_precision = JAX_PRECISION[runtime.precision]
    monkeypatch.setenv("CUPY_TF32", str(int(runtime.precision == "tf32")))
    return card_of(runtime)


@pytest.mark.parametrize("key", GPU)
def test_the_library_names_its_card_driver_and_precision(key, libraries, monkeypatch):
    memory_bytes = 0 if BACKENDS[key].worker == "keras-tensorflow" else 7  # TensorFlow does not say
    for precision in BACKENDS[key].precisions:
        facts = asked(libraries, monkeypatch, Runtime(key, "gpu", precision))
        assert facts == CardFacts("NVIDIA L4", "570.86.10", precision, memory_bytes)


REASONS = {
    "jax": r" It says: Unable to initialize backend 'cuda': libcudart\.so\.13 not found$",
    "torch": r" It says: Found no NVIDIA driver",
}


@pytest.mark.parametrize("key", GPU)
def test_a_library_that_sees_no_card_is_refused_with_its_reason(key, libraries, monkeypatch):
    libraries.cards.clear()
    refused = r"sees none, so it is not used\. The driver lists 2 GPUs, but the framework sees 0.*"
    with pytest.raises(CannotTrain, match=refused + REASONS.get(BACKENDS[key].worker, "")):
        asked(libraries, monkeypatch, Runtime(key, "gpu"))


def test_a_library_with_the_wrong_precision_is_refused(libraries, monkeypatch):
    libraries.jax.jax_default_matmul_precision = "None"  # the user's own default
    with pytest.raises(CannotTrain, match="multiplies in None instead of float32"):
        card_of(Runtime("jax-epoch", "gpu"))
    monkeypatch.setenv("CUPY_TF32", "1")
    with pytest.raises(CannotTrain, match=r"multiplies in tf32 instead of float32.*CUPY_TF32"):
        card_of(Runtime("cupy", "gpu"))


def test_card_facts_are_asked_only_for_a_gpu():
    assert card_of(Runtime("keras-tensorflow")) is None
    assert set(diagnosis._ASK) == {BACKENDS[key].worker for key in GPU}, "every library that runs on a GPU is asked"


@pytest.mark.parametrize("precision", PRECISIONS)
def test_compiled_products_have_the_requested_precision(precision):
    layers = packed([(np.ones((4, 3), np.float32), np.ones(3, np.float32))])
    x, y = np.ones((2, 4), np.float32), np.zeros(2, np.int32)
    with jax.default_matmul_precision(JAX_PRECISION[precision]):
        lowered = jax.jit(sgd_step).trace(layers, x, y, np.float32(0.1)).lower(lowering_platforms=("cuda",))
    products = [line for line in lowered.as_text().splitlines() if "dot_general" in line]
    expected = {"float32": "precision = [HIGHEST, HIGHEST]", "tf32": "= tf32", "bfloat16": "= bf16"}[precision]
    assert products
    assert all(expected in line for line in products)


@pytest.mark.slow
@pytest.mark.parametrize("key", [pytest.param("keras-tensorflow", marks=pytest.mark.release), "jax-epoch"])
def test_a_gpu_worker_without_a_card_refuses_to_train(lone_engine, key):
    if unavailable(Runtime(key)) is not None:
        pytest.skip(f"{key} is not installed")
    with pytest.raises(TrainingFailed, match="was asked to use a GPU but sees none, so it is not used"):
        run(lone_engine, Runtime(key, "gpu"), [Training(epochs=1)])
    assert lone_engine.pids() == {}, "it was not kept"
