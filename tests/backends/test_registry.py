"""The table of backends: what can run here and why not, and what a worker finds in its environment."""

import pytest

import lib.backends.registry as table
from lib.backends import cuda
from lib.backends.environments import Environment
from lib.backends.registry import (
    BACKENDS,
    XLA_WITHOUT_WRONG_SUMS,
    Runtime,
    all_runtimes,
    unavailable,
    versions,
    worker_environment,
)
from lib.hardware.nvidia_smi import Card

WITH_WRONG_SUMS = "--xla_cpu_experimental_ynn_fusion_type=+reduce"


def test_the_table_says_why_a_runtime_is_missing(monkeypatch):
    monkeypatch.setattr(table, "_installed", lambda _, name: name != "tensorflow")
    monkeypatch.setattr(table, "nvidia_driver_answers", lambda: False)
    gap = unavailable(Runtime("keras-tensorflow"))
    assert gap is not None
    assert "tensorflow is not installed" in gap.reason
    assert "pip install" in gap.remedy
    gpu = unavailable(Runtime("jax-epoch", "gpu"))
    assert gpu is not None
    assert "no NVIDIA driver" in gpu.reason
    assert unavailable(Runtime("numpy")) is None
    monkeypatch.setattr(table, "nvidia_driver_answers", lambda: True)
    hidden = unavailable(Runtime("jax-epoch", "gpu"))
    assert hidden is not None
    assert "hides every graphics card" in hidden.reason
    monkeypatch.setattr(table, "cards", lambda: (Card("GPU-11aa", "NVIDIA L4", "570.86.10"),))
    monkeypatch.setattr(table, "_installed", lambda _, name: "cuda" not in name)
    without_cuda = unavailable(Runtime("jax-epoch", "gpu"))
    assert without_cuda is not None
    assert "make install" in without_cuda.remedy


def test_a_gpu_worker_is_given_the_cards_by_uuid_and_a_cpu_worker_none(driver, monkeypatch):
    driver("570.86.10")
    assert worker_environment(Runtime("jax-epoch", "cpu"), None)["CUDA_VISIBLE_DEVICES"] == "-1"
    gpu = worker_environment(Runtime("keras-tensorflow", "gpu"), None)
    assert gpu["CUDA_VISIBLE_DEVICES"] == "GPU-11aa,GPU-22bb"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert worker_environment(Runtime("jax-epoch", "gpu"), None)["CUDA_VISIBLE_DEVICES"] == "GPU-22bb"
    assert gpu["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"


def test_unknown_runtimes_are_refused():
    with pytest.raises(ValueError, match="backend: expected one of"):
        Runtime("torch7")
    with pytest.raises(ValueError, match="device: expected cpu or gpu"):
        Runtime("numpy", "tpu")
    with pytest.raises(ValueError, match="precision: expected float32, got 'tf32'"):
        Runtime("jax-epoch", "cpu", "tf32")
    with pytest.raises(ValueError, match="precision: expected float32 or tf32, got 'bfloat16'"):
        Runtime("torch", "gpu", "bfloat16")
    for name in ("address", "label"):
        assert len({getattr(runtime, name) for runtime in all_runtimes()}) == len(all_runtimes())


def test_rounded_products_are_runtimes_of_their_own_where_the_card_has_them(driver, monkeypatch):
    assert {runtime.precision for runtime in all_runtimes()} == {"float32"}, "there is no card"
    driver("570.86.10")  # its first card is an L4
    rounded = [runtime for runtime in all_runtimes() if runtime.precision != "float32"]
    assert "JAX, one call an epoch, GPU, TF32" in [runtime.label for runtime in rounded]
    assert {BACKENDS[runtime.backend].worker for runtime in rounded if runtime.precision == "bfloat16"} == {"jax"}
    assert all(runtime.device == "gpu" for runtime in rounded)
    assert [runtime.place for runtime in all_runtimes()] == sorted(runtime.place for runtime in all_runtimes())
    one = Runtime("jax-step", "gpu", "tf32")
    assert (one.address, one.process) == ("jax-step/gpu/tf32", "jax/gpu/tf32")
    assert one.process == Runtime("jax-epoch", "gpu", "tf32").process != Runtime("jax-epoch", "gpu").process
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")  # a T4, which has neither
    assert {runtime.precision for runtime in all_runtimes()} == {"float32"}


def test_every_library_of_a_gpu_worker_is_told_the_precision(driver):
    driver("570.86.10")
    plain = worker_environment(Runtime("jax-epoch", "gpu"), None)
    assert plain["NVIDIA_TF32_OVERRIDE"] == "0"
    assert (plain["JAX_DEFAULT_MATMUL_PRECISION"], plain["CUPY_TF32"]) == ("highest", "0")
    rounded = worker_environment(Runtime("jax-epoch", "gpu", "tf32"), None)
    assert "NVIDIA_TF32_OVERRIDE" not in rounded
    assert (rounded["JAX_DEFAULT_MATMUL_PRECISION"], rounded["CUPY_TF32"]) == ("TF32_TF32_F32", "1")
    assert "JAX_DEFAULT_MATMUL_PRECISION" not in worker_environment(Runtime("jax-epoch"), None)
    tensorflow = worker_environment(Runtime("keras-tensorflow", "gpu"), None)
    assert tensorflow["TF_CPP_MIN_LOG_LEVEL"] == "1", "why it does not use the card is a warning"


def test_a_runtime_says_what_to_do_about_it(driver, monkeypatch):
    driver("470.82.01")
    monkeypatch.setitem(cuda.BUILDS, "jax", lambda _: 12)
    gap = unavailable(Runtime("jax-epoch", "gpu"))
    assert gap is not None
    assert "driver 525 or newer" in gap.reason
    assert gap.remedy == "update the driver"
    driver("570.86.10")
    assert unavailable(Runtime("jax-epoch", "gpu")) is None
    monkeypatch.setitem(cuda.BUILDS, "jax", lambda _: None)
    gap = unavailable(Runtime("jax-epoch", "gpu"))
    assert gap is not None
    assert "without CUDA" in gap.reason


def test_what_knows_only_cards_is_not_offered_on_a_processor(monkeypatch):
    monkeypatch.setattr(table, "_installed", lambda *_: True)
    gap = unavailable(Runtime("cupy"))
    assert gap is not None
    assert "graphics cards only" in gap.reason
    monkeypatch.setattr(table.shutil, "which", lambda _: None)
    gap = unavailable(Runtime("torch-compiled"))
    assert gap is not None
    assert "compiles with g++" in gap.reason


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


def test_versions_name_the_library_once_by_whichever_package_holds_it(monkeypatch):
    installed = {"numpy": "2.1.0", "tensorflow-cpu": "2.21.0", "cupy-cuda12x": "14.0.0"}
    monkeypatch.setattr(Environment, "version", lambda _, name: installed.get(name, ""))
    versions.cache_clear()
    try:
        assert versions(Runtime("keras-tensorflow")).split(", ")[1:] == ["numpy 2.1.0", "tensorflow 2.21.0"]
        assert versions(Runtime("cupy")).endswith(", numpy 2.1.0, cupy 14.0.0")
        assert versions(Runtime("numpy")).startswith("python 3.")
    finally:
        versions.cache_clear()
