"""A driver that is too old for a library's CUDA is named, with the remedy, before anything is tried."""

import pytest

from lib.model.backends import environments as cuda
from lib.model.backends.environments import Environment
from lib.model.hardware import nvidia as nvidia_smi


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
    problem = cuda.driver_problem(major)
    assert words in problem
    assert bool(problem) == bool(words)


@pytest.mark.parametrize("answer", [("NVIDIA-SMI has failed", 9), ("[N/A]", 0), ("", 0)])
def test_a_driver_that_says_nothing_is_not_refused(driver, answer):
    driver(*answer)
    assert nvidia_smi.driver_version() == ""
    assert cuda.driver_problem(12) == ""


@pytest.mark.parametrize(
    ("text", "major"),
    [("cuda: Optional[str] = '12.8'", 12), ("cuda = '13.0'", 13), ("cuda: Optional[str] = None", None)],
)
def test_pytorchs_own_file_names_its_cuda(tmp_path, text, major):
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('it was imported')\n")
    (package / "version.py").write_text(f"__version__ = '2.13.0'\n{text}\nhip = None\n")
    assert cuda.BUILDS["torch"](Environment("python", (str(tmp_path),))) == major
    assert cuda.BUILDS["torch"](Environment("python", ())) is None


@pytest.mark.parametrize(
    ("named", "major"), [("nvidia_cuda_nvcc_cu12", 12), ("nvidia_nvvm", 13), ("numpy", 12), ("", None)]
)
def test_the_compiler_beside_numba_cuda_names_its_cuda(tmp_path, named, major):
    if named:
        (tmp_path / "numba_cuda").mkdir()
        (tmp_path / "numba_cuda" / "__init__.py").touch()
        (tmp_path / f"{named}-13.0.dist-info").mkdir()
        described = f"Metadata-Version: 2.1\nName: {named.replace('_', '-')}\nVersion: 13.0\n"
        (tmp_path / f"{named}-13.0.dist-info" / "METADATA").write_text(described)
    assert cuda.BUILDS["numba-cuda"](Environment("python", (str(tmp_path),))) == major


@pytest.mark.parametrize("major", [12, 13])
def test_cupys_package_names_its_cuda(tmp_path, major):
    (tmp_path / f"cupy_cuda{major}x-14.2.0.dist-info").mkdir()
    described = f"Metadata-Version: 2.1\nName: cupy-cuda{major}x\nVersion: 14.2.0\n"
    (tmp_path / f"cupy_cuda{major}x-14.2.0.dist-info" / "METADATA").write_text(described)
    assert cuda.BUILDS["cupy"](Environment("python", (str(tmp_path),))) == major
