import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from lib.model.backends import registry
from lib.model.backends.registry import (
    ADAPTERS,
    BACKENDS,
    BUILDS,
    COMPUTES_WITH,
    HERE,
    IN_A_BROWSER,
    XLA_WITHOUT_WRONG_SUMS,
    Environment,
    Runtime,
    all_runtimes,
    complete_environment,
    environment_in,
    environment_of,
    unavailable,
    versions,
    worker_environment,
)
from lib.model.backends.with_jax import ROUNDED
from lib.model.hardware import nvidia, webgpu
from lib.model.hardware.nvidia import Card
from lib.model.spec import Network, Training
from lib.sweeps.workers import engine as engine_module
from lib.sweeps.workers.messages import Job, Trained
from lib.sweeps.workers.queue import Cancel
from tests.conftest import ROOT
from tests.hiding import hiding


def why_not(runtime):
    gap = unavailable(runtime)
    assert gap is not None
    return gap


@pytest.fixture(autouse=True)
def fresh_versions() -> Iterator[None]:
    versions.cache_clear()
    yield
    versions.cache_clear()


def test_the_table_says_why_a_runtime_is_missing(monkeypatch):
    monkeypatch.setattr(registry, "_installed", lambda _, name: name != "tensorflow")
    monkeypatch.setattr(registry, "nvidia_driver_answers", lambda: False)
    gap = why_not(Runtime("keras-tensorflow"))
    assert "tensorflow is not installed" in gap.reason
    assert "pip install" in gap.remedy
    assert "no NVIDIA driver" in why_not(Runtime("jax-epoch", "gpu")).reason
    assert unavailable(Runtime("numpy")) is None
    monkeypatch.setattr(registry, "nvidia_driver_answers", lambda: True)
    assert "hides every GPU" in why_not(Runtime("jax-epoch", "gpu")).reason
    monkeypatch.setattr(registry, "cards", lambda: (Card("GPU-11aa", "NVIDIA L4", "570.86.10"),))
    monkeypatch.setattr(registry, "_installed", lambda _, name: "cuda" not in name)
    assert "make install" in why_not(Runtime("jax-epoch", "gpu")).remedy


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (("torch7",), "backend: expected one of"),
        (("numpy", "tpu"), "device: expected cpu or gpu"),
        (("javascript", "gpu"), "expected cpu for JavaScript on one core, got 'gpu'; choose cpu"),
        (("jax-epoch", "cpu", "tf32"), "precision: expected float32 or bfloat16, got 'tf32'"),
        (("torch", "gpu", "bfloat16"), "precision: expected float32 or tf32, got 'bfloat16'"),
        (("numpy", "cpu", "bfloat16"), "precision: expected float32, got 'bfloat16'"),
    ],
)
def test_unknown_runtimes_are_refused(asked, says):
    with pytest.raises(ValueError, match=says):
        Runtime(*asked)


def test_each_runtime_has_its_own_label_and_address():
    for name in ("address", "label"):
        assert len({getattr(runtime, name) for runtime in all_runtimes()}) == len(all_runtimes())


def test_precisions_of_a_card_are_runtimes_of_their_own(driver, monkeypatch):
    monkeypatch.setattr(registry, "multiplies_bfloat16", lambda: False)
    assert {runtime.precision for runtime in all_runtimes()} == {"float32"}, "there is no card"
    driver("570.86.10")  # the first card is an L4
    rounded = [runtime for runtime in all_runtimes() if runtime.precision != "float32"]
    assert "JAX, one call an epoch, GPU, TF32" in [runtime.label for runtime in rounded]
    assert {BACKENDS[runtime.backend].worker for runtime in rounded if runtime.precision == "bfloat16"} == {"jax"}
    assert all(runtime.device == "gpu" for runtime in rounded)
    assert [runtime.place for runtime in all_runtimes()] == sorted(runtime.place for runtime in all_runtimes())
    one = Runtime("jax-step", "gpu", "tf32")
    assert (one.address, one.process) == ("jax-step/gpu/tf32", "jax/gpu/tf32")
    assert one.process == Runtime("jax-epoch", "gpu", "tf32").process != Runtime("jax-epoch", "gpu").process
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")  # a T4, which supports neither
    assert {runtime.precision for runtime in all_runtimes()} == {"float32"}


