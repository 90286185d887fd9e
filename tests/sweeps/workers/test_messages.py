"""What engine and workers say to each other can travel, and arrives as it was sent."""

import pickle

import numpy as np
import pytest

from lib.model.backends.base import Epoch, FirstCall, Steps, no_parameters
from lib.model.backends.registry import Runtime
from lib.model.data.mnist import Facts
from lib.model.spec import Network, Training
from lib.sweeps.workers.messages import (
    CardLost,
    Checkpoint,
    End,
    How,
    Item,
    Job,
    Measured,
    Note,
    Progress,
    Ready,
    Starting,
    State,
    Trained,
    TrainingFailed,
    Waiting,
    note_of,
    noted,
)
from lib.timing.measurement import Ended, Measurement
from lib.timing.profiling.request import Examination
from tests.generators import collected

ITEM = Item(Training(Network((64, 32)), 0.3, 32, 2, seed=1), Runtime("numpy"))
WEIGHTS = [(np.ones((784, 10), np.float32), np.zeros(10, np.float32))]
SENT = [
    Job(1, ITEM.runtime, (ITEM.training,), How(devices=2, want_parameters=True)),
    Job(2, ITEM.runtime, (), examination=Examination("parts")),
    Ready(Facts("MNIST", "digest"), pid=7),
    Progress(ITEM, FirstCall(0.1)),
    Progress(ITEM, Epoch(0, 1500, 0.3, 0.9, 0.1, 0.01, no_parameters)),
    Measured("product", Measurement((1e-3,), 1, Ended.CAP), 1e9),
    Trained(ITEM, None),
    *End,
]


@pytest.mark.parametrize("message", SENT, ids=lambda message: type(message).__name__)
def test_it_arrives_as_it_was_sent(message):
    assert pickle.loads(pickle.dumps(message)) == message


@pytest.mark.parametrize("error", [TrainingFailed("there is not enough memory"), CardLost("it is gone")])
def test_errors_arrive_with_their_sentence(error):
    arrived = pickle.loads(pickle.dumps(error))
    assert (type(arrived), str(arrived)) == (type(error), str(error))


def test_arrays_arrive_too():
    for sent in (Checkpoint(ITEM, WEIGHTS), Trained(ITEM, WEIGHTS)):
        ((weights, _),) = pickle.loads(pickle.dumps(sent)).parameters
        np.testing.assert_array_equal(weights, WEIGHTS[0][0])
    steps = pickle.loads(pickle.dumps(Progress(ITEM, Steps(0, 0, np.ones(3, np.float32), 0.1)))).event
    np.testing.assert_array_equal(steps.losses, np.ones(3, np.float32))


def test_a_message_in_words_has_the_state_that_goes_with_it():
    starting = "Keras on JAX: its worker imports the library and loads the images"
    assert note_of(Waiting(2)) == Note("2 before this", State.WAITING)
    assert note_of(Waiting(None, "another program measures")) == Note("another program measures", State.WAITING)
    assert note_of(Starting(Runtime("keras-jax"))) == Note(starting, State.STARTING)
    assert note_of(Ready(Facts("", "")), "32 networks") == Note("32 networks", State.MEASURING)


def test_what_a_generator_is_for_comes_after_the_notes_on_its_way():
    def measuring():
        yield Ready(Facts("MNIST", ""))
        yield "of no interest to who waits"
        return 7

    assert collected(noted(measuring(), "what is measured")) == ([Note("what is measured")], 7)
