"""What `nvidia-smi` reports, from a program of that name that a test puts on the path."""

import pytest

import lib.backends.registry as table
from lib.cli import record as record_module
from lib.cli.record import CannotRecord, choose_card
from lib.hardware import nvidia_smi


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


def test_without_the_program_there_is_no_driver(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    for asked in (nvidia_smi.nvidia_cards, nvidia_smi.driver_version):
        asked.cache_clear()
    try:
        assert (nvidia_smi.nvidia_cards(), nvidia_smi.gpu_names(), nvidia_smi.driver_version()) == ((), [], "")
        assert not nvidia_smi.nvidia_driver_answers()
    finally:
        for asked in (nvidia_smi.nvidia_cards, nvidia_smi.driver_version):
            asked.cache_clear()


def test_a_program_that_fails_lists_no_cards(driver):
    driver("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", 9)
    assert nvidia_smi.nvidia_cards() == ()
    assert nvidia_smi.gpu_names() == []
