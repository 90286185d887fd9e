"""A process for a worker: a pipe to it, an environment of its own, and an end at once."""

import os
import subprocess
import sys

import pytest

from lib.sweeps.workers.process import Process
from tests.conftest import ROOT

ECHO = """
import os
import subprocess
import sys
def main(connection, *arguments):
    connection.send((os.getpid(), arguments, os.environ["ONLY_THERE"]))
    connection.recv()
"""


@pytest.fixture
def process(tmp_path):
    (tmp_path / "echo.py").write_text(ECHO)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    found = Process("echo", ("one", "2"), {"ONLY_THERE": "set", "PYTHONPATH": path})
    yield found
    found.kill(wait=True)


def test_it_is_told_its_arguments_in_an_environment_of_its_own(process):
    assert process.connection.poll(30)
    pid, arguments, value = process.connection.recv()
    assert pid != os.getpid()
    assert (arguments, value) == (("one", "2"), "set")
    assert "ONLY_THERE" not in os.environ
    assert process.alive
    assert 0 < process.cpu_s() < 30


@pytest.mark.parametrize("niceness", [0, 7])
def test_it_has_the_priority_that_it_is_given(tmp_path, niceness):
    (tmp_path / "says.py").write_text("import os\ndef main(asked): asked.recv(); asked.send(os.nice(0))\n")
    process = Process("says", (), {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}, niceness=niceness)
    try:
        process.connection.send("how nice?")
        assert process.connection.poll(30)
        assert process.connection.recv() == min(os.nice(0) + niceness, 19)
    finally:
        process.kill(wait=True)


def test_it_ends_at_once_and_then_tells_nothing(process):
    assert process.connection.poll(30)
    process.kill(wait=True)
    assert not process.alive
    assert process.cpu_s() is None
    process.connection.recv()  # what it had sent before
    with pytest.raises((EOFError, OSError)):
        process.connection.recv()


def test_it_runs_in_the_interpreter_that_is_named(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "other"], check=True)
    (tmp_path / "where.py").write_text("import sys\ndef main(connection): connection.send((sys.prefix, sys.path))\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    process = Process("where", (), {"PYTHONPATH": path}, str(tmp_path / "other" / "bin" / "python"))
    try:
        assert process.connection.poll(30)
        prefix, folders = process.connection.recv()
    finally:
        process.kill(wait=True)
    assert prefix == str(tmp_path / "other")
    own = [folder for folder in folders if "site-packages" in folder]
    assert own
    assert all(folder.startswith(prefix) for folder in own), "nothing of this environment is seen there"


def test_a_module_that_is_not_there_ends_it():
    process = Process("no_such_module", (), {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"})
    with pytest.raises(EOFError):
        process.connection.recv()
    process.kill(wait=True)
