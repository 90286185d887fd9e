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


def known_split(runtime: Runtime, found=FOUND) -> Split:
    known = split(runtime, found)
    assert known is not None
    return known


def test_parts_add_up_from_literal_figures():
    known = known_split(Runtime("jax-step"))
    assert {name: round(1e6 * value) for name, value in known.parts_s.items()} == {
        "arithmetic": 120,
        "transfer": 10,
        "launch and wait": 20,
        "dispatch": 20,
        "Python": 1,
        "idle": 0,
    }
    assert known.unexplained_s == pytest.approx(29e-6)
    assert known.adds_up
    assert sum(known.share(part.name) or 0 for part in PARTS) == pytest.approx(171 / 200)
    assert list(known.parts_s) == [part.name for part in PARTS]


def test_overlapping_parts_do_not_add_up_and_have_no_shares():
    known = known_split(Runtime("jax-step"), FOUND | {"step": 100e-6, "busy": 100e-6})
    assert known.unexplained_s < 0
    assert not known.adds_up
    assert known.drawn_s == pytest.approx(171e-6)
    assert [known.share(part.name) for part in PARTS] == [None] * len(PARTS), "what does not add up has no shares"
    assert "its parts do not add up" in sentence({Runtime("jax-step"): known}, 32)
    assert "more than 15% off" in sentence({Runtime("jax-step"): known}, 32)


def test_idle_time_excludes_the_wait_for_the_launch():
    known = known_split(Runtime("jax-step"), FOUND | {"busy": 150e-6})
    assert known.parts_s["idle"] == pytest.approx(30e-6), "200 of wall, 150 busy, 20 of them waiting for the launch"


def test_one_call_an_epoch_and_keras_are_split_by_their_own_experiments():
    one_call = known_split(Runtime("jax-epoch"), {name: value for name, value in FOUND.items() if name != "call"})
    assert one_call.parts_s["launch and wait"] == pytest.approx(5e-6), "what an operation costs inside the call"
    of_fit = {name: value for name, value in FOUND.items() if name != "python"}
    keras = known_split(Runtime("keras-jax"), of_fit | {"fit-tiny": 90e-6, "call-tiny": 30e-6})
    assert keras.parts_s["Python"] == pytest.approx(60e-6)


@pytest.mark.parametrize(
    ("runtime", "arithmetic", "dispatch"),
    [
        (Runtime("numpy"), 140e-6, 20e-6),  # the call minus the tiny step's
        (Runtime("torch"), 140e-6, 20e-6),
        (Runtime("numba"), 120e-6, 25e-6),  # the tiny step in the loop, plus the loop's call
    ],
)
def test_backends_in_the_callers_thread_have_no_launch_and_idle_parts(runtime, arithmetic, dispatch):
    known = known_split(runtime, FOUND | {"busy": 50e-6})
    assert [part.name for part in PARTS if part.name not in known.parts_s] == ["launch and wait", "idle"]
    assert known.parts_s["arithmetic"] == pytest.approx(arithmetic)
    assert known.parts_s["dispatch"] == pytest.approx(dispatch)
    on_card = known_split(Runtime("torch", "gpu"))
    assert on_card.parts_s["launch and wait"] == pytest.approx(20e-6), "a card is handed its work"


@pytest.mark.parametrize("missing", sorted(FOUND.keys() - {"transfer-base"}))
def test_a_step_is_split_only_once_all_is_measured(missing):
    assert split(Runtime("jax-step"), {name: value for name, value in FOUND.items() if name != missing}) is None