def test_a_processor_with_bfloat16_has_a_runtime_for_it(monkeypatch):
    monkeypatch.setattr(registry, "multiplies_bfloat16", lambda: True)
    (rounded,) = [runtime for runtime in all_runtimes() if runtime.precision != "float32"]
    assert (rounded.label, rounded.address) == ("JAX, one call an epoch, bfloat16", "jax-epoch/cpu/bfloat16")
    assert rounded.process != Runtime().process, "its worker's environment says the precision"


def test_an_unavailable_gpu_runtime_names_reason_and_remedy(driver, monkeypatch):
    driver("470.82.01")
    monkeypatch.setitem(BUILDS, "jax", lambda _: 12)
    gap = why_not(Runtime("jax-epoch", "gpu"))
    assert "driver 525 or newer" in gap.reason
    assert gap.remedy == "update the driver"
    driver("570.86.10")
    assert unavailable(Runtime("jax-epoch", "gpu")) is None
    monkeypatch.setitem(BUILDS, "jax", lambda _: None)
    assert "without CUDA" in why_not(Runtime("jax-epoch", "gpu")).reason


@pytest.fixture
def adapters(monkeypatch):
    """WebGPU is installed and finds adapters of the given kinds: `adapters("integrated", "VirtualGPU")`."""

    def found(*kinds: str) -> None:
        listed = tuple(webgpu.Adapter(kind, f"a {kind}", "somebody", "1.2") for kind in kinds)
        monkeypatch.setattr(webgpu, "asked", lambda _: listed)

    monkeypatch.setattr(registry, "_installed", lambda *_: True)
    monkeypatch.delenv(webgpu.SOFTWARE_ALLOWED, raising=False)
    found()
    return found


def test_each_kind_of_adapter_is_a_separate_device(adapters):
    adapters("integrated", "discrete")
    by_webgpu = [runtime for runtime in all_runtimes() if runtime.device in ADAPTERS]
    assert len(by_webgpu) == 2 * len([one for one in BACKENDS.values() if one.devices == ADAPTERS])
    assert all(unavailable(runtime) is None and runtime.on_gpu for runtime in by_webgpu)
    assert "WebGPU, one submission a step, integrated GPU" in [runtime.label for runtime in by_webgpu]
    assert len({runtime.process for runtime in by_webgpu}) == 2
    assert versions(Runtime("webgpu-step", "integrated")).endswith(", a integrated 1.2"), "its driver"
    assert [runtime.place for runtime in all_runtimes()] == sorted(runtime.place for runtime in all_runtimes())
    assert why_not(Runtime("jax-epoch", "discrete")).reason == "it runs on cpu and gpu only"


def test_a_software_adapter_is_listed_only_on_request(adapters, monkeypatch):
    adapters("software")
    on_it = Runtime("webgpu-step", "software")
    assert {runtime.device for runtime in all_runtimes()} == {"cpu", "gpu", "discrete"}
    gap = why_not(on_it)
    assert "says nothing about a GPU's speed" in gap.reason
    assert gap.remedy.startswith("set WEBGPU_SOFTWARE=1")
    monkeypatch.setenv(webgpu.SOFTWARE_ALLOWED, "1")
    assert unavailable(on_it) is None
    assert on_it in all_runtimes()
    assert not on_it.on_gpu
    assert on_it.label.endswith("software adapter")


def test_a_missing_or_unknown_adapter_is_reported(adapters, monkeypatch):
    (gap,) = {unavailable(runtime) for runtime in all_runtimes() if runtime.device in ADAPTERS}
    assert gap is not None
    assert gap.reason == "WebGPU found no discrete GPU on this machine"
    adapters("VirtualGPU")
    assert "only a VirtualGPU, of unknown kind" in why_not(Runtime("webgpu-step", "discrete")).reason
    monkeypatch.setattr(registry, "_installed", lambda *_: False)
    assert why_not(Runtime("webgpu-step", "discrete")).reason == "wgpu is not installed"


def test_gpu_only_backends_are_unavailable_on_a_processor(monkeypatch):
    monkeypatch.setattr(registry, "_installed", lambda *_: True)
    assert "GPUs only" in why_not(Runtime("cupy")).reason
    monkeypatch.setattr(registry.shutil, "which", lambda _: None)
    assert "compiles with g++" in why_not(Runtime("torch-compiled")).reason


