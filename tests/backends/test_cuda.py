"""A driver that is too old for a library's CUDA is named, with the remedy, before anything is tried."""

import pytest

import lib.backends.registry as table
from lib.backends import cuda
from lib.backends.registry import Runtime, unavailable
from lib.cli import record as record_module
from lib.cli.record import CannotRecord, choose_card
from lib.hardware import nvidia_smi


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """A machine whose driver answers: `driver("470.82.01")`."""

    def answers(version: str, status: int = 0) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(
            '#!/bin/sh\ncase "$1" in -L) printf "GPU 0: NVIDIA L4 (UUID: x)\\nGPU 1: NVIDIA A2 (UUID: y)\\n";; *) echo'
            f' "{version}";; esac\nexit {status}\n'
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        for cached in (nvidia_smi.driver_version, nvidia_smi.nvidia_cards, table._installed):
            cached.cache_clear()

    yield answers
    monkeypatch.undo()
    for cached in (nvidia_smi.driver_version, nvidia_smi.nvidia_cards, table._installed):
        cached.cache_clear()


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


def test_a_way_says_what_to_do_about_it(driver, monkeypatch):
    driver("470.82.01")
    monkeypatch.setitem(cuda.BUILDS, "jax", lambda: 12)
    gap = unavailable(Runtime("jax-epoch", "gpu"))
    assert gap is not None
    assert "driver 525 or newer" in gap.reason
    assert gap.remedy == "update the driver, or install the library's build for an older CUDA"
    driver("570.86.10")
    assert unavailable(Runtime("jax-epoch", "gpu")) is None
    monkeypatch.setitem(cuda.BUILDS, "jax", lambda: None)
    gap = unavailable(Runtime("jax-epoch", "gpu"))
    assert gap is not None
    assert "without CUDA" in gap.reason


@pytest.mark.parametrize("answer", [("NVIDIA-SMI has failed", 9), ("[N/A]", 0), ("", 0)])
def test_a_driver_that_says_nothing_is_not_refused(driver, answer):
    driver(*answer)
    assert nvidia_smi.driver_version() == ""
    assert cuda.driver_problem(12) == ""


@pytest.mark.parametrize(
    ("text", "major"),
    [("cuda: Optional[str] = '12.8'", 12), ("cuda = '13.0'", 13), ("cuda: Optional[str] = None", None)],
)
def test_pytorchs_own_file_names_its_cuda(tmp_path, monkeypatch, text, major):
    from importlib.machinery import ModuleSpec

    (tmp_path / "version.py").write_text(f"__version__ = '2.13.0'\n{text}\nhip = None\n")
    spec = ModuleSpec("torch", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(cuda.importlib.util, "find_spec", lambda _: spec)
    assert cuda.BUILDS["torch"]() == major


def test_cupys_package_names_its_cuda(monkeypatch):
    monkeypatch.setattr(cuda, "_has_package", lambda name: name == "cupy-cuda13x")
    assert cuda.BUILDS["cupy"]() == 13


def test_what_knows_only_cards_is_not_offered_on_a_processor(monkeypatch):
    monkeypatch.setattr(table, "_installed", lambda _: True)
    gap = unavailable(Runtime("cupy"))
    assert gap is not None
    assert "only graphics cards" in gap.reason
    monkeypatch.setattr(table.shutil, "which", lambda _: None)
    gap = unavailable(Runtime("torch-compiled"))
    assert gap is not None
    assert "compiles with g++" in gap.reason


def test_each_of_several_cards_is_recorded_by_itself(driver, monkeypatch, capsys):
    driver("570.86.10")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    choose_card(1)
    assert [line.split(" (")[0] for line in nvidia_smi.nvidia_cards()] == ["GPU 1: NVIDIA A2"]
    assert nvidia_smi.visible(["NVIDIA L4", "NVIDIA A2"]) == ["NVIDIA A2"], (
        "the machine is named, and told apart, by this card"
    )
    assert table.device_count("gpu") == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    nvidia_smi.nvidia_cards.cache_clear()
    choose_card(None)
    assert "2 graphics cards; the first is recorded, another by --card 1" in capsys.readouterr().out
    assert len(nvidia_smi.nvidia_cards()) == 1
    for number, words in ((1, "expected 0 to 0, got 1"), (-1, "expected 0 to 0, got -1")):
        with pytest.raises(CannotRecord, match=words):
            choose_card(number)


def test_a_card_is_not_chosen_where_there_is_none(monkeypatch):
    monkeypatch.setattr(record_module, "nvidia_cards", lambda: ())
    choose_card(None)
    with pytest.raises(CannotRecord, match="got 0 on one without; leave --card out"):
        choose_card(0)


def test_a_processors_worker_sees_no_card_and_hides_none(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert nvidia_smi.visible(["NVIDIA L4"]) == ["NVIDIA L4"]
