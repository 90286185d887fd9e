"""What the machine says of itself: real files of this one, and made-up ones."""

import re
import subprocess
import sys

import pytest

from lib.hardware.machine import caches, details, last_level_cache_bytes, machine_id
from tests.conftest import ROOT


def test_details_name_what_explains_a_time():
    found = details()
    assert {"processor", "caches", "products by", "load, last minute", "graphics cards", "machine id"} <= found.keys()
    assert all(found.values())
    assert re.search(r"\d+ threads", found["products by"]), "NumPy's BLAS is loaded here"
    assert found["machine id"] == machine_id()


def test_the_id_is_the_same_in_another_process():
    command = [sys.executable, "-c", "from lib.hardware.machine import machine_id; print(machine_id())"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.fullmatch(r"[0-9a-f]{12}\n", said)
    assert said.strip() == machine_id()


@pytest.mark.skipif(not caches(), reason="only Linux tells the caches, and not on every virtual machine")
def test_caches_grow():
    assert list(caches().values()) == sorted(caches().values())
    assert last_level_cache_bytes() == max(caches().values())
