"""What may be asked of a worker: pipelines within their limits, each refusal in a sentence that says what to do."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.timing.profiling.request import FEEDS, Pipeline


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"feed": "csv"}, "feed: expected one of arrays"),
        ({"rows": 9}, "rows: expected 10 to 100,000, got 9"),
        ({"rows": 200_000}, "got 200,000; choose one in between"),
        ({"rows": 10, "batch_size": 32}, "batch size: expected 1 to 10 (the rows), got 32"),
        ({"batch_size": 0}, "got 0; choose a smaller batch or more rows"),
        ({"preprocessing_ms": 5.1}, "preprocessing: expected 0 to 5 ms an image, got 5.1"),
        ({"preprocessing_ms": float("nan")}, "got nan"),
        ({"rows": 10_000, "batch_size": 2_048, "preprocessing_ms": 5.0}, "expected at most 3 s a batch, got 10.2 s"),
    ],
)
def test_what_is_outside_of_the_limits_is_refused_in_a_sentence(settings, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        Pipeline(**settings)


@given(st.sampled_from([feed for feeds in FEEDS.values() for feed in feeds]), st.integers(10, 100_000))
def test_rows_need_memory_for_each_copy(feed, rows):
    pipeline = Pipeline(feed, rows, 10, 0.0)
    assert pipeline.needed_bytes >= 3 * rows * 784 * 4, "the rows, the library's copy, a cache"
    assert replace(pipeline, rows=min(2 * rows, 100_000)).needed_bytes >= pipeline.needed_bytes


def test_each_feed_has_a_name_of_its_own():
    labels = [label for feeds in FEEDS.values() for label in feeds.values()]
    assert len(set(labels)) == len(labels)
    assert Pipeline("loader-1").label == "DataLoader, 1 worker"
