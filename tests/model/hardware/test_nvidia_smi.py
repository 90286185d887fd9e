"""What `nvidia-smi` reports, from a program of that name that a test puts on the path."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.cli import Unusable
from lib.cli import record as record_module
from lib.cli.record import choose_card
from lib.model.backends.environment_variables import device_count
from lib.model.hardware import nvidia_smi
from lib.model.hardware.machine import this_machine
from lib.model.hardware.nvidia_smi import Card, cards, driver_version, nvidia_driver_answers, visible

L4, T4 = Card("GPU-11aa", "NVIDIA L4", "570.86.10"), Card("GPU-22bb", "Tesla T4", "570.86.10")


def test_a_card_is_described_as_the_driver_does(driver):
    driver("570.86.10")
    assert cards()[0] == Card("GPU-11aa", "NVIDIA L4", "570.86.10", 23034 * 2**20, 8.9)
    assert [card.name for card in cards()] == ["NVIDIA L4", "Tesla T4"]
    assert driver_version() == "570.86.10"


def test_a_driver_that_does_not_know_the_last_field_is_asked_without_it(driver, tmp_path):
    driver("450.51")
    (tmp_path / "nvidia-smi").write_text(
        '#!/bin/sh\ncase "$1" in *compute_cap*) echo "not a valid field"; exit 2;; esac\n'
        'echo "GPU-22bb, Tesla T4, 450.51, [N/A]"\n'
    )
    assert cards() == (Card("GPU-22bb", "Tesla T4", "450.51"),)


def test_each_of_several_cards_is_recorded_by_itself(driver, monkeypatch, capsys):
    driver("570.86.10")
    choose_card(1)
    assert [card.name for card in cards()] == ["Tesla T4"]
    this_machine.cache_clear()
    try:
        assert this_machine().gpu == "Tesla T4", "the machine is named, and told apart, by this card"
    finally:
        this_machine.cache_clear()
    assert device_count("gpu") == 1
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    choose_card(None)
    assert "2 graphics cards; the first is recorded, another by --card 1" in capsys.readouterr().out
    assert [card.uuid for card in cards()] == ["GPU-11aa"]
    for number, words in ((1, "expected 0 to 0, got 1"), (-1, "expected 0 to 0, got -1")):
        with pytest.raises(Unusable, match=words):
            choose_card(number)


def test_a_card_is_not_chosen_where_there_is_none(monkeypatch):
    monkeypatch.setattr(record_module, "cards", lambda: ())
    choose_card(None)
    with pytest.raises(Unusable, match="got 0 on one without; leave --card out"):
        choose_card(0)


@pytest.mark.parametrize(
    ("named", "left"),
    [
        (None, (L4, T4)),
        ("", ()),
        ("-1", ()),
        ("0", (L4,)),
        ("1,0", (T4, L4)),
        ("0,0", (L4,)),
        ("2", ()),
        ("0,-1,1", (L4,)),  # as in CUDA, nothing counts after what names no card
        ("GPU-22bb", (T4,)),
        ("GPU-2, GPU-1", (T4, L4)),
        ("GPU-", ()),  # names both
        ("all", ()),
    ],
)
def test_what_the_variable_leaves(named, left):
    assert visible((L4, T4), named) == left


@given(st.text() | st.lists(st.sampled_from(["0", "1", "2", "-1", "GPU-1", "GPU-22bb", "x"])).map(",".join))
def test_whatever_the_variable_says_names_cards_once_or_none(named):
    found = visible((L4, T4), named)
    assert len(set(found)) == len(found)
    assert set(found) <= {L4, T4}


def test_without_the_program_there_is_no_driver(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    nvidia_smi.all_cards.cache_clear()
    try:
        assert (cards(), driver_version()) == ((), "")
        assert not nvidia_driver_answers()
    finally:
        nvidia_smi.all_cards.cache_clear()


def test_a_program_that_fails_lists_no_cards(driver):
    driver("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", 9)
    assert cards() == ()
    assert not nvidia_driver_answers()