def test_versions_name_a_library_once_whichever_package_provides_it(monkeypatch):
    installed = {"numpy": "2.1.0", "tensorflow-cpu": "2.21.0", "cupy-cuda12x": "14.0.0"}
    monkeypatch.setattr(Environment, "version", lambda _, name: installed.get(name, ""))
    assert versions(Runtime("keras-tensorflow")).split(", ")[1:] == ["numpy 2.1.0", "tensorflow 2.21.0"]
    assert versions(Runtime("cupy")).endswith(", numpy 2.1.0, cupy 14.0.0")
    assert versions(Runtime("numpy")).startswith("python 3.")


def test_browser_backends_have_runtimes_but_no_worker():
    for key, trainer in IN_A_BROWSER.items():
        runtime = Runtime(key)
        assert (runtime.label, runtime.color, runtime.on_gpu) == (trainer.label, trainer.color, False)
        assert runtime not in all_runtimes()
    assert len(IN_A_BROWSER.keys() & BACKENDS.keys()) == 0
    for only_there in (*map(Runtime, IN_A_BROWSER), Runtime("webgpu-step", webgpu.BROWSER)):
        assert "only a browser" in why_not(only_there).reason


ON_A_CARD = Runtime("keras-tensorflow", "gpu")


@pytest.fixture
def cuda12(tmp_path, monkeypatch) -> Path:
    """The `site-packages` of an empty `.venv-cuda12`."""
    monkeypatch.setattr(registry, "ROOT", tmp_path)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / ".venv-cuda12"], check=True)
    return next(tmp_path.glob(".venv-cuda12/lib/python3.*/site-packages"))


