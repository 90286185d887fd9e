"""A background task tells all that came, how it ended, and never before."""

import threading
import time

import pytest

from lib.sweeps.experiments.background import BackgroundTask, Watched
from lib.sweeps.workers.cancel import Cancel
from lib.sweeps.workers.messages import WorkerDied
from lib.sweeps.workers.notes import Note, State


def finished(make, cancel=None):
    task = BackgroundTask(make, cancel or Cancel())
    task.thread.join(5)
    return task


def test_items_notes_and_the_end():
    def make():
        yield Note("starting")
        yield 1
        yield 2
        yield Note("almost")

    now = finished(make).view()
    assert (now.items, now.state, now.note, now.version) == ([1, 2], State.DONE, "", 5), (
        "at the end nothing is going on"
    )


def test_a_note_is_gone_when_something_came():
    now = finished(lambda: iter([Note("starting"), 1])).view()
    assert now.note == ""


def test_a_stop_is_no_end():
    cancel = Cancel()

    def make():
        yield 1
        cancel.set()

    assert finished(make, cancel).view().state == State.STOPPED


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("error", "words"), [(WorkerDied("it was killed"), "it was killed"), (KeyError("x"), "fault of this program")]
)
def test_what_came_before_a_failure_stays(error, words):
    def make():
        yield 1
        raise error

    now = finished(make).view()
    assert (now.items, now.state) == ([1], State.FAILED)
    assert words in now.problem


def test_it_is_over_only_for_who_has_seen_the_end():
    """A painter that draws while the last thing happens must draw once more."""
    go = Cancel()

    def make():
        yield 1
        go.wait(5)

    task = BackgroundTask(make, Cancel())
    assert task.wait_for_news(0, 5)
    seen = task.view()
    assert seen.state == State.MEASURING
    go.set()
    task.thread.join(5)
    assert not task.over_at(seen.version)
    assert task.over_at(task.view().version)
    assert not task.wait_for_news(task.view().version, 0.01)


def test_who_follows_several_changes_with_each_of_them_and_holds_up_none():
    both, one, other = (Watched(State.MEASURING) for _ in range(3))
    one.followed_by(both)
    other.followed_by(both)
    task = BackgroundTask(lambda: iter([1, 2]), Cancel())
    task.followed_by(both)
    task.thread.join(5)
    before = both.version
    for changed in (one, other, one):
        with changed.changed:
            changed._tell()
    assert both.version == before + 3
    del both
    with one.changed:
        one._tell()
    assert one.version == 3, "whoever follows is held weakly"


class Counted(Watched):
    """Counts how often somebody who waits has looked."""

    def __init__(self):
        super().__init__(State.TRAINING)
        self.looks = 0

    @property
    def now(self):
        self.looks += 1
        return self

    def become(self, state):
        with self.changed:
            self.state = state
            self._tell()


def test_who_waits_for_the_end_is_not_woken_by_what_comes_before_it():
    """In front of a class a hundred pages watch one race, and each of them has a frame every two seconds."""
    watched, ended = Counted(), []
    waiting = threading.Thread(target=lambda: ended.append(watched.wait_for_end(60)))
    waiting.start()
    while not watched.looks:
        time.sleep(0.01)
    for _ in range(20):
        watched.become(State.TRAINING)
        time.sleep(0.01)  # so that who was woken can look
    assert watched.looks == 1
    watched.become(State.DONE)
    waiting.join(60)
    assert ended == [True]
    assert watched.looks <= 3
