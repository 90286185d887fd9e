"""The digest of the code: all that a figure depends on is in it, however it is imported, and nothing that only shows
figures."""

import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from lib.model.backends import fingerprint
from lib.model.backends.fingerprint import LOOK_EVERY_S, source_digest
from tests.conftest import ROOT

# Says the digest, and again whenever a line comes in.
ASKED = "import sys; from lib.model.backends.fingerprint import source_digest; print(source_digest(), flush=True)"
# … where a look that takes long, on a busy machine, does not put off the next one.
ASKED_AGAIN = f"""
import lib.model.backends.fingerprint as f
f.LOOK_SHARE = 1e9
{ASKED}
for _ in sys.stdin:
    print(source_digest(), flush=True)
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The project's code elsewhere, and a program in it that is asked for its digest after each change."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "lib", folder / "lib", ignore=shutil.ignore_patterns("__pycache__"))
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command, pipe = [sys.executable, "-c", ASKED_AGAIN], subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, env=environment, stdin=pipe, stdout=pipe, text=True) as program:
        asks, answers = program.stdin, program.stdout
        assert asks is not None
        assert answers is not None

        def digest() -> str:
            time.sleep(LOOK_EVERY_S)
            print(file=asks, flush=True)
            return answers.readline().strip()

        answers.readline()
        yield folder, digest
        asks.close()


def edit(path) -> None:
    path.write_text(path.read_text() + "\n# another line\n")


# Imported at the top of a worker; only in a function; by a name made at run time; by a process of a pool; through
# others.
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "timing/measurement.py",
        "timing/profiling/operations.py",
        "timing/profiling/run.py",
        "timing/profiling/traces/live.py",
        "timing/profiling/with_torch.py",
        "model/backends/with_cupy.py",
        "model/backends/stacked/train.py",
        "model/backends/webgpu/product.wgsl",
        "timing/profiling/request.py",
        "sweeps/executor.py",
        "sweeps/workers/worker.py",
        "model/spec.py",
        "model/hardware/nvml.py",
        "model/data/digits.py",
    ],
)
def test_what_trains_or_measures_is_part_of_it(copy, name):
    folder, digest = copy
    before = digest()
    edit(folder / "lib" / name)
    after = digest()
    assert after != before
    assert digest() == after


@pytest.mark.parametrize(
    "name",
    [
        "ui/views/mnist_training.py",
        "ui/layout.py",
        "labs/mnist_training.py",
        "ui/streaming.py",
        "labs/which_library/race.py",
    ],
)
def test_what_only_shows_figures_is_not(copy, name):
    folder, digest = copy
    before = digest()
    edit(folder / "lib" / name)
    assert digest() == before


@pytest.mark.slow
def test_a_module_that_is_new_or_gone_is_seen(copy):
    folder, digest = copy
    before = digest()
    new = folder / "lib" / "timing" / "profiling" / "with_cupy.py"  # the table names it already
    assert not new.exists()
    new.write_text("")
    assert digest() != before
    new.unlink()
    assert digest() == before


@pytest.mark.slow
def test_a_half_written_module_is_no_trouble(copy):
    folder, digest = copy
    before, path = digest(), folder / "lib" / "timing" / "profiling" / "operations.py"
    whole = path.read_text()
    path.write_text(whole + "\ndef half(")
    assert digest() not in (before, "")
    path.write_text(whole)
    assert digest() == before


@pytest.mark.slow
def test_a_copy_elsewhere_has_the_same(copy, tmp_path):
    shutil.copytree(ROOT / "lib", tmp_path / "lib")
    said = subprocess.run([sys.executable, "-c", ASKED], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == source_digest()


@pytest.fixture
def slow_look(monkeypatch):
    """How often files are looked at, from now on slowly: the first waits until it is let go."""
    digest, looks, go_on = source_digest(), [], threading.Event()

    def state(path):
        if not looks:
            assert go_on.wait(60)
        looks.append(path)
        return fingerprint._known[0][path]

    monkeypatch.setattr(fingerprint, "_state", state)
    monkeypatch.setattr(fingerprint, "_look_at", 0.0)
    yield digest, looks, go_on
    go_on.set()


def test_while_one_thread_looks_others_do_not(slow_look):
    digest, looks, go_on = slow_look
    with ThreadPoolExecutor(1) as other:
        looking = other.submit(source_digest)
        while not fingerprint._looking.locked():
            time.sleep(0.01)
        assert source_digest() == digest, "what is known, at once"
        assert looks == []
        go_on.set()
        assert looking.result(60) == digest
    assert len(looks) == len(fingerprint._known[0])


@pytest.mark.slow
def test_after_a_look_that_took_long_there_is_none_for_long(slow_look):
    digest, looks, go_on = slow_look
    timer = threading.Timer(0.3, go_on.set)
    timer.start()
    assert source_digest() == digest
    n_looks = len(looks)
    time.sleep(2 * LOOK_EVERY_S)
    assert source_digest() == digest
    assert len(looks) == n_looks
    assert fingerprint._look_at > time.monotonic() + LOOK_EVERY_S


def test_what_is_compiled_beside_a_module_counts_as_its_code():
    files = {path.name for path in fingerprint._files_of("lib.timing.profiling.cuda_calls", fingerprint.PACKAGES)}
    assert {"cuda_calls.py", "cuda_calls.c"} <= files
