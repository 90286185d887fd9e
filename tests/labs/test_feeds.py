"""The data feed, from literal figures: what bounds a step, what would help, and no unsupported claims."""

from dataclasses import replace

import pytest

from lib.labs.operations_and_feeds import feeds as view
from lib.labs.operations_and_feeds.feeds import BY_DATA, BY_STEP, MODELS, UNCLEAR, Feeds, remedy
from lib.sweeps.experiments.single_operations import NETWORK, Figures
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Measured, TrainingFailed
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.measurement import Ended, Measurement
from lib.timing.profiling.first_use import FRESH, REPEATED
from lib.timing.profiling.request import FEEDS, Pipeline
from lib.ui.url_state import Address

MINE = Pipeline()
PIPELINES = [Pipeline(feed) for feed in FEEDS["keras-tensorflow"]]


def measured(*seconds):
    return Measurement(seconds, 1, Ended.CAP)


def figures(pipeline, both_s, waits, spread=0.0):
    """Nine rounds of about `both_s`, with the share `waits` spent waiting."""
    rounds = [both_s * (1 + spread * (n % 3 - 1)) for n in range(9)]
    nine = {"data": [waits * both_s] * 9, "step": [(1 - waits) * both_s] * 9, "both": rounds}
    nine |= {"waits": [waits * s for s in rounds], "preprocessing": [2e-4], "first": [0.1]}
    return Figures(pipeline, **{name: measured(*s) for name, s in nine.items()})


def known(*found):
    return {one.pipeline: one for one in found}


def fed(feed, both_s, waits, **more):
    return figures(replace(MINE, feed=feed), both_s, waits, **more)


SLOW, FAST = figures(MINE, 1e-2, 0.8), fed("autotune", 4e-3, 0.5)


def at(**said):
    address = Address(arguments={f"feed.{name}": value for name, value in said.items()})
    address.check(Feeds.settings("feed"))
    assert not address.problems
    return Feeds.checked("feed", {name: one.value for name, one in Feeds.elements("feed", address).items()})


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"rows": "10", "size": "32"}, r"batch size: expected 1 to 10 \(the rows\), got 32"),
        ({"rows": "10000", "size": "2048", "ms": "5.0"}, "at most 3 s per batch"),
        ({"rows": "100000"}, r"rows: expected at most 50% of the free memory \(1.0 GB\), got 100,000 rows"),
    ],
)
def test_impossible_settings_are_refused_before_allocating(said, words, monkeypatch, tmp_path):
    monkeypatch.setattr(view, "free_memory_bytes", lambda: 1e9)
    ask, _ = view.by_feeds(Store(tmp_path / "results.sqlite"))
    with pytest.raises(ValueError, match=words):
        ask(at(**said))
    assert ask(at(rows="10000")).about, "it fits"
    monkeypatch.setattr(view, "free_memory_bytes", lambda: 0.0)
    assert ask(at(rows="10000")).about, "its own memory does not end a measurement that goes on"


@pytest.mark.parametrize(("waits", "bound"), [(0.8, BY_DATA), (0.21, BY_DATA), (0.1, BY_STEP), (0.0, BY_STEP)])
def test_the_waiting_share_decides_what_bounds_a_step(waits, bound):
    found = figures(MINE, 1e-2, waits, spread=0.01)
    assert found.share[0] == pytest.approx(waits)
    assert view.bound(found) == bound


def test_too_few_rounds_are_unclear():
    found = replace(SLOW, both=measured(1e-2, 1e-2, 1e-2), waits=measured(8e-3, 8e-3, 8e-3))
    assert found.share[1:] == (0.0, 1.0)
    assert view.bound(found) == UNCLEAR
    assert remedy(MINE, {MINE: found}) is None


def test_the_fastest_feed_of_the_same_library_is_the_remedy():
    torch = fed("loader-2", 1e-4, 0.1)
    assert remedy(MINE, known(SLOW, FAST, torch)) == FAST.pipeline
    text = view.feeds_sentence(MINE, known(SLOW, FAST), FAST.pipeline)
    assert "a batch of 32 takes 10.0 ms; for 80% of that (80% to 80%) the step waits" in text
    assert "It is bound by its data." in text
    assert text.endswith("What would help: “tf.data, AUTOTUNE”, 2.5\xa0(2.5–2.5) times as fast.")
    assert remedy(MINE, known(SLOW, fed("prefetch", 1e-2, 0.8, spread=0.2))) is None, "not certainly faster"
    assert "No other feed is certainly faster here." in view.feeds_sentence(MINE, known(SLOW), None)
    by_step = known(figures(MINE, 1e-2, 0.05))
    assert remedy(MINE, by_step) is None
    assert "bound by the step: faster data would make little difference" in view.feeds_sentence(MINE, by_step, None)
    assert view.feeds_sentence(MINE, {}, None) == ""


