"""What all tests share: a cache folder of their own, real MNIST where it is at hand, one engine for the session."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

# Before anything of lib is imported, and inherited by every worker: tests neither use nor fill the person's own cache.
# Each of the suite's processes has a folder of its own in that of the first; what is compiled there they share.
_FIRST = "PYTEST_XDIST_WORKER" not in os.environ
if _FIRST:
    os.environ["SUITE_FOLDER"] = tempfile.mkdtemp(prefix="tests-")  # short: a socket's path has at most 107 characters
_CACHE = os.path.join(os.environ["SUITE_FOLDER"], os.environ.get("PYTEST_XDIST_WORKER", "gw"))
os.makedirs(os.path.join(_CACHE, "tmp"), exist_ok=True)  # it is there where a test starts a program that imports tests
_COMPILED = Path(os.environ["SUITE_FOLDER"], "xla")
_COMPILED.mkdir(exist_ok=True)
if not Path(_CACHE, "xla").exists():
    Path(_CACHE, "xla").symlink_to(_COMPILED)
os.environ["MNIST_CACHE_DIR"] = _CACHE
os.environ["TMPDIR"] = tempfile.tempdir = os.path.join(_CACHE, "tmp")
# The turn between the programs of a machine: a notebook that is open elsewhere neither delays a test past its limit nor
# waits for one. Between the programs of the tests themselves it holds as ever.
os.environ["XDG_RUNTIME_DIR"] = os.path.join(_CACHE, "run")
if not os.environ.get("MNIST_NPZ"):
    os.environ["MNIST_OFFLINE"] = "1"  # the suite needs no network; downloads are tested against a server of its own
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Several processes test at once: threads that wait for each other would take more time than they save. Workers choose.
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
# A product of float32 and float64, or of shapes that only broadcasting makes fit, is an oversight.
os.environ["JAX_NUMPY_DTYPE_PROMOTION"], os.environ["JAX_NUMPY_RANK_PROMOTION"] = "strict", "raise"
# Under nohup and in a script's background job SIGINT is ignored, by all children too; a test that interrupts one would
# wait.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

from lib.model.backends import registry  # noqa: E402
from lib.model.backends.registry import XLA_WITHOUT_WRONG_SUMS, Runtime, unavailable  # noqa: E402
from lib.model.data.mnist import Data, aligned  # noqa: E402
from lib.model.hardware import nvidia  # noqa: E402
from lib.sweeps.workers import engine as engine_module  # noqa: E402
from lib.sweeps.workers.engine import Engine  # noqa: E402
from lib.timing.measurement import Disturbance, Watch  # noqa: E402
from tests import stub_worker  # noqa: E402
from tests.browser import VIEWERS, Site, browsing, serving, tab  # noqa: E402
from tests.deploying import Cloud, lending, make_clone  # noqa: E402
from tests.suite import *  # noqa: E402, F403

os.environ.setdefault("XLA_FLAGS", XLA_WITHOUT_WRONG_SUMS)  # as in the workers; before anything imports JAX
os.environ["NUMBA_CACHE_DIR"] = str(_COMPILED / "numba")  # or Numba


# No test fails for a slow minute. `make test-all` asks for the profile that tries more.
settings.register_profile("usual", deadline=None, max_examples=20)
settings.register_profile("release", deadline=None, max_examples=100)
settings.load_profile("usual")


def where_installed(keys: Iterable[str]) -> list:
    """Backends as parameters of a test on the processor; those that cannot run there are skipped, and say why."""
    return [
        pytest.param(key, marks=pytest.mark.skipif(why is not None, reason=f"{key}: {why.reason}" if why else ""))
        for key in keys
        for why in [unavailable(Runtime(key))]
    ]


@contextmanager
def jax_promotes() -> Iterator[None]:
    """JAX matches types and ranks here, as in a program's own process: Keras and Flax count on it."""
    import jax

    options = {"jax_numpy_dtype_promotion": "standard", "jax_numpy_rank_promotion": "allow"}
    strict = {name: getattr(jax.config, name) for name in options}
    for name, choice in options.items():
        jax.config.update(name, choice)  # for all threads: Keras' `fit` runs in one of its own
    try:
        yield
    finally:
        for name, choice in strict.items():
            jax.config.update(name, choice)


ROOT = Path(__file__).resolve().parent.parent


def pytest_unconfigure() -> None:
    shutil.rmtree(os.environ["SUITE_FOLDER"] if _FIRST else _CACHE, ignore_errors=True)


def make_small_data() -> Data:
    """640 training, 200 validation and 100 test images of noise around ten random patterns: learnable, and quick."""
    rng = np.random.default_rng(7)
    patterns = rng.random((10, 784), np.float32)
    parts = [draw_patterns(rng, patterns, n) for n in (640, 200, 100)]
    return Data(*(array for part in parts for array in part), source="test", digest="test")


