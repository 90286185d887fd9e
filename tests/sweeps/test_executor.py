"""Trainings by an executor: a process of other versions refuses by name, and what breaks is a sentence."""

import concurrent.futures
from dataclasses import replace

import pytest

from lib.model.backends.environments import Environment
from lib.model.backends.registry import Runtime, versions
from lib.sweeps import executor
from lib.sweeps.executor import Expected, OtherVersions, perform
from lib.sweeps.sweep import Options, updates
from lib.sweeps.workers.cancel import Cancel
from lib.sweeps.workers.messages import Item, Job, TrainingFailed
from tests.sweeps.sweeping import MIXED

JOB = Job(0, Runtime(), (MIXED[0],))


@pytest.fixture
def expected():
    return Expected.here(Runtime(), "")


def test_a_worker_of_other_versions_refuses_by_name(expected):
    with pytest.raises(
        OtherVersions, match=r"process \d+: it has .*jax.*expected jax 0.0.1; install the same requirements"
    ):
        perform(JOB, replace(expected, versions="jax 0.0.1"))
    with pytest.raises(OtherVersions, match="another state of this project's code"):
        perform(JOB, replace(expected, sources="other"))
    with pytest.raises(OtherVersions, match="other training images"):
        perform(JOB, Expected(versions(Runtime("jax-epoch")), expected.sources, "0" * 64))


def test_a_library_in_an_environment_of_its_own_is_not_trained_there(expected, monkeypatch):
    """The executor's processes run in this one, where the library would be another build, or none."""
    monkeypatch.setattr(executor, "environment_of", lambda _: Environment("/elsewhere/bin/python", ()))
    with pytest.raises(OtherVersions, match=r"expected /elsewhere/bin/python, which has JAX.*strategy sequential"):
        perform(JOB, expected)


class Fails(concurrent.futures.Executor):
    """Each task ends with the next of these errors."""

    def __init__(self, *errors):
        self.errors = list(errors)

    def submit(self, function, *arguments):  # type: ignore[override]
        future: concurrent.futures.Future = concurrent.futures.Future()
        future.set_exception(self.errors.pop(0))
        return future


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (concurrent.futures.BrokenExecutor("gone"), "2 of 2 tasks failed.*BrokenExecutor: gone"),
        (OtherVersions("worker a: it has others"), "^worker a: it has others$"),
    ],
)
def test_an_executor_that_breaks_is_a_sentence(engine, error, words):
    items = [Item(training) for training in MIXED[:2]]
    with pytest.raises(TrainingFailed, match=words):
        list(updates(items, engine, None, Cancel(), Options(executor=Fails(error, error), max_waste=0.0)))
