import os
import re
from types import SimpleNamespace

import pytest

from lib.model.backends.registry import Runtime
from lib.model.hardware import machine
from lib.model.hardware.machine import details, machine_id, usable_cores, usable_memory_bytes
from lib.model.hardware.nvidia import Card
from lib.model.hardware.webgpu import Adapter
from lib.sweeps.sweep import MEMORY_SHARE, Options, Plan
from tests.model.programs import said_by


def test_details_list_the_facts_that_explain_a_time():
    found = details()
    assert {"processor", "caches", "load, last minute", "graphics cards", "WebGPU reaches"} <= found.keys()
    assert all(found.values())
    assert re.search(r"\d+ threads", found["products by"]), "NumPy's BLAS is loaded here"
    assert found["machine id"] == machine_id()


SOFTWARE, VIRTUAL = Adapter("software", "llvmpipe", "", ""), Adapter("VirtualGPU", "Virtio-GPU", "", "")
INTEL, L4 = Adapter("integrated", "Intel Iris Xe", "intel", "Mesa"), Adapter("discrete", "NVIDIA L4", "nvidia", "580")


@pytest.mark.parametrize(
    ("cards", "adapters", "said"),
    [
        ([], [], "no GPU"),
        ([], [SOFTWARE, VIRTUAL], "no GPU"),
        ([], [INTEL, SOFTWARE], "no CUDA GPU; WebGPU reaches Intel Iris Xe"),
        (["NVIDIA L4"], [L4], "NVIDIA L4"),
    ],
    ids=["none", "no real one", "by WebGPU alone", "by CUDA"],
)
def test_the_line_ends_with_the_gpu_of_the_machine(monkeypatch, cards, adapters, said):
    monkeypatch.setattr(machine, "cards", lambda: [SimpleNamespace(name=name) for name in cards])
    monkeypatch.setattr(machine, "asked", lambda _: tuple(adapters))
    here = machine.this_machine.__wrapped__()
    assert here.line.split(" · ")[-1] == said
    assert here.gpu == ", ".join(cards), "the machine's id is made of it"


@pytest.mark.slow
def test_details_do_not_import_wgpu():
    code = "import sys; from lib.model.hardware.machine import details; details(); print('wgpu' in sys.modules)"
    assert said_by(code, WEBGPU_SOFTWARE="1") == "False\n"


def test_the_id_is_the_same_in_another_process():
    said = said_by("from lib.model.hardware.machine import machine_id; print(machine_id())")
    assert re.fullmatch(r"[0-9a-f]{12}\n", said)
    assert said.strip() == machine_id()


def test_the_id_does_not_depend_on_a_random_node_address(monkeypatch):
    ids = []
    for drawn in (0x01_23_45_67_89_AB, 0x41_00_00_00_00_01):
        machine_id.cache_clear()
        monkeypatch.setattr(machine.uuid, "getnode", lambda drawn=drawn: drawn)
        ids.append(machine_id())
    machine_id.cache_clear()
    assert ids[0] == ids[1]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux can bind a process to cores")
def test_a_process_bound_to_one_core_counts_one():
    before = os.sched_getaffinity(0)
    assert usable_cores() == len(before)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, before)


def test_all_cores_count_if_affinity_is_unknown(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores() == 1
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    assert usable_cores() == 12


GIB = 2**30


@pytest.fixture
def with_cards(monkeypatch):
    """A machine with 500 GiB free; `with_cards(*memory_bytes)` adds cards."""
    monkeypatch.setattr(machine, "free_memory_bytes", lambda: 500 * GIB)
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)

    def set_to(*memory_bytes):
        found = tuple(Card(f"GPU-{number}", "NVIDIA L4", "570.86", size) for number, size in enumerate(memory_bytes))
        monkeypatch.setattr(machine, "cards", lambda: found)

    return set_to


@pytest.mark.parametrize(
    ("on_cards", "share", "expected"),
    [
        ([24], None, 18),  # JAX takes at most three quarters
        ([24, 16, 0], None, 12),  # the smallest card that reports its memory
        ([0], None, 500),
        ([24], "0.5", 12),
    ],
)
def test_a_cards_usable_memory_is_its_own(with_cards, monkeypatch, on_cards, share, expected):
    with_cards(*(size * GIB for size in on_cards))
    if share is not None:
        monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", share)
    assert usable_memory_bytes("gpu") == expected * GIB
    assert usable_memory_bytes("cpu") == 500 * GIB


def test_a_sweep_on_a_card_is_planned_by_its_memory(with_cards):
    with_cards(24 * GIB)
    plan = object.__new__(Plan)
    object.__setattr__(plan, "options", Options())
    assert plan.limits(Runtime(device="gpu")).memory_bytes == MEMORY_SHARE * 18 * GIB
    assert plan.limits(Runtime()).memory_bytes == MEMORY_SHARE * 500 * GIB