def test_a_bar_is_split_at_the_waiting_share():
    chart = view.feeds_chart(PIPELINES, known(SLOW))
    rows = [row for rows in chart.spec["datasets"].values() for row in rows]
    ends = {row["part"]: (row["from"], row["to"]) for row in rows if "part" in row}
    assert ends["the step runs"] == (0.0, pytest.approx(2.0))
    assert ends["the step waits"] == (pytest.approx(2.0), pytest.approx(10.0))
    mark = next(row for row in rows if "data" in row)
    assert (mark["data"], mark["text"]) == (pytest.approx(8.0), "10.0 ms · waits 80%")
    assert view.feeds_chart([], {}).spec["height"] > 0, "Vega takes 0 for no height"
    assert view.feeds_chart(PIPELINES, {}).height_px == chart.height_px, "nothing jumps while it fills"


PLACED = {"MatMul/GPU/CPU GPU": 5, "PyFunc/CPU/CPU": 1, "Shape/CPU/CPU GPU": 2, "gpus": 1, "cuda": 1}


def test_an_operation_says_where_it_runs_and_why():
    text = view.placement_table(PLACED)
    assert "it has a GPU kernel, which TensorFlow prefers" in text
    assert "it has no GPU kernel" in text
    assert "works on data in the host&#x27;s memory" in text
    assert "but TensorFlow sees no GPU" in view.placement_table(PLACED | {"gpus": 0})
    assert view.placement_table(PLACED | {"cuda": 0}).count("TensorFlow&#x27;s CPU build") == 2
    assert view.placement_table({}) == view.placement_sentence({}) == ""
    said = view.placement_sentence(PLACED)
    assert "the 8 operations of a step, including fetching a batch, 3 on the CPU and 5 on the GPU" in said
    assert "all on the CPU; it sees no GPU" in view.placement_sentence({"MatMul/CPU/CPU": 5, "gpus": 0})


class Asked(Engine):
    """Answers with these rows about the first network, and fails with the second."""

    def __init__(self, rows):
        super().__init__()
        self.rows, self.asked = rows, []

    def examine(self, runtime, examination, cancel, request=None):
        self.asked.append((examination.kind, examination.network))
        if len(self.asked) > 1:
            raise TrainingFailed("a fresh process of TensorFlow exited with -9")
        for name in self.rows:
            yield Measured(name, measured(0.1, 0.2, 0.3), 1.0)


@pytest.mark.parametrize("complete", [True, False])
def test_the_models_that_are_not_known_are_built(tmp_path, complete):
    rows, store = [*FRESH, *REPEATED], Store(tmp_path / "results.sqlite")
    engine = Asked(rows if complete else rows[:-1])
    events = view.measure("model", MODELS, "cpu", engine, store, Cancel(), Request())
    with pytest.raises(TrainingFailed, match="exited with -9"):
        list(events)
    assert engine.asked == [("model", network) for network in MODELS]
    found = view.answered(store.records(), "model", "cpu")
    assert list(found) == [NETWORK] * complete
    assert not complete or found[NETWORK]["clone again"].median_s == 0.2
    assert view.answered(store.records(), "placement", "cpu") == {}


def test_the_checklist_has_a_figure_for_each_piece_of_advice():
    prefetched, tuned = (fed(feed, 8e-3, 0.7) for feed in ("prefetch", "autotune"))
    larger = figures(Pipeline(batch_size=128), 3e-2, 0.5)
    keras = {"step": measured(0.5), "step again": measured(1e-3, 1e-3)}
    text = view.checklist([SLOW, prefetched, tuned, larger], MINE, 0, 0, keras)
    for words in (
        "<code>tf.data</code> with prefetch",
        "62\u202fμs an image at batch size 32 and 117\u202fμs an image at batch size 128",
        "“tf.data + prefetch” takes 0.8\xa0(0.8–0.8) times as long as “tf.data”: faster.",
        "No NVIDIA driver responds",
        "The first step of Keras takes 500\u202fms in a fresh process, later ones 1\u202fms.",
    ):
        assert words in text
    assert "not measured yet" not in text
    text = view.checklist([], MINE, 1, 0, {})
    assert "The driver lists 1 GPU; TensorFlow sees 0." in text
    assert text.count("not measured yet") == 5
