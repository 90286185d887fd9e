"""The pool of guesses: one a viewer and question, nothing but counts of who has left, and right from many threads."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.sweeps.experiments import teacher
from lib.sweeps.experiments.teacher import Guesses, GuessQuestion

QUESTIONS = tuple(
    GuessQuestion("learning-rate", "best", ("0.1", "1", "10"), about) for about in (("a",), ("b",), ("c",))
)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from("pqrs"), st.sampled_from(QUESTIONS), st.sampled_from(QUESTIONS[0].options)),
        st.sampled_from("pqrs"),  # leaves
    ),
    max_size=60,
)


@given(ACTIONS)
def test_each_viewer_counts_once_a_question_and_stays_counted(actions):
    pool, present, left = Guesses(), {}, Counter()
    for action in actions:
        if isinstance(action, str):
            pool.forget(action)
            left.update((asked, option) for (who, asked), option in present.items() if who == action)
            present = {(who, asked): option for (who, asked), option in present.items() if who != action}
        else:
            viewer, question, option = action
            pool.guess(viewer, question, option)
            present[viewer, question] = option
    expected = left + Counter((question, option) for (_, question), option in present.items())
    tally = pool.tally()
    for question in QUESTIONS:
        assert tally.of(question) == {option: expected[question, option] for option in question.options}
        for viewer in "pqrs":
            assert pool.of(viewer, question) == present.get((viewer, question))


def test_who_has_left_is_known_by_nothing():
    pool = Guesses()
    pool.guess("a random name", QUESTIONS[0], "1")
    pool.forget("a random name")
    assert pool.tally().of(QUESTIONS[0]) == {"0.1": 0, "1": 1, "10": 0}
    assert "a random name" not in repr(vars(pool))


def test_what_is_no_option_is_refused_and_counts_nothing():
    pool = Guesses()
    with pytest.raises(ValueError, match=r"expected one of 0.1, 1, 10, got 0.3"):
        pool.guess("p", QUESTIONS[0], "0.3")
    assert pool.tally().counts == {}


@pytest.mark.parametrize("sections", [["learning-rate"], ["depth", "backend"]])
def test_one_viewer_s_many_settings_push_out_no_other_answers(sections, monkeypatch):
    monkeypatch.setattr(teacher, "MAX_VIEWERS", 4)
    pool, questions = Guesses(), [GuessQuestion(name, "best", ("1", "2"), ("first",)) for name in sections]
    for question in questions:
        for viewer in "abc":
            pool.guess(viewer, question, "1")
    for number in range(1_000):
        pool.guess(
            f"{number % 9}", GuessQuestion(sections[number % len(sections)], "best", ("1",), (str(number),)), "1"
        )
    pool.guess("a", questions[0], "2")
    assert list(pool.tally().counts)[-1] == questions[0], "the teacher sees first what was guessed last"
    assert pool.tally().of(questions[0]) == {"1": 2, "2": 1}, "it is known what a guessed"
    assert [pool.tally().of(question) for question in questions[1:]] == [{"1": 3, "2": 0}] * len(questions[1:])
    assert len(pool.tally().counts) == 1_000 + len(questions)


def test_neither_questions_nor_viewers_grow_without_end(monkeypatch):
    monkeypatch.setattr(teacher, "MAX_QUESTIONS", 3)
    monkeypatch.setattr(teacher, "MAX_VIEWERS", 4)
    pool = Guesses()
    asked = [GuessQuestion("learning-rate", "best", ("1",), (str(number),)) for number in range(9)]
    for question in asked:
        for viewer in "abcdefg":
            pool.guess(viewer, question, "1")
    tally = pool.tally()
    assert list(tally.counts) == asked[:3], "what is answered stays"
    assert [pool.of(viewer, asked[2]) for viewer in "ag"] == [None, "1"], "the first are forgotten, as if they had left"
    assert [tally.of(question) for question in asked[:4]] == [{"1": 7}] * 3 + [{"1": 0}]


def test_cleared_counts_begin_at_nothing():
    pool = Guesses()
    pool.guess("p", QUESTIONS[0], "1")
    pool.clear()
    assert pool.tally().counts == {}
    pool.guess("p", QUESTIONS[0], "10")
    assert pool.tally().of(QUESTIONS[0]) == {"0.1": 0, "1": 0, "10": 1}


def test_forty_who_guess_at_once_are_all_counted_and_seen():
    pool, ready, versions = Guesses(), threading.Barrier(41), []

    def guess(number: int) -> None:
        ready.wait(60)
        for option in ("0.1", "1", "10") * 5 + ("1",):
            pool.guess(f"viewer {number}", QUESTIONS[number % 2], option)
        if number % 4 == 0:
            pool.forget(f"viewer {number}")

    def watch() -> None:
        ready.wait(60)
        while not versions or versions[-1] < 40 * 16:
            assert pool.wait_for_news(versions[-1] if versions else 0, 60)
            tally = pool.tally()
            assert sum(sum(tally.of(question).values()) for question in QUESTIONS) <= 40, "nobody counts twice"
            versions.append(tally.version)

    with ThreadPoolExecutor(41) as threads:
        for done in [threads.submit(watch), *(threads.submit(guess, number) for number in range(40))]:
            done.result(120)
    tally = pool.tally()
    assert [tally.of(question) for question in QUESTIONS[:2]] == [{"0.1": 0, "1": 20, "10": 0}] * 2
    assert versions == sorted(set(versions))
