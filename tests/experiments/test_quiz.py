"""The questions before and after each section have one right answer, and are counted apart."""

import pytest

from lib.experiments.quiz import AFTER, BEFORE, QUIZ, items_of
from lib.experiments.teacher import SECTIONS


@pytest.mark.parametrize("item", QUIZ, ids=lambda item: item.text)
def test_one_of_the_choices_is_right(item):
    assert item.choices.count(item.right) == 1
    assert len(set(item.choices)) == len(item.choices) == 3
    assert item.why.endswith(".")
    assert item.asked(BEFORE) != item.asked(AFTER)


def test_each_section_has_two():
    assert [len(items_of(section)) for section in SECTIONS] == [2] * 6
    places = {item.choices.index(item.right) for item in QUIZ}
    assert places == {1, 2}, "not always at the same place"
