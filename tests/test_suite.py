"""The test suite itself: signal handling, eighths, the summary of skipped tests, and planted faults."""

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.planted import FAULTS
from tests.suite import N_PARTS

INTERRUPTED = """
import signal, subprocess
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as under nohup
import tests.conftest
child = subprocess.Popen(["sleep", "60"])
child.send_signal(signal.SIGINT)
try:
    print(child.wait(10) == -signal.SIGINT)
finally:
    child.kill()
"""

SAMPLE = """
import pytest

def test_usual(): pass

@pytest.mark.parametrize("number", range(3))
def test_skipped(number): pytest.skip("there is no such card")
"""
OF_RELEASES = """
import pytest

def test_usual(): pass

@pytest.mark.release
@pytest.mark.parametrize("number", range(2))
def test_of_releases(number): pass
"""
N_FILES = 10


@pytest.mark.slow
def test_child_processes_can_be_interrupted_even_under_nohup():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sample")
    (folder / "conftest.py").write_text("from tests.suite import *\n")
    (folder / "test_sample.py").write_text(SAMPLE)
    for number in range(N_FILES):
        (folder / f"test_of_releases_{number}.py").write_text(OF_RELEASES)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = release\n")

    def said(*options):
        command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", *options]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False).stdout

    return said


@pytest.mark.slow
def test_eight_eighths_cover_all_release_tests_once(run):
    parts = [
        {line for line in run("--eighth", str(number)).splitlines() if line.startswith("PASSED")}
        for number in (3, *range(4, 3 + N_PARTS))
    ]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 2 * N_FILES
    assert all(len(part) in (2, 4) for part in parts), "whole files"


def test_the_summary_lists_reasons_of_skipped_tests(run):
    assert "    3  there is no such card\n" in run()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_text_of_a_planted_fault_occurs_once(fault):
    assert (ROOT / fault.file).read_text().count(fault.old) == 1
    assert fault.new != fault.old
