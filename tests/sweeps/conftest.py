"""Programs beside the test's own: any code, or one that holds this machine's lock."""

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
def program():
    """Return a function that starts Python code as a program, with pipes to it; the test's end kills it."""
    started = []

    def start(code, *arguments):
        command = [sys.executable, "-c", code, *arguments]
        started.append(subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.communicate()


@pytest.fixture
def holding(program):
    def hold(*arguments):
        other = program(HOLD, *arguments)
        assert other.stdout.readline() == "held\n"
        return other

    return hold
