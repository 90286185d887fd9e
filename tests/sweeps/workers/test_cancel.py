"""The event that ends a run: who waits for something else is called, at once if it comes too late."""

import signal
import threading

from lib.sweeps.workers.cancel import Cancel


def test_who_asked_is_called_while_the_block_lasts():
    cancel, called = Cancel(), []
    with cancel.calling(lambda: called.append("inside")):
        assert called == []
        cancel.set()
    cancel.set()
    assert called == ["inside"]


def test_who_comes_too_late_is_called_at_once():
    cancel, called = Cancel(), []
    cancel.set()
    with cancel.calling(lambda: called.append("late")):
        assert called == ["late"]


def test_a_signal_handler_may_set_it_in_whatever_its_thread_is_at():
    """The guard is held by this very thread when the signal comes: a plain lock would wait for itself for ever."""
    cancel = Cancel()
    before = signal.signal(signal.SIGUSR1, lambda *_: cancel.set())
    try:
        with cancel._guard:
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert cancel.is_set()


def test_every_thread_that_waits_is_woken():
    cancel = Cancel()
    waiting = [threading.Thread(target=cancel.wait, args=(10,)) for _ in range(8)]
    for thread in waiting:
        thread.start()
    cancel.set()
    for thread in waiting:
        thread.join(5)
    assert not any(thread.is_alive() for thread in waiting)
