import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from lib.model.hardware import webgpu
from lib.model.hardware.webgpu import BROWSER, KINDS, SOFTWARE, SOFTWARE_ALLOWED, Adapter, adapters
from tests.software_adapter import needs_software_adapter

LISTED = [
    Adapter("integrated", "Intel Iris Xe", "intel", "Mesa 25.2"),
    Adapter("discrete", "NVIDIA RTX 4070", "nvidia", "580.65"),
    Adapter("integrated", "another", "amd", "Mesa 25.2"),
    Adapter("software", "llvmpipe", "llvmpipe", "Mesa 25.2"),
    Adapter("VirtualGPU", "Virtio-GPU", "virtio", "Mesa 25.2"),
]


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch):
    """Clear the cached adapters and pretend that this process has not loaded `wgpu`."""
    webgpu.asked.cache_clear()
    monkeypatch.delitem(sys.modules, "wgpu", raising=False)
    monkeypatch.delenv(SOFTWARE_ALLOWED, raising=False)
    monkeypatch.setattr(webgpu, "_has_device_file", lambda: True)
    yield
    webgpu.asked.cache_clear()


@pytest.fixture
def asking(monkeypatch):
    state = SimpleNamespace(times=0, answer=json.dumps([vars(one) for one in LISTED]))

    def run(command, **_):
        state.times += 1
        if isinstance(state.answer, Exception):
            raise state.answer
        return subprocess.CompletedProcess(command, 0, stdout=state.answer)

    monkeypatch.setattr(webgpu.subprocess, "run", run)
    return state


def test_the_first_adapter_of_each_kind_counts_and_software_does_not(asking, monkeypatch):
    found = {adapter.kind: adapter.name for adapter in adapters()}
    assert found["discrete"] == "NVIDIA RTX 4070"
    assert found["integrated"] == "Intel Iris Xe"
    assert SOFTWARE not in found
    monkeypatch.setenv(SOFTWARE_ALLOWED, "1")
    assert {adapter.kind for adapter in adapters()} & set(KINDS) == set(KINDS) - {BROWSER}
    adapters()
    assert asking.times == 2, "once for each of the two settings"


def test_warnings_of_a_driver_before_the_answer_are_ignored(asking):
    asking.answer = f"MESA-INTEL: warning: Ivy Bridge\n{asking.answer}\n"
    assert len(adapters()) > 1


@pytest.mark.parametrize(
    "answer", ["", "no JSON", "[{}]", OSError("no such file"), subprocess.TimeoutExpired("python", 20)]
)
def test_a_failing_process_finds_no_adapters(asking, answer):
    asking.answer = answer
    assert adapters() == ()


def test_no_process_starts_without_a_device_file(asking, monkeypatch):
    monkeypatch.setattr(webgpu, "_has_device_file", lambda: False)
    assert adapters() == ()
    assert asking.times == 0


@needs_software_adapter
def test_a_software_adapter_is_found_with_name_and_driver(monkeypatch):
    monkeypatch.setenv(SOFTWARE_ALLOWED, "1")
    (adapter,) = [one for one in adapters() if one.kind == SOFTWARE]
    assert adapter.name
    assert adapter.driver
