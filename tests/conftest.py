"""Shared by all tests: a cache folder of their own, MNIST if available, one engine per session."""

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

# Set before lib is imported, and inherited by workers: tests never touch the developer's own cache. Each process of the
# suite has its own folder inside the first one's; they share compiled programs.
_FIRST = "PYTEST_XDIST_WORKER" not in os.environ
if _FIRST:
    os.environ["SUITE_FOLDER"] = tempfile.mkdtemp(prefix="tests-")  # short: a socket's path has at most 107 characters
_CACHE = os.path.join(os.environ["SUITE_FOLDER"], os.environ.get("PYTEST_XDIST_WORKER", "gw"))
os.makedirs(os.path.join(_CACHE, "tmp"), exist_ok=True)  # must exist when a test starts a program that imports tests
_COMPILED = Path(os.environ["SUITE_FOLDER"], "xla")
_COMPILED.mkdir(exist_ok=True)
if not Path(_CACHE, "xla").exists():
    Path(_CACHE, "xla").symlink_to(_COMPILED)
os.environ["MNIST_CACHE_DIR"] = _CACHE
os.environ["TMPDIR"] = tempfile.tempdir = os.path.join(_CACHE, "tmp")
# Programs on a machine take turns measuring. With a directory of its own, the suite neither delays a notebook that is
# open elsewhere nor waits for it; the tests' own programs still take turns.
os.environ["XDG_RUNTIME_DIR"] = os.path.join(_CACHE, "run")
if not os.environ.get("MNIST_NPZ"):
    os.environ["MNIST_OFFLINE"] = "1"  # the suite needs no network; downloads are tested against a local server
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Several processes test at once, so more threads would cost more time than they save. Workers set their own number.
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
# Multiplying float32 by float64, or shapes that fit only by broadcasting, is a mistake.
os.environ["JAX_NUMPY_DTYPE_PROMOTION"], os.environ["JAX_NUMPY_RANK_PROMOTION"] = "strict", "raise"
# Under nohup and in background jobs SIGINT is ignored, also by children, so a test that interrupts one would hang.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

from lib.model.backends import registry  # noqa: E402
from lib.model.backends.registry import XLA_WITHOUT_WRONG_SUMS, Runtime, unavailable  # noqa: E402
from lib.model.data.mnist import Data, aligned  # noqa: E402
from lib.model.hardware import nvidia  # noqa: E402
from lib.sweeps.storage.store import Store  # noqa: E402
from lib.sweeps.workers import engine as engine_module  # noqa: E402
from lib.sweeps.workers.engine import Engine  # noqa: E402
from lib.timing.measurement import Disturbance, Watch  # noqa: E402
from tests import stub_worker  # noqa: E402
from tests.browser import VIEWERS, Site, browsing, serving, tab  # noqa: E402
from tests.deploying import Cloud, lending, make_clone  # noqa: E402
from tests.suite import *  # noqa: E402, F403

os.environ.setdefault("XLA_FLAGS", XLA_WITHOUT_WRONG_SUMS)  # as in the workers; must be set before JAX is imported
os.environ["NUMBA_CACHE_DIR"] = str(_COMPILED / "numba")  # must be set before Numba is imported


# No deadline: a slow machine must not fail a test. `make test-all` uses the profile with more examples.
settings.register_profile("usual", deadline=None, max_examples=20)
settings.register_profile("release", deadline=None, max_examples=100)
settings.load_profile("usual")


def where_installed(keys: Iterable[str]) -> list:
    """Parametrize a test over backends on the CPU; skip those that cannot run here, and say why."""
    return [
        pytest.param(key, marks=pytest.mark.skipif(why is not None, reason=f"{key}: {why.reason}" if why else ""))
        for key in keys
        for why in [unavailable(Runtime(key))]
    ]


@contextmanager
def jax_promotes() -> Iterator[None]:
    """Allow JAX's usual dtype and rank promotion, which Keras and Flax rely on."""
    import jax

    options = {"jax_numpy_dtype_promotion": "standard", "jax_numpy_rank_promotion": "allow"}
    strict = {name: getattr(jax.config, name) for name in options}
    for name, choice in options.items():
        jax.config.update(name, choice)  # for all threads, because Keras runs `fit` in a thread of its own
    try:
        yield
    finally:
        for name, choice in strict.items():
            jax.config.update(name, choice)


