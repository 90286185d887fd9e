"""The driver's answer, from a stand-in for its library: no card is needed."""

import ctypes
from types import SimpleNamespace

import pytest

from lib.model.hardware import nvidia as cuda_driver
from lib.model.hardware.nvidia import l2_cache_bytes


def driver(fails: str = ""):
    """A driver's library with one card of 50 MiB of L2; the function of this name fails, with a CUDA error's number."""

    def get_device(device, number):
        device._obj.value = 7 + number
        return 100 * (fails == "cuDeviceGet")

    def get_attribute(value, attribute, device):
        value._obj.value = {(38, 7): 50 * 2**20}[attribute, device.value]
        return 100 * (fails == "cuDeviceGetAttribute")

    return SimpleNamespace(
        cuInit=lambda flags: 100 * (fails == "cuInit") + flags,
        cuDeviceGet=get_device,
        cuDeviceGetAttribute=get_attribute,
    )


@pytest.mark.parametrize(
    ("fails", "expected"), [("", 50 * 2**20), ("cuInit", 0), ("cuDeviceGet", 0), ("cuDeviceGetAttribute", 0)]
)
def test_the_l2_of_the_first_card(monkeypatch, fails, expected):
    monkeypatch.setattr(cuda_driver.ctypes, "CDLL", lambda name: {"libcuda.so.1": driver(fails)}[name])
    assert l2_cache_bytes() == expected


def test_without_a_driver_it_is_not_known(monkeypatch):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert l2_cache_bytes() == 0
