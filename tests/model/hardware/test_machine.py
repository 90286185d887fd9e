"""What the machine says of itself: real files of this one, and made-up ones."""

import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from lib.model.hardware import machine
from lib.model.hardware.machine import caches, details, last_level_cache_bytes, machine_id
from lib.model.hardware.webgpu import Adapter
from tests.conftest import ROOT


def test_details_name_what_explains_a_time():
    found = details()
    assert {
        "processor",
        "caches",
        "products by",
        "load, last minute",
        "graphics cards",
        "WebGPU reaches",
        "machine id",
    } <= found.keys()
    assert all(found.values())
    assert re.search(r"\d+ threads", found["products by"]), "NumPy's BLAS is loaded here"
    assert found["machine id"] == machine_id()


def test_details_list_what_webgpu_reaches_and_call_software_so(monkeypatch):
    found = (
        Adapter("integrated", "Intel Iris Xe", "intel", "Mesa 25.2"),
        Adapter("software", "llvmpipe", "llvmpipe", ""),
        Adapter("VirtualGPU", "Virtio-GPU", "", ""),
    )
    monkeypatch.setattr(machine, "asked", lambda _: found)
    assert details()["WebGPU reaches"] == "; ".join(
        (
            "Intel Iris Xe (integrated GPU; intel, Mesa 25.2)",
            "llvmpipe (software adapter; llvmpipe)",
            "Virtio-GPU (VirtualGPU)",
        )
    )
    monkeypatch.setattr(machine, "asked", lambda _: ())
    assert details()["WebGPU reaches"] == "none"


@pytest.mark.parametrize(
    ("cards", "adapters", "said"),
    [
        ([], [], "no GPU"),
        ([], [Adapter("software", "llvmpipe", "llvmpipe", ""), Adapter("VirtualGPU", "Virtio-GPU", "", "")], "no GPU"),
        (
            [],
            [Adapter("integrated", "Intel Iris Xe", "intel", "Mesa 25.2"), Adapter("software", "llvmpipe", "", "")],
            "no CUDA GPU; WebGPU reaches Intel Iris Xe",
        ),
        (["NVIDIA L4"], [Adapter("discrete", "NVIDIA L4", "nvidia", "580")], "NVIDIA L4"),
    ],
    ids=["none", "no real one", "by WebGPU alone", "by CUDA"],
)
def test_the_line_ends_with_the_gpu_that_there_is(monkeypatch, cards, adapters, said):
    monkeypatch.setattr(machine, "cards", lambda: [SimpleNamespace(name=name) for name in cards])
    monkeypatch.setattr(machine, "asked", lambda _: tuple(adapters))
    here = machine.this_machine.__wrapped__()
    assert here.line.split(" · ")[-1] == said
    assert here.gpu == ", ".join(cards), "the machine's id is made of it"


@pytest.mark.slow
def test_neither_the_details_nor_the_line_load_webgpu_into_the_page_s_process():
    code = "import sys; from lib.model.hardware.machine import details; details(); print('wgpu' in sys.modules)"
    environment = os.environ | {"WEBGPU_SOFTWARE": "1"}
    said = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert said.stdout == "False\n"


def test_the_id_is_the_same_in_another_process():
    command = [sys.executable, "-c", "from lib.model.hardware.machine import machine_id; print(machine_id())"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.fullmatch(r"[0-9a-f]{12}\n", said)
    assert said.strip() == machine_id()


def test_the_id_is_the_same_where_no_network_interface_has_an_address(monkeypatch):
    """Python then draws one for each process, and marks it: two processes of one machine would be two machines."""
    ids = []
    for drawn in (0x01_23_45_67_89_AB, 0x41_00_00_00_00_01):
        machine_id.cache_clear()
        monkeypatch.setattr(machine.uuid, "getnode", lambda drawn=drawn: drawn)
        ids.append(machine_id())
    machine_id.cache_clear()
    assert ids[0] == ids[1]


@pytest.mark.skipif(not caches(), reason="only Linux tells the caches, and not on every virtual machine")
def test_caches_grow():
    assert list(caches().values()) == sorted(caches().values())
    assert last_level_cache_bytes() == max(caches().values())