ROOT = Path(__file__).resolve().parent.parent


def pytest_unconfigure() -> None:
    shutil.rmtree(os.environ["SUITE_FOLDER"] if _FIRST else _CACHE, ignore_errors=True)


def make_small_data() -> Data:
    """640 training, 200 validation and 100 test images: noise around ten random patterns, quick to learn."""
    rng = np.random.default_rng(7)
    patterns = rng.random((10, 784), np.float32)
    parts = [draw_patterns(rng, patterns, n) for n in (640, 200, 100)]
    return Data(*(array for part in parts for array in part), source="test", digest="test")


def draw_patterns(rng: np.random.Generator, patterns: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return `n` noisy copies of random patterns (classes, inputs), and the index of each one's pattern."""
    labels, images = aligned((n,), np.int32), aligned((n, patterns.shape[1]), np.float32)
    labels[:] = rng.integers(0, len(patterns), n)
    images[:] = np.clip(patterns[labels] + rng.normal(0, 0.3, images.shape), 0, 1)
    return images, labels


@pytest.fixture
def shown(monkeypatch) -> list[str]:  # the HTML of each frame drawn into a cell
    frames: list[str] = []
    monkeypatch.setattr("marimo.output.replace", lambda page: frames.append(page.text))
    return frames


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "results.sqlite")


@pytest.fixture(scope="session")
def small_data() -> Data:
    return make_small_data()


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    shared = Engine()
    shared.warm(Runtime())  # nearly every test that trains needs it
    yield shared
    shared.close()


@pytest.fixture(scope="session")
def _engine_of_stubs() -> Iterator[Engine]:
    shared = Engine()
    yield shared
    shared.close()


@pytest.fixture
def stub_engine(_engine_of_stubs: Engine, monkeypatch) -> Engine:
    """An engine whose workers compute nothing, but start, report, pause, die and end like real ones."""
    monkeypatch.setattr(engine_module, "Process", stub_worker.start)
    return _engine_of_stubs


@pytest.fixture
def lone_engine() -> Iterator[Engine]:
    """An engine of the test's own: its workers inherit the environment that the test has set."""
    alone = Engine()
    yield alone
    alone.close()


@pytest.fixture(autouse=True)
def undisturbed(monkeypatch) -> None:
    """Load from other programs must not make a test measure again; tests of disturbances override this."""
    monkeypatch.setattr(Watch, "so_far", lambda _: Disturbance(1.0, 0.0, 0.0, 0))


# One server of each kind per process. Tests that share one use different settings.


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Iterator[Site]:
    with serving(tmp_path_factory.mktemp("site")) as served:
        yield served


@pytest.fixture(scope="session")
def server(site) -> str:
    return site.at("mnist_training.py")


@pytest.fixture(scope="session")
def full_site(tmp_path_factory) -> Iterator[Site]:
    with serving(tmp_path_factory.mktemp("full"), hidden=()) as served:
        yield served


@pytest.fixture(scope="session")
def closed_site(tmp_path_factory) -> Iterator[Site]:
    options = ("--viewers", str(VIEWERS))
    with serving(tmp_path_factory.mktemp("closed"), options=options, password="correct horse") as served:
        yield served


@pytest.fixture(scope="session")
def adapter_site(tmp_path_factory) -> Iterator[Site]:
    """The CPU stands in for a WebGPU card; only release tests use this site."""
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
    """The state after `create`, without its running time."""
    with lending(tmp_path, deploy_clone, like=made_cloud) as lent:
        yield lent


@pytest.fixture(scope="session")
def untouched(deploy_clone: Path, tmp_path_factory) -> Iterator[Cloud]:
    with lending(tmp_path_factory.mktemp("untouched"), deploy_clone) as lent:
        yield lent
        assert not lent.rows("calls")


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """A machine with two cards, an L4 and an older T4; `driver("470.82.01")` sets the driver's version."""

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
