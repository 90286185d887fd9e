"""Another program that holds this machine's lock."""

import subprocess
import sys

import pytest

from tests.conftest import ROOT

HOLD = """
import sys, time
from lib.sweeps.workers.queue import MachineLock
with MachineLock() as turn:
    print("held", flush=True)
    while "listens" not in sys.argv or not turn.wanted():
        time.sleep(0.02)
"""


@pytest.fixture
def holding():
    started = []

    def hold(*arguments):
        program = subprocess.Popen(
            [sys.executable, "-c", HOLD, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        started.append(program)
        assert program.stdout is not None
        assert program.stdout.readline() == "held\n"
        return program

    yield hold
    for program in started:
        program.kill()
        program.communicate()
