"""What a teacher says reaches every page that listens, from any thread; who has gone is counted no more."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from lib.sweeps.experiments import teacher
from lib.sweeps.experiments.guesses import Guesses, GuessQuestion
from lib.sweeps.experiments.results import News
from lib.sweeps.experiments.teacher import SECTIONS, Classroom, Overview
from lib.sweeps.workers.queue import Request


def test_what_is_said_reaches_every_page_once_and_silence_none():
    room, pages = Classroom(), [News() for _ in range(3)]
    for page in pages:
        room.heard.followed_by(page)
    room.say(predicts=True)
    room.say(predicts=True)
    assert [page.version for page in pages] == [1, 1, 1], "the second time nothing new was said"
    room.heard.left_by(pages[0])
    room.say(pauses=True)
    room.look("a", "depth")
    assert [page.version for page in pages] == [1, 2, 2], "where others look is nobody's news"
    assert (room.said.predicts, room.said.pauses, room.said.shows) == (True, True, False)


def test_pages_are_counted_by_their_section_until_they_have_gone():
    room = Classroom()
    room.look("a", "depth")
    room.look("a", "backend")
    room.look("b", "backend")
    assert room.sections()[0] == dict.fromkeys(SECTIONS, 0) | {"backend": 2}
    room.forget("a")
    assert room.sections()[0]["backend"] == 1
    with pytest.raises(ValueError, match="got attic"):
        room.look("a", "attic")


def test_pages_report_for_as_long_as_a_teacher_looks():
    room, page = Classroom(), News()
    room.heard.followed_by(page)
    room.observe("one teacher")
    room.observe("another")
    assert room.said.observed
    room.forget("one teacher")
    room.sections()
    assert room.said.observed
    room.forget("another")
    room.look("a", "depth")
    assert not room.said.observed
    assert page.version == 2


def test_all_that_many_threads_say_is_there_in_the_end():
    room = Classroom()
    fields = ("predicts", "shows", "pauses")

    def act(number):
        room.come(str(number))
        room.look(str(number), SECTIONS[number % 3])
        for on in (True, False) * 5 + (True,):
            room.say(**{fields[number % 3]: on})
        if number % 2:
            room.forget(str(number))

    with ThreadPoolExecutor(20) as threads:
        list(threads.map(act, range(20)))
    counts, n_pages = room.sections()
    assert (sum(counts.values()), n_pages) == (10, 10)
    assert all(getattr(room.said, field) for field in fields)


def test_an_overview_changes_with_guesses_the_class_and_the_queue(monkeypatch, lone_engine):
    room, pool = Classroom(), Guesses()
    monkeypatch.setattr(teacher, "classroom", lambda: room)
    monkeypatch.setattr(teacher, "guesses_of_class", lambda: pool)
    seen = Overview(lone_engine)
    for act in (
        lambda: pool.guess("p", GuessQuestion("depth", "best", ("128",)), "128"),
        lambda: room.look("p", "depth"),
        lambda: room.say(shows=True),
    ):
        before = seen.version
        act()
        assert seen.wait_for_news(before, 0)
    before = seen.version
    with lone_engine.turn(Request()):
        assert seen.wait_for_news(before, 0)
        assert (seen.queued.running, seen.queued.waiting) == (0, 1), "it has not begun yet"
    assert not Overview(lone_engine).queued.waiting
