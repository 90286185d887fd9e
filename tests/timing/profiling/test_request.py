import re

import pytest

from lib.labs.inside_a_step.anatomy import sentence
from lib.model.backends.registry import Runtime
from lib.timing.profiling.request import FEEDS, PARTS, Pipeline, Split, split


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"feed": "csv"}, "feed: expected one of arrays"),
        ({"rows": 9}, "rows: expected 10 to 100,000, got 9"),
        ({"rows": 10, "batch_size": 32}, "batch size: expected 1 to 10 (the rows), got 32"),
        ({"rows": 200_000}, "got 200,000; choose one in between"),
        ({"batch_size": 0}, "got 0; choose a smaller batch or more rows"),
        ({"preprocessing_ms": 5.1}, "preprocessing: expected 0 to 5 ms per image, got 5.1"),
        ({"preprocessing_ms": float("nan")}, "got nan"),
    ],
)
def test_settings_beyond_the_limits_are_refused(settings, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        Pipeline(**settings)


def test_rows_need_memory_for_each_copy():
    for rows in (10, 1_000, 100_000):
        assert Pipeline(rows=rows, batch_size=10).needed_bytes >= 3 * rows * 784 * 4, "the rows, a copy, a cache"


def test_each_feed_has_a_unique_name():
    labels = [label for feeds in FEEDS.values() for label in feeds.values()]
    assert len(set(labels)) == len(labels)
    assert Pipeline("loader-1").label == "DataLoader, 1 worker"


FOUND = {
    "step": 200e-6,
    "busy": 195e-6,
    "returns": 20e-6,
    "transfer": 12e-6,
    "transfer-base": 2e-6,
    "python": 1e-6,
    "many": 125e-6,
    "many-tiny": 5e-6,
    "call": 160e-6,
}


def known_split(runtime: Runtime, **changes: float | None) -> Split:
    found = {name: seconds for name, seconds in (FOUND | changes).items() if seconds is not None}
    known = split(runtime, found)
    assert known is not None
    return known


@pytest.mark.parametrize(
    ("runtime", "changes", "parts_us"),
    [
        (Runtime("jax-step"), {}, (120, 10, 20, 20, 1, 0)),
        # Idle are 200 of wall, minus 150 busy, minus 20 of waiting for the launch.
        (Runtime("jax-step"), {"busy": 150e-6}, (120, 10, 20, 20, 1, 30)),
        # Inside one call, a launch is what an operation costs at least.
        (Runtime("jax-epoch"), {"call": None}, (120, 10, 5, 20, 1, 0)),
        (Runtime("keras-jax"), {"python": None, "fit-tiny": 90e-6, "call-tiny": 30e-6}, (120, 10, 20, 20, 60, 0)),
        # In the caller's thread nothing is launched; arithmetic is the call minus the tiny step's.
        (Runtime("numpy"), {"busy": 50e-6}, (140, 10, None, 20, 1, None)),
        (Runtime("torch"), {"busy": 50e-6}, (140, 10, None, 20, 1, None)),
        # The tiny step in the loop, plus the loop's call.
        (Runtime("numba"), {"busy": 50e-6}, (120, 10, None, 25, 1, None)),
        (Runtime("torch", "gpu"), {}, (120, 10, 20, 20, 1, 0)),  # a card is handed its work
    ],
)
def test_parts_are_derived_from_literal_figures(runtime, changes, parts_us):
    expected = {part.name: 1e-6 * us for part, us in zip(PARTS, parts_us, strict=True) if us is not None}
    known = known_split(runtime, **changes)
    assert known.parts_s == pytest.approx(expected)
    assert list(known.parts_s) == list(expected)


def test_parts_close_to_the_step_have_shares():
    known = known_split(Runtime("jax-step"))
    assert known.unexplained_s == pytest.approx(29e-6)
    assert known.adds_up
    assert sum(known.share(part.name) or 0 for part in PARTS) == pytest.approx(171 / 200)


def test_overlapping_parts_do_not_add_up_and_have_no_shares():
    known = known_split(Runtime("jax-step"), step=100e-6, busy=100e-6)
    assert known.unexplained_s < 0
    assert not known.adds_up
    assert known.drawn_s == pytest.approx(171e-6)
    assert [known.share(part.name) for part in PARTS] == [None] * len(PARTS), "what does not add up has no shares"
    assert "its parts do not add up" in sentence({Runtime("jax-step"): known}, 32)
    assert "more than 15% off" in sentence({Runtime("jax-step"): known}, 32)


@pytest.mark.parametrize("missing", sorted(FOUND.keys() - {"transfer-base"}))
def test_a_step_is_split_only_once_all_is_measured(missing):
    assert split(Runtime("jax-step"), {name: value for name, value in FOUND.items() if name != missing}) is None
