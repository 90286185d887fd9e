"""What a worker finds in its environment: its cards, its precision, and a person's own flags."""

import pytest

from lib.model.backends.registry import XLA_WITHOUT_WRONG_SUMS, Runtime, worker_environment
from lib.model.backends.with_jax import ROUNDED

WITH_WRONG_SUMS = "--xla_cpu_experimental_ynn_fusion_type=+reduce"


def test_a_gpu_worker_is_given_the_cards_by_uuid_and_a_cpu_worker_none(driver, monkeypatch):
    driver("570.86.10")
    assert worker_environment(Runtime("jax-epoch", "cpu"), None)["CUDA_VISIBLE_DEVICES"] == "-1"
    gpu = worker_environment(Runtime("keras-tensorflow", "gpu"), None)
    assert gpu["CUDA_VISIBLE_DEVICES"] == "GPU-11aa,GPU-22bb"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert worker_environment(Runtime("jax-epoch", "gpu"), None)["CUDA_VISIBLE_DEVICES"] == "GPU-22bb"
    assert gpu["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"


def test_every_library_of_a_gpu_worker_is_told_the_precision(driver):
    driver("570.86.10")
    plain = worker_environment(Runtime("jax-epoch", "gpu"), None)
    assert plain["NVIDIA_TF32_OVERRIDE"] == "0"
    assert (plain["JAX_DEFAULT_MATMUL_PRECISION"], plain["CUPY_TF32"]) == ("highest", "0")
    rounded = worker_environment(Runtime("jax-epoch", "gpu", "tf32"), None)
    assert "NVIDIA_TF32_OVERRIDE" not in rounded
    assert (rounded["JAX_DEFAULT_MATMUL_PRECISION"], rounded["CUPY_TF32"]) == ("TF32_TF32_F32", "1")
    assert "JAX_DEFAULT_MATMUL_PRECISION" not in worker_environment(Runtime("jax-epoch"), None)
    on_processor = worker_environment(Runtime("jax-epoch", "cpu", "bfloat16"), None)
    assert on_processor["JAX_DEFAULT_MATMUL_PRECISION"] == ROUNDED
    tensorflow = worker_environment(Runtime("keras-tensorflow", "gpu"), None)
    assert tensorflow["TF_CPP_MIN_LOG_LEVEL"] == "1", "why it does not use the card is a warning"


@pytest.mark.parametrize("runtime", [Runtime("jax-epoch"), Runtime("jax-step"), Runtime("keras-jax")])
def test_a_persons_own_flags_survive_and_count(monkeypatch, runtime):
    monkeypatch.setenv("XLA_FLAGS", f"--xla_dump_to=/nowhere {WITH_WRONG_SUMS}")
    for threads in (None, 1):
        flags = worker_environment(runtime, None, threads)["XLA_FLAGS"].split()
        assert flags[:3] == [
            XLA_WITHOUT_WRONG_SUMS,
            "--xla_dump_to=/nowhere",
            WITH_WRONG_SUMS,
        ], "the last of two counts"
    monkeypatch.delenv("XLA_FLAGS")
    assert XLA_WITHOUT_WRONG_SUMS in worker_environment(runtime, None)["XLA_FLAGS"]


def test_only_what_runs_on_jax_gets_its_flags(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    for key in ("numpy", "torch", "keras-tensorflow"):
        assert "XLA_FLAGS" not in worker_environment(Runtime(key), None)
