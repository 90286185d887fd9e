"""The suite itself: what it restores, who is alone, what it selects and what it tells at the end."""

import os
import subprocess
import sys
import threading

import pytest

from tests.conftest import ROOT
from tests.suite import _place

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
import os, signal, subprocess, sys
import pytest

@pytest.fixture(scope="module")
def images(tmp_path_factory):
    (tmp_path_factory.mktemp("data") / "mnist.npz").open("w").close()

def test_reads(images): pass
def test_reads_too(images): pass

@pytest.mark.images
def test_starts(): subprocess.run([sys.executable, "-c", ""], check=True)
def test_neither(): subprocess.run(["true"], check=True)

def test_interrupts():
    child = subprocess.Popen(["sleep", "60"])
    child.send_signal(signal.SIGINT)
    child.wait()

@pytest.mark.parametrize("number", range(3))
def test_skipped(number): pytest.skip("there is no such card")

@pytest.mark.slow
def test_slow(): pass
"""


def test_what_a_test_starts_can_be_interrupted_wherever_the_suite_runs():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def test_who_measures_is_alone_and_nobody_overtakes(tmp_path, monkeypatch):
    monkeypatch.setenv("SUITE_FOLDER", str(tmp_path))
    happened, one_inside, one_may_leave = [], threading.Event(), threading.Event()

    def take(name, alone, before_it_leaves=lambda: None):
        with _place(alone):
            happened.append(f"{name} comes")
            before_it_leaves()
            happened.append(f"{name} goes")

    def stay():
        one_inside.set()
        one_may_leave.wait(60)

    threads = [
        threading.Thread(target=take, args=("one", False, stay)),
        threading.Thread(target=take, args=("measuring", True)),
        threading.Thread(target=take, args=("another", False)),
    ]
    threads[0].start()
    one_inside.wait(60)
    for thread in threads[1:]:
        thread.start()
        thread.join(0.3)  # long enough to stand at the door
    assert happened == ["one comes"]
    one_may_leave.set()
    for thread in threads:
        thread.join(60)
    assert happened[:4] == ["one comes", "one goes", "measuring comes", "measuring goes"]


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """A suite of a few tests, run whole once, in two processes; how to run it again, and what it said."""
    folder = tmp_path_factory.mktemp("sample")
    (folder / "conftest.py").write_text("from tests.suite import *\n")
    (folder / "test_sample.py").write_text(SAMPLE)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  images\n  slow\n  timed\n  browser\n")

    def run(*options):
        command = [sys.executable, "-m", "pytest", "-q", "-rA", *options]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "SUITE_FOLDER": str(folder)}
        return subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        ).stdout

    return run, run("-n", "2", "--dist", "loadfile")


def passed(said):
    return {line.split("::")[1].split("@")[0] for line in said.splitlines() if line.startswith("PASSED")}


def test_another_setting_runs_what_it_can_change(sample):
    run, said = sample
    everything = {"test_reads", "test_reads_too", "test_starts", "test_neither", "test_interrupts", "test_slow"}
    assert passed(said) == everything
    assert passed(run("--only", "images")) == {"test_reads", "test_starts"}, "the first of its file, and what is marked"
    assert passed(run("--only", "interrupts")) == {"test_interrupts"}
    assert passed(run("--quick")) == everything - {"test_slow"}


def test_it_ends_with_what_was_skipped_and_why(sample):
    run, said = sample
    assert "    3  there is no such card\n" in said
    assert "    1  slow: left out by QUICK=1\n" in run("--quick")


def test_a_setting_that_was_never_seen_is_said(tmp_path, sample):
    run, _ = sample
    assert "expected an earlier run to tell which tests these are" in run(
        "--only", "images", "-o", f"cache_dir={tmp_path}"
    )
