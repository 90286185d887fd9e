"""The table of backends: what can run here, and why not."""

import pytest

import lib.model.backends.registry as table
from lib.model.backends.registry import (
    ADAPTERS,
    BACKENDS,
    BUILDS,
    IN_A_BROWSER,
    Environment,
    Runtime,
    all_runtimes,
    unavailable,
    versions,
)
from lib.model.hardware import webgpu
from lib.model.hardware.nvidia import Card


def why_not(runtime):
    gap = unavailable(runtime)
    assert gap is not None
    return gap


def test_the_table_says_why_a_runtime_is_missing(monkeypatch):
    monkeypatch.setattr(table, "_installed", lambda _, name: name != "tensorflow")
    monkeypatch.setattr(table, "nvidia_driver_answers", lambda: False)
    gap = why_not(Runtime("keras-tensorflow"))
    assert "tensorflow is not installed" in gap.reason
    assert "pip install" in gap.remedy
    assert "no NVIDIA driver" in why_not(Runtime("jax-epoch", "gpu")).reason
    assert unavailable(Runtime("numpy")) is None
    monkeypatch.setattr(table, "nvidia_driver_answers", lambda: True)
    assert "hides every graphics card" in why_not(Runtime("jax-epoch", "gpu")).reason
    monkeypatch.setattr(table, "cards", lambda: (Card("GPU-11aa", "NVIDIA L4", "570.86.10"),))
    monkeypatch.setattr(table, "_installed", lambda _, name: "cuda" not in name)
    assert "make install" in why_not(Runtime("jax-epoch", "gpu")).remedy


def test_unknown_runtimes_are_refused():
    with pytest.raises(ValueError, match="backend: expected one of"):
        Runtime("torch7")
    with pytest.raises(ValueError, match="device: expected cpu or gpu"):
        Runtime("numpy", "tpu")
    with pytest.raises(ValueError, match="precision: expected float32 or bfloat16, got 'tf32'"):
        Runtime("jax-epoch", "cpu", "tf32")
    with pytest.raises(ValueError, match="precision: expected float32 or tf32, got 'bfloat16'"):
        Runtime("torch", "gpu", "bfloat16")
    for name in ("address", "label"):
        assert len({getattr(runtime, name) for runtime in all_runtimes()}) == len(all_runtimes())


def test_rounded_products_are_runtimes_of_their_own_where_the_card_has_them(driver, monkeypatch):
    monkeypatch.setattr(table, "multiplies_bfloat16", lambda: False)
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


def test_a_processor_that_multiplies_bfloat16_has_a_row_of_it(monkeypatch):
    monkeypatch.setattr(table, "multiplies_bfloat16", lambda: True)
    (rounded,) = [runtime for runtime in all_runtimes() if runtime.precision != "float32"]
    assert (rounded.label, rounded.address) == ("JAX, one call an epoch, bfloat16", "jax-epoch/cpu/bfloat16")
    assert rounded.process != Runtime().process, "its worker's environment says the precision"
    with pytest.raises(ValueError, match="precision: expected float32, got 'bfloat16'"):
        Runtime("numpy", "cpu", "bfloat16")


def test_a_runtime_says_what_to_do_about_it(driver, monkeypatch):
    driver("470.82.01")
    monkeypatch.setitem(BUILDS, "jax", lambda _: 12)
    gap = why_not(Runtime("jax-epoch", "gpu"))
    assert "driver 525 or newer" in gap.reason
    assert gap.remedy == "update the driver"
    driver("570.86.10")
    assert unavailable(Runtime("jax-epoch", "gpu")) is None
    monkeypatch.setitem(BUILDS, "jax", lambda _: None)
    assert "without CUDA" in why_not(Runtime("jax-epoch", "gpu")).reason


