"""A filling tells all that came, how it ended, and never before."""

import pytest

from lib.backends.registry import Way
from lib.data.mnist import Facts
from lib.experiments.background import DONE, FAILED, STOPPED, Filling
from lib.workers.cancel import Cancel
from lib.workers.engine import Ready, Starting, Waiting, WorkerDied
from lib.workers.notes import MEASURING, STARTING, WAITING, Note, note_of


def finished(make, cancel=None):
    filling = Filling(make, cancel or Cancel())
    filling.thread.join(5)
    return filling


def test_items_notes_and_the_end():
    def make():
        yield Note("starting")
        yield 1
        yield 2
        yield Note("almost")

    now = finished(make).view()
    assert (now.items, now.state, now.note, now.version) == ([1, 2], DONE, "", 5), "at the end nothing is going on"


def test_a_note_is_gone_when_something_came():
    now = finished(lambda: iter([Note("starting"), 1])).view()
    assert now.note == ""


@pytest.mark.parametrize(
    ("message", "state", "words"),
    [
        (Waiting(2), WAITING, "2 before this"),
        (Waiting(None), WAITING, "another program measures"),
        (Starting(Way("keras-jax")), STARTING, "Keras on JAX: its worker imports the library and loads the images"),
        (Ready(Facts("", "")), MEASURING, "32 networks"),
    ],
    ids=["queue", "other program", "start", "ready"],
)
def test_a_state_goes_by_its_name(message, state, words):
    """What waits does not say that it measures; it is not over either."""
    go = Cancel()

    def make():
        yield note_of(message, "32 networks")
        go.wait(5)

    filling = Filling(make, Cancel())
    assert filling.wait_for_news(0, 5)
    now = filling.view()
    assert (now.state, now.note, now.over, filling.over_at(now.version)) == (state, words, False, False)
    go.set()
    filling.thread.join(5)
    assert (filling.view().state, filling.view().note) == (DONE, "")


def test_a_stop_is_no_end():
    cancel = Cancel()

    def make():
        yield 1
        cancel.set()

    assert finished(make, cancel).view().state == STOPPED


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("error", "words"), [(WorkerDied("it was killed"), "it was killed"), (KeyError("x"), "fault of this program")]
)
def test_what_came_before_a_failure_stays(error, words):
    def make():
        yield 1
        raise error

    now = finished(make).view()
    assert (now.items, now.state) == ([1], FAILED)
    assert words in now.problem


def test_it_is_over_only_for_who_has_seen_the_end():
    """A painter that draws while the last thing happens must draw once more."""
    go = Cancel()

    def make():
        yield 1
        go.wait(5)

    filling = Filling(make, Cancel())
    assert filling.wait_for_news(0, 5)
    seen = filling.view()
    assert seen.state == MEASURING
    go.set()
    filling.thread.join(5)
    assert not filling.over_at(seen.version)
    assert filling.over_at(filling.view().version)
    assert not filling.wait_for_news(filling.view().version, 0.01)