def draw_patterns(rng: np.random.Generator, patterns: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """So many rows, each a pattern with noise, and which of the patterns (classes, inputs) each was."""
    labels, images = aligned((n,), np.int32), aligned((n, patterns.shape[1]), np.float32)
    labels[:] = rng.integers(0, len(patterns), n)
    images[:] = np.clip(patterns[labels] + rng.normal(0, 0.3, images.shape), 0, 1)
    return images, labels


@pytest.fixture(scope="session")
def small_data() -> Data:
    return make_small_data()


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    shared = Engine()
    shared.warm(Runtime())  # nearly every test that trains wants it
    yield shared
    shared.close()


@pytest.fixture(scope="session")
def _engine_of_stubs() -> Iterator[Engine]:
    shared = Engine()
    yield shared
    shared.close()


@pytest.fixture
def stub_engine(_engine_of_stubs: Engine, monkeypatch) -> Engine:
    """An engine whose workers compute nothing, but start, report, pause, die and end as all do."""
    monkeypatch.setattr(engine_module, "Process", stub_worker.start)
    return _engine_of_stubs


@pytest.fixture
def lone_engine() -> Iterator[Engine]:
    """Its workers are started under the environment that the test has set."""
    alone = Engine()
    yield alone
    alone.close()


@pytest.fixture(autouse=True)
def undisturbed(monkeypatch) -> None:
    """What runs beside a test is no reason for it to measure again; where a disturbance is the subject, this is
    replaced."""
    monkeypatch.setattr(Watch, "__exit__", _see_nobody)


def _see_nobody(watch: Watch, *_: object) -> None:
    watch.disturbance = Disturbance(1.0, 0.0, 0.0, 0)


# One server of a kind for all tests of a process, which keep apart by settings that only they use.


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Iterator[Site]:
    """`make class` without the libraries that take long to start."""
    with serving(tmp_path_factory.mktemp("site")) as served:
        yield served


@pytest.fixture(scope="session")
def full_site(tmp_path_factory) -> Iterator[Site]:
    """With every library that is installed."""
    with serving(tmp_path_factory.mktemp("full"), hidden=()) as served:
        yield served


@pytest.fixture(scope="session")
def closed_site(tmp_path_factory) -> Iterator[Site]:
    """Behind a password, with places for `VIEWERS`."""
    options = ("--viewers", str(VIEWERS))
    with serving(tmp_path_factory.mktemp("closed"), options=options, password="correct horse") as served:
        yield served


@pytest.fixture(scope="session")
def adapter_site(tmp_path_factory) -> Iterator[Site]:
    """On which the processor stands in for a graphics card, by WebGPU; only releases are tested on it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEBGPU_SOFTWARE", "1")
        with serving(tmp_path_factory.mktemp("adapter")) as served:
            yield served


@pytest.fixture(scope="module")
def browser() -> Iterator:
    with browsing() as opened:
        yield opened


@pytest.fixture
def page(browser) -> Iterator:
    with tab(browser) as opened:
        yield opened


@pytest.fixture(scope="session")
def deploy_clone(tmp_path_factory) -> Path:
    return make_clone(tmp_path_factory.mktemp("project") / "clone")


@pytest.fixture
def cloud(deploy_clone: Path, tmp_path: Path) -> Iterator[Cloud]:
    with lending(tmp_path, deploy_clone) as lent:
        yield lent


@pytest.fixture(scope="session")
def made_cloud(deploy_clone: Path, tmp_path_factory) -> Iterator[Cloud]:
    with lending(tmp_path_factory.mktemp("made"), deploy_clone) as lent:
        lent("create")
        yield lent


@pytest.fixture
def made(made_cloud: Cloud, deploy_clone: Path, tmp_path: Path) -> Iterator[Cloud]:
    """After `create`, without the time that it takes."""
    with lending(tmp_path, deploy_clone, like=made_cloud) as lent:
        yield lent


@pytest.fixture(scope="session")
def untouched(deploy_clone: Path, tmp_path_factory) -> Iterator[Cloud]:
    """One for all tests that must not even ask it anything."""
    with lending(tmp_path_factory.mktemp("untouched"), deploy_clone) as lent:
        yield lent
        assert not lent.rows("calls")


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """A machine with two cards, an L4 and an older T4, whose driver answers: `driver("470.82.01")`."""

    def answers(version: str, status: int = 0) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(
            f'#!/bin/sh\necho "GPU-11aa, NVIDIA L4, {version}, 23034, 8.9"\n'
            f'echo "GPU-22bb, Tesla T4, {version}, 15360, 7.5"\nexit {status}\n'
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        for cached in (nvidia.all_cards, registry._installed):
            cached.cache_clear()

    yield answers
    monkeypatch.undo()
    for cached in (nvidia.all_cards, registry._installed):
        cached.cache_clear()
