"""A sweep in other processes: nobody waits for it, and what breaks is a sentence."""

import threading
import time

import pytest

from lib.spec import Network, Training
from lib.sweeps.events import Finished
from lib.sweeps.sweep import Options, updates
from lib.workers.cancel import Cancel
from lib.workers.messages import Item, TrainingFailed
from lib.workers.queue import Request, Urgency
from tests.sweeps.sweeping import MIXED, made
from tests.sweeps.test_process_pool import Broken, pooled_processes


def test_an_executor_that_breaks_is_a_sentence(engine):
    with pytest.raises(TrainingFailed, match="tasks failed"):
        list(updates([Item(MIXED[0])], engine, None, Cancel(), Options(executor=Broken(99))))


@pytest.mark.release
def test_a_moved_slider_does_not_wait_for_a_pool(engine):
    """Another run of the same viewer gets its turn while processes train, and these go on afterwards."""
    viewer, cancel = object(), Cancel()
    slow = [Item(Training(Network((256,)), rate, 32, 8)) for rate in (0.1, 0.2)]
    found: list[Finished] = []

    def pooled():
        events = updates(slow, engine, None, cancel, Options("processes"), Request(viewer, Urgency.IN_ORDER))
        found.extend(update for update in events if isinstance(update, Finished))

    made(MIXED[:1], engine, strategy="sequential")
    thread = threading.Thread(target=pooled)
    thread.start()
    while not pooled_processes():
        time.sleep(0.05)
    list(updates([Item(MIXED[1])], engine, None, Cancel(), Options("sequential"), Request(viewer, Urgency.NOW)))
    assert not found, "it did not wait for the others' end"
    thread.join(200)
    assert {update.item for update in found} == set(slow)