def install(packages: Path, **names: str) -> None:
    for name, version in names.items():
        (packages / name).mkdir(exist_ok=True)
        (packages / name / "__init__.py").write_text("raise AssertionError('it was imported')\n")
        described = packages / f"{name}-{version}.dist-info"
        described.mkdir()
        (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def locked(name: str) -> dict[str, str]:
    text = (ROOT / name).read_text()
    return dict(re.findall(r"^([\w.-]+)(?:\[\w+\])?==(\S+)", text, re.MULTILINE))


def test_all_workers_run_here_without_a_second_environment(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "ROOT", tmp_path)
    assert {environment_of(runtime) for runtime in all_runtimes()} == {HERE}
    assert sys.executable == HERE.python


def test_only_tensorflow_on_a_card_uses_the_second_environment(cuda12):
    elsewhere = [runtime for runtime in all_runtimes() if environment_of(runtime) is not HERE]
    assert elsewhere == [ON_A_CARD]
    assert environment_of(ON_A_CARD).python.endswith("/.venv-cuda12/bin/python")


def test_packages_of_the_second_environment_are_found_without_import(cuda12):
    install(cuda12, keras="3.15.1", tensorflow="2.21.0")
    there = environment_of(ON_A_CARD)
    assert there.installed("tensorflow")
    assert there.version("tensorflow") == "2.21.0"
    assert getattr(there.spec("keras"), "origin", "") == str(cuda12 / "keras" / "__init__.py")
    assert not there.installed("numpy"), "which is installed here alone"
    assert (there.version("numpy"), there.spec("numpy")) == ("", None)
    assert HERE.installed("numpy")
    assert HERE.version("numpy")
    assert not HERE.installed("no_such_library")
    assert not HERE.installed("no_such_library.part")
    assert there.python_version == HERE.python_version, "it was made with this interpreter"


@pytest.mark.parametrize("line", ["version = 3.12.3", "version_info = 3.12.3", "version_info=3.12.3.final.0"])
def test_the_python_version_of_an_environment_is_read_from_its_config(tmp_path, line):
    (tmp_path / "pyvenv.cfg").write_text(f"home = /usr/bin\ninclude-system-site-packages = false\n{line}\n")
    assert Environment(str(tmp_path / "bin" / "python"), ()).python_version == "3.12.3"


def test_packages_missing_in_the_second_environment_are_reported(cuda12, driver):
    driver("580.65.06")
    gap = why_not(ON_A_CARD)
    assert gap.reason == "keras, tensorflow is not installed in .venv-cuda12"
    assert "make install" in gap.remedy
    install(cuda12, keras="3.15.1", tensorflow="2.21.0")  # an interrupted installation: the same command completes it
    registry._installed.cache_clear()
    gap = why_not(ON_A_CARD)
    assert gap.reason == "there is a GPU, but the library is the build without CUDA"
    assert "make install" in gap.remedy
    install(cuda12, nvidia_cudnn_cu12="9.28.0.42")
    assert unavailable(ON_A_CARD) is None


def test_versions_on_a_card_include_driver_and_cuda_libraries(cuda12, driver):
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

    def start(_module, arguments, _environment, python, _):
        started.append((*arguments[2:4], python))
        return SimpleNamespace(connection=None)

    monkeypatch.setattr(engine_module, "Process", start)
    for runtime in (ON_A_CARD, Runtime("keras-tensorflow"), Runtime("jax-epoch", "gpu")):
        engine_module._Worker(runtime, 1.0, 0, None)
    assert started == [
        ("keras-tensorflow", "gpu", str(registry.ROOT / ".venv-cuda12/bin/python")),
        ("keras-tensorflow", "cpu", sys.executable),
        ("jax-epoch", "gpu", sys.executable),
    ]


@pytest.mark.slow
def test_a_worker_in_another_environment_trains(cuda12, monkeypatch, lone_engine):
    (cuda12 / "borrowed.pth").write_text("\n".join(path for path in sys.path if "site-packages" in path))
    monkeypatch.setattr(engine_module, "environment_of", lambda _: environment_in(".venv-cuda12"))
    messages = list(lone_engine.run([Job(Runtime("numpy"), (Training(Network((8,)), batch_size=512),))], Cancel()))
    words = psutil.Process(lone_engine.pids()["numpy/cpu"]).cmdline()
    assert words[0] == str(registry.ROOT / ".venv-cuda12/bin/python")
    assert sum(isinstance(message, Trained) for message in messages) == 1


@pytest.mark.release
@pytest.mark.skipif(unavailable(Runtime("keras-tensorflow")) is not None, reason="TensorFlow is not installed")
def test_the_locked_second_environment_suffices_for_a_worker(tmp_path):
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


def test_each_cuda_generation_has_its_own_lock_file():
    here, there = locked("requirements-gpu.txt"), locked("requirements-cuda12.txt")
    assert not [name for name in here if "cu12" in name or "cuda12" in name]
    assert not [name for name in there if "cu13" in name or "cuda13" in name or name in ("torch", "jax")]
    assert {"jax-cuda13-plugin", "torch", "cupy-cuda13x", "tensorflow-cpu"} <= here.keys()
    assert {"tensorflow", "nvidia-cudnn-cu12"} <= there.keys()
    for name in ("requirements-torch.txt", "requirements-cupy.txt"):
        assert locked(name).items() <= here.items(), f"{name} would change what is installed with a card"
    same = here.keys() & there.keys() - {"setuptools"}
    assert {name: here[name] for name in same} == {name: there[name] for name in same}


def test_make_builds_every_environment_of_the_table():
    made = re.findall(r"^VENV\w* := (\S+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {backend.cuda_environment for backend in BACKENDS.values()} - {""} <= set(made)


@pytest.mark.parametrize(
    ("version", "major", "words"),
    [
        ("470.82.01", 12, "CUDA 12, which needs NVIDIA driver 525 or newer, but this one is 470.82.01"),
        ("570.86.10", 13, "CUDA 13, which needs NVIDIA driver 580 or newer, but this one is 570.86.10"),
        ("570.86.10", 12, ""),
        ("580.65.06", 13, ""),
    ],
)
def test_an_old_driver_is_reported(driver, version, major, words):
    driver(version)
    problem = registry.driver_problem(major)
    assert words in problem
    assert bool(problem) == bool(words)


@pytest.mark.parametrize("answer", [("NVIDIA-SMI has failed", 9), ("[N/A]", 0), ("", 0)])
def test_a_driver_of_unknown_version_is_not_refused(driver, answer):
    driver(*answer)
    assert nvidia.driver_version() == ""
    assert registry.driver_problem(12) == ""


@pytest.mark.parametrize(
    ("text", "major"),
    [("cuda: Optional[str] = '12.8'", 12), ("cuda = '13.0'", 13), ("cuda: Optional[str] = None", None)],
)
def test_pytorchs_cuda_version_is_read_from_its_file(tmp_path, text, major):
    install(tmp_path, torch="2.13.0")
    (tmp_path / "torch" / "version.py").write_text(f"__version__ = '2.13.0'\n{text}\nhip = None\n")
    assert BUILDS["torch"](Environment("python", (str(tmp_path),))) == major
    assert BUILDS["torch"](Environment("python", ())) is None


@pytest.mark.parametrize(
    ("worker", "packages", "major"),
    [
        ("numba-cuda", ("numba_cuda", "nvidia_cuda_nvcc_cu12"), 12),
        ("numba-cuda", ("numba_cuda", "nvidia_nvvm"), 13),
        ("numba-cuda", ("numba_cuda",), 12),
        ("numba-cuda", (), None),
        ("keras-tensorflow", ("tensorflow", "nvidia_cudnn_cu12"), 12),
        ("keras-tensorflow", ("tensorflow", "nvidia_cudnn_cu12", "nvidia_cudnn_cu13"), None),  # they share files
        ("cupy", ("cupy_cuda12x",), 12),
        ("cupy", ("cupy_cuda13x",), 13),
    ],
)
def test_the_cuda_version_is_read_from_installed_packages(tmp_path, worker, packages, major):
    install(tmp_path, **dict.fromkeys(packages, "13.0"))
    assert BUILDS[worker](Environment("python", (str(tmp_path),))) == major


WITH_WRONG_SUMS = "--xla_cpu_experimental_ynn_fusion_type=+reduce"


def test_a_gpu_worker_is_given_the_cards_by_uuid_and_a_cpu_worker_none(driver, monkeypatch):
    driver("570.86.10")
    assert worker_environment(Runtime("jax-epoch"), None)["CUDA_VISIBLE_DEVICES"] == "-1"
    gpu = worker_environment(Runtime("keras-tensorflow", "gpu"), None)
    assert gpu["CUDA_VISIBLE_DEVICES"] == "GPU-11aa,GPU-22bb"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert worker_environment(Runtime("jax-epoch", "gpu"), None)["CUDA_VISIBLE_DEVICES"] == "GPU-22bb"
    assert gpu["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"


def test_a_gpu_workers_environment_sets_the_precision(driver):
    driver("570.86.10")
    plain = worker_environment(Runtime("jax-epoch", "gpu"), None)
    assert plain["NVIDIA_TF32_OVERRIDE"] == "0"
    assert (plain["JAX_DEFAULT_MATMUL_PRECISION"], plain["CUPY_TF32"]) == ("highest", "0")
    rounded = worker_environment(Runtime("jax-epoch", "gpu", "tf32"), None)
    assert "NVIDIA_TF32_OVERRIDE" not in rounded
    assert (rounded["JAX_DEFAULT_MATMUL_PRECISION"], rounded["CUPY_TF32"]) == ("TF32_TF32_F32", "1")
    assert "JAX_DEFAULT_MATMUL_PRECISION" not in worker_environment(Runtime("jax-epoch"), None)
    on_processor = worker_environment(Runtime("jax-epoch", "cpu", "bfloat16"), None)
    assert on_processor["JAX_DEFAULT_MATMUL_PRECISION"] == ROUNDED
    tensorflow = worker_environment(Runtime("keras-tensorflow", "gpu"), None)
    assert tensorflow["TF_CPP_MIN_LOG_LEVEL"] == "1", "why it does not use the card is a warning"


@pytest.mark.parametrize("runtime", [Runtime("jax-epoch"), Runtime("jax-step"), Runtime("keras-jax")])
def test_the_users_xla_flags_are_kept_and_take_precedence(monkeypatch, runtime):
    monkeypatch.setenv("XLA_FLAGS", f"--xla_dump_to=/nowhere {WITH_WRONG_SUMS}")
    for threads in (None, 1):
        flags = worker_environment(runtime, None, threads)["XLA_FLAGS"].split()
        assert flags[:3] == [XLA_WITHOUT_WRONG_SUMS, "--xla_dump_to=/nowhere", WITH_WRONG_SUMS], (
            "the last of two counts"
        )
    monkeypatch.delenv("XLA_FLAGS")
    assert XLA_WITHOUT_WRONG_SUMS in worker_environment(runtime, None)["XLA_FLAGS"]


def test_only_jax_workers_get_xla_flags(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    for key in ("numpy", "torch", "keras-tensorflow"):
        assert "XLA_FLAGS" not in worker_environment(Runtime(key), None)
