"""Notes: what a message says to who waits."""

import pytest

from lib.model.backends.registry import Runtime
from lib.model.data.mnist import Facts
from lib.sweeps.experiments.background import BackgroundTask
from lib.sweeps.workers.cancel import Cancel
from lib.sweeps.workers.messages import Ready, Starting, Waiting
from lib.sweeps.workers.notes import Note, State, note_of, noted
from tests.generators import collected


@pytest.mark.parametrize(
    ("message", "state", "words"),
    [
        (Waiting(2), State.WAITING, "2 before this"),
        (Waiting(None), State.WAITING, "another program measures"),
        (
            Starting(Runtime("keras-jax")),
            State.STARTING,
            "Keras on JAX: its worker imports the library and loads the images",
        ),
        (Ready(Facts("", "")), State.MEASURING, "32 networks"),
    ],
    ids=["queue", "other program", "start", "ready"],
)
def test_a_state_goes_by_its_name(message, state, words):
    """What waits does not say that it measures; it is not over either."""
    go = Cancel()

    def make():
        yield note_of(message, "32 networks")
        go.wait(5)

    task = BackgroundTask(make, Cancel())
    assert task.wait_for_news(0, 5)
    now = task.view()
    assert (now.state, now.note, now.over, task.over_at(now.version)) == (state, words, False, False)
    go.set()
    task.thread.join(5)
    assert (task.view().state, task.view().note) == (State.DONE, "")


def test_what_a_generator_is_for_comes_after_the_notes_on_its_way():
    def measuring():
        yield Ready(Facts("MNIST", ""))
        yield "of no interest to who waits"
        return 7

    assert collected(noted(measuring(), "what is measured")) == ([Note("what is measured")], 7)
