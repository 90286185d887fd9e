"""Each generation of CUDA has an environment of its own, and what is installed there is found without importing it."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from lib.model.backends import environments, registry
from lib.model.backends.environment_variables import complete_environment
from lib.model.backends.environments import COMPUTES_WITH, HERE, Environment, environment_in
from lib.model.backends.registry import BACKENDS, Runtime, all_runtimes, environment_of, unavailable, versions
from lib.model.hardware import nvidia
from lib.model.spec import Network, Training
from lib.sweeps.workers import engine as engine_module
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Trained
from lib.sweeps.workers.queue import Cancel
from tests.conftest import ROOT
from tests.hiding import hiding

ON_A_CARD = Runtime("keras-tensorflow", "gpu")


@pytest.fixture
def cuda12(tmp_path, monkeypatch) -> Iterator[Path]:
    """The packages' folder of a `.venv-cuda12` in which nothing is installed yet."""
    monkeypatch.setattr(environments, "ROOT", tmp_path)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / ".venv-cuda12"], check=True)
    versions.cache_clear()
    yield next(tmp_path.glob(".venv-cuda12/lib/python3.*/site-packages"))
    versions.cache_clear()


def install(packages: Path, **names: str) -> None:
    """Modules that fail when imported, each as a distribution of its own."""
    for name, version in names.items():
        (packages / name).mkdir(exist_ok=True)
        (packages / name / "__init__.py").write_text("raise AssertionError('it was imported')\n")
        described = packages / f"{name}-{version}.dist-info"
        described.mkdir()
        (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def locked(name: str) -> dict[str, str]:
    text = (ROOT / name).read_text()
    return dict(re.findall(r"^([\w.-]+)(?:\[\w+\])?==(\S+)", text, re.MULTILINE))


def test_without_a_second_environment_all_workers_run_in_this_one(tmp_path, monkeypatch):
    monkeypatch.setattr(environments, "ROOT", tmp_path)
    assert {environment_of(runtime) for runtime in all_runtimes()} == {HERE}
    assert sys.executable == HERE.python


def test_with_one_only_tensorflow_on_a_card_runs_there(cuda12):
    elsewhere = [runtime for runtime in all_runtimes() if environment_of(runtime) is not HERE]
    assert elsewhere == [ON_A_CARD]
    assert environment_of(ON_A_CARD).python.endswith("/.venv-cuda12/bin/python")


def test_what_is_installed_there_is_found_and_not_imported(cuda12):
    install(cuda12, keras="3.15.1", tensorflow="2.21.0")
    there = environment_of(ON_A_CARD)
    assert there.installed("tensorflow")
    assert there.version("tensorflow") == "2.21.0"
    assert there.file("keras") == cuda12 / "keras" / "__init__.py"
    assert not there.installed("numpy"), "which is installed here alone"
    assert (there.version("numpy"), there.file("numpy")) == ("", None)
    assert HERE.installed("numpy")
    assert HERE.version("numpy")
    assert not HERE.installed("no_such_library")
    assert not HERE.installed("no_such_library.part")
    assert there.python_version == HERE.python_version, "it was made with this interpreter"


@pytest.mark.parametrize("line", ["version = 3.12.3", "version_info = 3.12.3", "version_info=3.12.3.final.0"])
def test_the_version_of_another_interpreter_is_that_which_made_its_environment(tmp_path, line):
    (tmp_path / "pyvenv.cfg").write_text(f"home = /usr/bin\ninclude-system-site-packages = false\n{line}\n")
    assert Environment(str(tmp_path / "bin" / "python"), ()).python_version == "3.12.3"


def test_what_is_missing_there_is_said_even_where_it_is_installed_here(cuda12, driver):
    driver("580.65.06")
    gap = unavailable(ON_A_CARD)
    assert gap is not None
    assert gap.reason == "keras, tensorflow is not installed in .venv-cuda12"
    assert "make install" in gap.remedy
    install(cuda12, keras="3.15.1", tensorflow="2.21.0")  # an interrupted installation is completed by the same command
    registry._installed.cache_clear()
    gap = unavailable(ON_A_CARD)
    assert gap is not None
    assert gap.reason == "there is a GPU, but its library is the build without CUDA"
    assert "make install" in gap.remedy
    install(cuda12, nvidia_cudnn_cu12="9.28.0.42")
    assert unavailable(ON_A_CARD) is None


def test_two_generations_in_one_environment_are_not_tried(cuda12):
    install(cuda12, tensorflow="2.21.0", nvidia_cudnn_cu12="9.28.0.42")
    build = environments.BUILDS["keras-tensorflow"]
    assert build(environment_of(ON_A_CARD)) == 12
    install(cuda12, nvidia_cudnn_cu13="9.20.0.48")
    assert build(environment_of(ON_A_CARD)) is None


def test_a_time_on_a_card_depends_on_driver_plug_in_and_cudas_libraries(cuda12, driver):
    driver("580.65.06")
    install(cuda12, keras="3.15.1", tensorflow="2.21.0", numpy="2.0.0")
    install(cuda12, nvidia_cublas_cu12="12.9.3", nvidia_cudnn_cu12="9.28", jax_cuda12_plugin="0.10.2")
    assert versions(ON_A_CARD).split(", ")[1:] == [
        "numpy 2.0.0",
        "keras 3.15.1",
        "tensorflow 2.21.0",
        "driver 580.65.06",
        "nvidia-cublas-cu12 12.9.3",
        "nvidia-cudnn-cu12 9.28",
    ]
    on_a_processor = versions(Runtime("keras-tensorflow"))
    assert f"numpy {HERE.version('numpy')}" in on_a_processor
    assert not [name for name in ("driver", *COMPUTES_WITH) if name in on_a_processor]
    before = versions(Runtime("jax-epoch", "gpu"))
    assert "driver 580.65.06" in before
    driver("590.10")
    versions.cache_clear()
    assert versions(Runtime("jax-epoch", "gpu")) == before.replace("580.65.06", "590.10"), "so the time is stale"


def test_the_engine_starts_each_worker_in_its_environment(cuda12, monkeypatch):
    started = []

    class Started:
        connection = None

        def __init__(self, _module: str, arguments: tuple[str, ...], _environment: object, python: str, _: int) -> None:
            started.append((*arguments[2:4], python))

    monkeypatch.setattr(engine_module, "Process", Started)
    for runtime in (ON_A_CARD, Runtime("keras-tensorflow"), Runtime("jax-epoch", "gpu")):
        engine_module._Worker(runtime, 1.0, 0, None)
    assert started == [
        ("keras-tensorflow", "gpu", str(environments.ROOT / ".venv-cuda12/bin/python")),
        ("keras-tensorflow", "cpu", sys.executable),
        ("jax-epoch", "gpu", sys.executable),
    ]


@pytest.mark.slow
def test_a_worker_in_another_environment_trains(cuda12, monkeypatch):
    """In a stand-in that borrows this environment's packages; its command line says which interpreter it is."""
    (cuda12 / "borrowed.pth").write_text("\n".join(path for path in sys.path if "site-packages" in path))
    monkeypatch.setattr(engine_module, "environment_of", lambda _: environment_in(".venv-cuda12"))
    engine = Engine()
    try:
        messages = list(engine.run(Runtime("numpy"), [Training(Network((8,)), batch_size=512)], Cancel()))
        words = psutil.Process(engine.pids()["numpy/cpu"]).cmdline()
    finally:
        engine.close()
    assert words[0] == str(environments.ROOT / ".venv-cuda12/bin/python")
    assert sum(isinstance(message, Trained) for message in messages) == 1


@pytest.mark.release
@pytest.mark.skipif(unavailable(Runtime("keras-tensorflow")) is not None, reason="TensorFlow is not installed")
def test_what_is_locked_for_the_second_environment_suffices_for_a_worker(tmp_path):
    """With no other module than those packages bring: JAX, pandas and marimo are not there."""
    modules = [name.replace("-", "_") for name in locked("requirements-cuda12.txt")]
    others = ["absl", "google", "sklearn", "tensorflow", "keras", "charset_normalizer", "flatbuffers", "opt_einsum"]
    process = engine_module.Process(
        "lib.sweeps.workers.worker",
        (str(engine_module.os.getpid()), "1", "keras-tensorflow", "cpu", "float32"),
        complete_environment(Runtime("keras-tensorflow")) | hiding(tmp_path, only=("lib", "tests", *modules, *others)),
    )
    try:
        assert process.connection.poll(120)
        answer = process.connection.recv()
        assert isinstance(answer, engine_module.Ready), answer
    finally:
        process.kill(wait=True)


def test_each_generation_is_locked_by_itself():
    here, there = locked("requirements-gpu.txt"), locked("requirements-cuda12.txt")
    assert not [name for name in here if "cu12" in name or "cuda12" in name]
    assert not [name for name in there if "cu13" in name or "cuda13" in name or name in ("torch", "jax")]
    assert {"jax-cuda13-plugin", "torch", "cupy-cuda13x", "tensorflow-cpu"} <= here.keys()
    assert {"tensorflow", "nvidia-cudnn-cu12"} <= there.keys()
    for name in ("requirements-torch.txt", "requirements-cupy.txt"):
        assert locked(name).items() <= here.items(), f"{name} would change what is installed with a card"
    same = here.keys() & there.keys() - {"setuptools"}
    assert {name: here[name] for name in same} == {name: there[name] for name in same}


def test_every_environment_of_the_table_is_made_by_make():
    made = re.findall(r"^VENV\w* := (\S+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {backend.cuda_environment for backend in BACKENDS.values()} - {""} <= set(made)


@pytest.mark.parametrize(
    ("version", "major", "words"),
    [
        ("470.82.01", 12, "CUDA 12, which needs NVIDIA driver 525 or newer, and this one is 470.82.01"),
        ("570.86.10", 13, "CUDA 13, which needs NVIDIA driver 580 or newer, and this one is 570.86.10"),
        ("570.86.10", 12, ""),
        ("580.65.06", 13, ""),
    ],
)
def test_an_old_driver_is_named(driver, version, major, words):
    driver(version)
    problem = environments.driver_problem(major)
    assert words in problem
    assert bool(problem) == bool(words)


@pytest.mark.parametrize("answer", [("NVIDIA-SMI has failed", 9), ("[N/A]", 0), ("", 0)])
def test_a_driver_that_says_nothing_is_not_refused(driver, answer):
    driver(*answer)
    assert nvidia.driver_version() == ""
    assert environments.driver_problem(12) == ""


@pytest.mark.parametrize(
    ("text", "major"),
    [("cuda: Optional[str] = '12.8'", 12), ("cuda = '13.0'", 13), ("cuda: Optional[str] = None", None)],
)
def test_pytorchs_own_file_names_its_cuda(tmp_path, text, major):
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('it was imported')\n")
    (package / "version.py").write_text(f"__version__ = '2.13.0'\n{text}\nhip = None\n")
    assert environments.BUILDS["torch"](Environment("python", (str(tmp_path),))) == major
    assert environments.BUILDS["torch"](Environment("python", ())) is None


@pytest.mark.parametrize(
    ("worker", "module", "distribution", "major"),
    [
        ("numba-cuda", "numba_cuda", "nvidia_cuda_nvcc_cu12", 12),
        ("numba-cuda", "numba_cuda", "nvidia_nvvm", 13),
        ("numba-cuda", "numba_cuda", "numpy", 12),
        ("numba-cuda", "", "numpy", None),
        ("cupy", "", "cupy_cuda12x", 12),
        ("cupy", "", "cupy_cuda13x", 13),
    ],
)
def test_a_package_names_its_cuda(tmp_path, worker, module, distribution, major):
    if module:
        (tmp_path / module).mkdir()
        (tmp_path / module / "__init__.py").touch()
    (tmp_path / f"{distribution}-13.0.dist-info").mkdir()
    described = f"Metadata-Version: 2.1\nName: {distribution.replace('_', '-')}\nVersion: 13.0\n"
    (tmp_path / f"{distribution}-13.0.dist-info" / "METADATA").write_text(described)
    assert environments.BUILDS[worker](Environment("python", (str(tmp_path),))) == major
