"""What engine and workers say to each other can travel, and arrives as it was sent."""

import pickle

import numpy as np
import pytest

from lib.model.backends.base import Epoch, FirstCall, Steps, no_parameters
from lib.model.backends.registry import Runtime
from lib.model.data.mnist import Facts
from lib.model.spec import Network, Training
from lib.sweeps.experiments.runs import BackgroundTask
from lib.sweeps.workers.messages import (
    About,
    Checkpoint,
    End,
    Failed,
    How,
    Item,
    Job,
    JobMessage,
    Measured,
    Note,
    Order,
    Progress,
    Ready,
    Starting,
    State,
    Trained,
    Waiting,
    Wish,
    note_of,
    noted,
)
from lib.sweeps.workers.queue import Cancel
from lib.timing.measurement import Ended, Measurement
from lib.timing.profiling.request import Examination
from tests.generators import collected

ITEM = Item(Training(Network((64, 32)), 0.3, 32, 2, seed=1), Runtime("numpy"))
WEIGHTS = [(np.ones((784, 10), np.float32), np.zeros(10, np.float32))]
SENT = [
    Job(1, ITEM.runtime, (ITEM.training,), How(devices=2, want_parameters=True)),
    Job(2, ITEM.runtime, (), examination=Examination("parts")),
    *[Order(1, wish) for wish in Wish],
    About(7, Facts("MNIST", "digest"), "numpy 2"),
    Failed("there is not enough memory"),
    *[
        JobMessage(1, content)
        for content in (
            Progress(ITEM, FirstCall(0.1)),
            Progress(ITEM, Epoch(0, 1500, 0.3, 0.9, 0.1, 0.01, no_parameters)),
            Measured("product", Measurement((1e-3,), 1, Ended.CAP), 1e9),
            Trained(ITEM, None),
            Failed("no"),
            *End,
            None,
        )
    ],
]


@pytest.mark.parametrize("message", SENT, ids=lambda message: type(message).__name__)
def test_it_arrives_as_it_was_sent(message):
    assert pickle.loads(pickle.dumps(message)) == message


def test_arrays_arrive_too():
    for sent in (Checkpoint(ITEM, 1, WEIGHTS), Trained(ITEM, WEIGHTS)):
        ((weights, _),) = pickle.loads(pickle.dumps(sent)).parameters
        np.testing.assert_array_equal(weights, WEIGHTS[0][0])
    steps = pickle.loads(pickle.dumps(Progress(ITEM, Steps(0, 0, np.ones(3, np.float32), 0.1)))).event
    np.testing.assert_array_equal(steps.losses, np.ones(3, np.float32))


@pytest.mark.parametrize(
    ("message", "state", "words"),
    [
        (Waiting(2), State.WAITING, "2 before this"),
        (Waiting(None, "another program measures"), State.WAITING, "another program measures"),
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
