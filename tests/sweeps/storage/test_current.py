"""A measurement counts as long as machine, code and versions are those it was made with."""

from dataclasses import replace

import pytest

from lib.model.backends.registry import Runtime, versions
from lib.sweeps.storage.current import current
from lib.sweeps.storage.records import Kind, Record

HERE = Record(Kind.RACE, {"backend": "numpy", "size": 1}, (0.1,), 1, "CAP", versions=versions(Runtime("numpy")))


def test_those_of_here_are_found_the_oldest_first():
    older = replace(HERE, measured_at="2000-01-01T00:00:00")
    assert current([HERE, older], Kind.RACE, {"size": 1}, Runtime("numpy")) == [older, HERE]


@pytest.mark.parametrize("change", ["machine", "sources", "versions"])
def test_what_was_measured_otherwise_does_not_count(change):
    assert current([replace(HERE, **{change: "other"})], Kind.RACE, {}, Runtime("numpy")) == []


@pytest.mark.parametrize(("subject", "n"), [({}, 1), ({"size": 1}, 1), ({"size": 2}, 0), ({"device": "cpu"}, 0)])
def test_a_subject_agrees_in_all_that_is_asked_for(subject, n):
    assert len(current([HERE], Kind.RACE, subject, Runtime("numpy"))) == n


def test_a_failure_is_no_measurement_of_what_it_is_about():
    failed = replace(HERE, kind=Kind.FAILURE, block_s=())
    assert current([HERE, failed], Kind.RACE, {"size": 1}, Runtime("numpy")) == [HERE]