@pytest.fixture
def adapters(monkeypatch):
    """WebGPU finds what the test says, and is installed: `adapters("integrated", "VirtualGPU")`."""

    def found(*kinds: str) -> None:
        listed = tuple(webgpu.Adapter(kind, f"a {kind}", "somebody", "1.2") for kind in kinds)
        monkeypatch.setattr(webgpu, "asked", lambda _: listed)

    monkeypatch.setattr(table, "_installed", lambda *_: True)
    monkeypatch.delenv(webgpu.SOFTWARE_ALLOWED, raising=False)
    found()
    return found


def test_each_kind_of_adapter_is_a_device_of_its_own(adapters):
    adapters("integrated", "discrete")
    by_webgpu = [runtime for runtime in all_runtimes() if runtime.device in ADAPTERS]
    assert len(by_webgpu) == 2 * len([one for one in BACKENDS.values() if one.devices == ADAPTERS])
    assert all(unavailable(runtime) is None and runtime.on_gpu for runtime in by_webgpu)
    assert "WebGPU, one submission a step, integrated GPU" in [runtime.label for runtime in by_webgpu]
    assert len({runtime.process for runtime in by_webgpu}) == 2
    assert [runtime.place for runtime in all_runtimes()] == sorted(runtime.place for runtime in all_runtimes())
    assert why_not(Runtime("jax-epoch", "discrete")).reason == "it runs on cpu and gpu only"


def test_a_software_adapter_is_none_of_them_unless_somebody_asks_for_it(adapters, monkeypatch):
    adapters("software")
    on_it = Runtime("webgpu-step", "software")
    assert {runtime.device for runtime in all_runtimes()} == {"cpu", "gpu", "discrete"}
    gap = why_not(on_it)
    assert "says nothing of a GPU's speed" in gap.reason
    assert gap.remedy.startswith("set WEBGPU_SOFTWARE=1")
    monkeypatch.setenv(webgpu.SOFTWARE_ALLOWED, "1")
    assert unavailable(on_it) is None
    assert on_it in all_runtimes()
    assert not on_it.on_gpu
    assert on_it.label.endswith("software adapter")


def test_without_an_adapter_or_with_one_of_unknown_type_it_is_said(adapters, monkeypatch):
    (gap,) = {unavailable(runtime) for runtime in all_runtimes() if runtime.device in ADAPTERS}
    assert gap is not None
    assert gap.reason == "WebGPU finds no discrete GPU on this machine"
    adapters("VirtualGPU")
    assert "only a VirtualGPU, of which nobody can say what it is" in why_not(Runtime("webgpu-step", "discrete")).reason
    monkeypatch.setattr(table, "_installed", lambda *_: False)
    assert why_not(Runtime("webgpu-step", "discrete")).reason == "wgpu is not installed"


def test_the_driver_of_an_adapter_is_among_the_versions(adapters):
    adapters("integrated")
    versions.cache_clear()
    try:
        assert versions(Runtime("webgpu-step", "integrated")).endswith(", a integrated 1.2")
    finally:
        versions.cache_clear()


def test_what_knows_only_cards_is_not_offered_on_a_processor(monkeypatch):
    monkeypatch.setattr(table, "_installed", lambda *_: True)
    assert "graphics cards only" in why_not(Runtime("cupy")).reason
    monkeypatch.setattr(table.shutil, "which", lambda _: None)
    assert "compiles with g++" in why_not(Runtime("torch-compiled")).reason


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


def test_what_trains_in_a_browser_has_rows_and_no_worker():
    for key, trainer in IN_A_BROWSER.items():
        runtime = Runtime(key)
        assert (runtime.label, runtime.color, runtime.on_gpu) == (trainer.label, trainer.color, False)
        assert runtime not in all_runtimes()
        with pytest.raises(ValueError, match="expected cpu"):
            Runtime(key, "gpu")
    assert len(IN_A_BROWSER.keys() & BACKENDS.keys()) == 0
    for only_there in (*map(Runtime, IN_A_BROWSER), Runtime("webgpu-step", webgpu.BROWSER)):
        gap = unavailable(only_there)
        assert gap is not None
        assert "only a browser" in gap.reason
