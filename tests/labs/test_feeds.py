"""What feeds a step: from literal figures, what bounds it, what would help, and no more than they show."""

from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from lib.labs.operations_and_feeds import OperationsAndFeeds, tensorflow
from lib.labs.operations_and_feeds import checklist as advice
from lib.labs.operations_and_feeds import feeds as view
from lib.labs.operations_and_feeds.feeds import Bound, Feeds, remedy
from lib.labs.operations_and_feeds.tensorflow import MODELS
from lib.model.spec import Network
from lib.sweeps.experiments.input_pipeline import NETWORK, Figures
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.cancel import Cancel
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Measured, TrainingFailed
from lib.sweeps.workers.notes import Note
from lib.sweeps.workers.queue import Request
from lib.timing.comparison import Verdict
from lib.timing.measurement import Ended, Measurement
from lib.timing.profiling.first_use import FRESH, REPEATED
from lib.timing.profiling.request import FEEDS, Pipeline
from lib.ui import lab as lab_module
from lib.ui.lab import Section
from lib.ui.url_state import Address
from tests.sweeps.experiments.test_input_pipeline import StandIn

MINE = Pipeline()
PIPELINES = [Pipeline(feed) for feed in FEEDS["keras-tensorflow"]]


def measured(*seconds):
    return Measurement(seconds, 1, Ended.CAP)


def figures(pipeline, both_s, waits, spread=0.0):
    """Nine rounds around these seconds, of which this share is waited."""
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


def test_the_controls_say_which_pipeline_is_the_reader_s():
    said = {"look": "cache", "rows": "100", "size": "10", "ms": "0.5", "lock": "True", "same": "True"}
    assert (at(**said).pipeline, at(**said).same) == (Pipeline("cache", 100, 10, 0.5, True), True)
    assert (at().pipeline, at().device, at().same) == (Pipeline(), "cpu", False)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"rows": "10", "size": "32"}, r"batch size: expected 1 to 10 \(the rows\), got 32"),
        ({"rows": "10000", "size": "2048", "ms": "5.0"}, "at most 3 s a batch"),
        ({"rows": "100000"}, r"rows: expected at most 50% of the free memory \(1.0 GB\), got 100,000 rows"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_allocated(said, words, monkeypatch, tmp_path):
    monkeypatch.setattr(view, "free_memory_bytes", lambda: 1e9)
    section = SimpleNamespace(page=SimpleNamespace(store=Store(tmp_path / "results.sqlite")))
    ask, _ = view.by_feeds(section)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=words):
        ask(at(**said))
    assert ask(at(rows="10000")).about, "it fits"
    monkeypatch.setattr(view, "free_memory_bytes", lambda: 0.0)
    assert ask(at(rows="10000")).about, "its own memory does not end a measurement that goes on"


@pytest.mark.parametrize("button", ["again", "apply"])
def test_a_section_knows_which_of_its_buttons_was_pressed(button):
    counts = {"again": 2, "apply": 5}
    section = SimpleNamespace(stage=SimpleNamespace(asked=("all feeds", tuple(counts.items()))))
    section.value = (counts | {button: counts[button] + 1}).get
    assert [name for name in counts if Section.pressed(section, name)] == [button]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("waits", "bound"), [(0.8, Bound.DATA), (0.21, Bound.DATA), (0.1, Bound.STEP), (0.0, Bound.STEP)]
)
def test_the_share_that_is_waited_says_what_bounds_it(waits, bound):
    found = figures(MINE, 1e-2, waits, spread=0.01)
    assert found.share[0] == pytest.approx(waits)
    assert view.bound(found) is bound


def test_too_few_rounds_tell_nothing():
    found = replace(SLOW, both=measured(1e-2, 1e-2, 1e-2), waits=measured(8e-3, 8e-3, 8e-3))
    assert found.share[1:] == (0.0, 1.0)
    assert view.bound(found) is Bound.UNCLEAR
    assert remedy(MINE, {MINE: found}, True) is None


def test_the_fastest_feed_of_the_same_library_helps_against_slow_data():
    cached, torch = fed("cache", 2e-3, 0.3), fed("loader-2", 1e-4, 0.1)
    assert remedy(MINE, known(SLOW, FAST, cached, torch), False) == FAST.pipeline
    assert remedy(MINE, known(SLOW, FAST, cached, torch), True) == cached.pipeline
    assert remedy(MINE, known(SLOW, fed("prefetch", 1e-2, 0.8, spread=0.2)), True) is None, "not certainly faster"
    assert remedy(MINE, {}, True) is None


@pytest.mark.parametrize(("feed", "instead"), [("tf.data", "autotune"), ("loader-0", "loader-2")])
def test_preprocessing_that_holds_the_lock_is_replaced_where_no_feed_helps(feed, instead):
    mine = Pipeline(feed, holds_lock=True)
    assert remedy(mine, known(figures(mine, 1e-2, 0.9)), False) == Pipeline(instead, holds_lock=False)


@pytest.mark.parametrize(("rows", "wanted"), [(10, None), (100, 32), (1_000, 32)])
def test_a_larger_batch_helps_where_the_step_is_the_bound(rows, wanted):
    mine = Pipeline(rows=rows, batch_size=10, preprocessing_ms=0.0)
    found = remedy(mine, known(figures(mine, 1e-3, 0.05)), False)
    assert found == (None if wanted is None else replace(mine, batch_size=wanted))
    long = Pipeline(rows=10_000, batch_size=512, preprocessing_ms=5.0)
    assert remedy(long, known(figures(long, 3.0, 0.05)), False) is None, "a batch would take seconds"


@pytest.mark.parametrize(("both_s", "verdict"), [(4e-3, Verdict.SAME), (2e-3, Verdict.FASTER), (8e-3, Verdict.SLOWER)])
def test_batches_of_different_size_are_compared_by_the_image(both_s, verdict):
    small, large = figures(MINE, 1e-3, 0.5), figures(replace(MINE, batch_size=128), both_s, 0.5, spread=0.01)
    assert {view.difference(large, small, paired).verdict for paired in (False, True)} == {verdict}


def test_a_bar_is_divided_by_the_share_that_is_waited():
    chart = view.feeds_chart(PIPELINES, known(SLOW))
    rows = [row for rows in chart.spec["datasets"].values() for row in rows]
    ends = {row["part"]: (row["from"], row["to"]) for row in rows if "part" in row}
    assert ends["the step works"] == (0.0, pytest.approx(2.0))
    assert ends["the step waits"] == (pytest.approx(2.0), pytest.approx(10.0))
    mark = next(row for row in rows if "data" in row)
    assert (mark["data"], mark["text"]) == (pytest.approx(8.0), "10.0 ms · waits 80%")
    assert view.feeds_chart([], {}).spec["height"] > 0, "Vega takes 0 for no height"
    assert view.feeds_chart(PIPELINES, {}).height_px == chart.height_px, "nothing jumps while it fills"


def test_the_sentence_says_what_bounds_it_and_what_would_help():
    text = view.sentence(MINE, known(SLOW, FAST), FAST.pipeline, False)
    assert "a batch of 32 takes 10.0 ms, and for 80% of that (80% to 80%) the step waits" in text
    assert "It is bound by its data." in text
    assert text.endswith("What would help: “tf.data, AUTOTUNE”, measured at 0.4 times the time (0.4 to 0.4).")
    assert view.sentence(MINE, {}, None, False) == ""


@pytest.mark.parametrize(
    ("waits", "remedy", "words"),
    [
        (0.05, Pipeline(batch_size=128), "bound by the step: faster data would hardly be noticed"),
        (0.05, Pipeline(batch_size=128), "What would help: a batch of 128, so that fewer steps pay"),
        (0.8, Pipeline("autotune"), "preprocessing that releases the interpreter's lock, so that “tf.data, AUTOTUNE”"),
        (0.8, None, "No other feed is certainly faster here; caching was left out"),
    ],
)
def test_each_remedy_is_named(waits, remedy, words):
    assert words in view.sentence(MINE, known(figures(MINE, 1e-2, waits)), remedy, False)


def test_what_was_applied_is_compared_in_turns_by_the_image():
    text = view.applied_sentence((SLOW, FAST))
    assert text.startswith("Applied: “tf.data, AUTOTUNE”, measured in turns with “tf.data”.")
    assert "faster: 0.4 times the time (0.4 to 0.4)" in text
    assert "8,000 images per second instead of 3,200" in text
    assert "waits 50% of the time instead of 80%" in text
    assert view.applied_sentence(()) == ""


def test_a_feed_that_raised_is_marked_in_one_sentence():
    raised = {Pipeline("prefetch"): "reading a batch raised ValueError: <3> is damaged"}
    text = view.feeds_table(PIPELINES, known(SLOW), raised)
    assert (text.count("<tr"), text.count("not measured")) == (1 + len(PIPELINES), 1)
    said = view.raised_list(raised)
    assert "<b>tf.data + prefetch</b>: reading a batch raised ValueError: &lt;3&gt; is damaged." in said
    assert view.raised_list({}) == ""


# TensorFlow's operations and models.

PLACED = {"MatMul/GPU/CPU GPU": 5, "PyFunc/CPU/CPU": 1, "Shape/CPU/CPU GPU": 2, "gpus": 1, "cuda": 1}


def test_an_operation_says_where_it_runs_and_why():
    text = tensorflow.placement_table(PLACED)
    assert "it has a kernel for a GPU, and TensorFlow prefers that" in text
    assert "it has no kernel for a GPU" in text
    assert "works on what lies in the host&#x27;s memory" in text
    assert "but TensorFlow sees none" in tensorflow.placement_table(PLACED | {"gpus": 0})
    assert tensorflow.placement_table(PLACED | {"cuda": 0}).count("the build for processors") == 2
    assert tensorflow.placement_table({}) == tensorflow.placement_sentence({}) == ""
    said = tensorflow.placement_sentence(PLACED)
    assert "the 8 operations of a step, its fetching of a batch included, 3 on the CPU and 5 on the GPU" in said
    assert "all on the CPU; it sees no GPU" in tensorflow.placement_sentence({"MatMul/CPU/CPU": 5, "gpus": 0})


def test_placement_is_kept_as_numbers(tmp_path, monkeypatch):
    rows = {"MatMul/CPU/CPU GPU": 5.0, "gpus": 0.0, "cuda": 0.0}
    store, engine = Store(tmp_path / "results.sqlite"), Engine()
    monkeypatch.setattr(engine, "examine", lambda *_: (Measured(name, measured(n), 1.0) for name, n in rows.items()))
    assert list(tensorflow.measure_placement({"gpus": 0}, "cpu", engine, store, Cancel(), Request())) == []
    list(tensorflow.measure_placement({}, "cpu", engine, store, Cancel(), Request()))
    assert tensorflow.placement(store.records(), "cpu") == rows
    assert tensorflow.placement(store.records(), "gpu") == {}


@pytest.mark.parametrize(("complete", "cancelled"), list(product([True, False], [True, False])))
def test_models_are_built_in_fresh_processes(tmp_path, monkeypatch, complete, cancelled):
    rows = [*((name, (0.1,)) for name in FRESH), *((name, (0.1, 0.2, 0.3)) for name in REPEATED)]
    killed, cancel, store = [], Cancel(), Store(tmp_path / "results.sqlite")

    def process(*_):
        receive = Mock(side_effect=[*rows, None] if complete else [*rows[:2], EOFError])
        return Mock(connection=Mock(recv=receive), kill=lambda: killed.append(1))

    monkeypatch.setattr(tensorflow, "Process", process)
    if cancelled:
        cancel.set()
    events = tensorflow.measure_models({}, "cpu", Engine(), store, cancel, Request())
    if complete or cancelled:
        records = [event for event in events if not isinstance(event, Note)]
        assert len(records) == (0 if cancelled else len(rows) * len(MODELS))
        found = tensorflow.models(store.records(), "cpu")
        assert list(found) == ([] if cancelled else list(MODELS))
        assert cancelled or found[NETWORK]["clone again"].median_s == 0.2
    else:
        with pytest.raises(TrainingFailed, match="ended after import, device"):
            list(events)
        assert tensorflow.models(store.records(), "cpu") == {}
    assert len(killed) == (0 if cancelled else len(MODELS) if complete else 1)


def created(again_s) -> dict[str, Measurement]:
    again = measured(*(again_s * (1 + 0.01 * n) for n in range(9)))
    return {name: measured(1.0) for name in FRESH} | dict.fromkeys(REPEATED, again)


def test_the_first_time_stands_beside_the_next_ones():
    found = {Network((128,)): created(0.01), Network((4096, 4096)): created(0.1)}
    text = tensorflow.models_sentence(found)
    assert "784→128→10 (101,770 parameters): 2.0\u202fs pass before a model can be built" in text
    assert "building, cloning and the first step take 3.0\u202fs, and 31\u202fms the second time" in text
    assert "Cloning the large one takes 10 times as long" in text
    assert tensorflow.models_table(found).count("<tr") == 1 + len(FRESH)
    assert tensorflow.draw_models({}) == ("", "")


# The checklist.


def test_the_checklist_answers_each_piece_of_advice():
    prefetched, tuned = (fed(feed, 8e-3, 0.7) for feed in ("prefetch", "autotune"))
    larger = figures(Pipeline(batch_size=128), 3e-2, 0.5)
    keras = {"step": measured(0.5), "step again": measured(1e-3, 1e-3)}
    text = advice.checklist([SLOW, prefetched, tuned, larger], MINE, "cpu", 0, 0, keras)
    for words in (
        "<code>tf.data</code> with prefetch",
        "62\u202fμs an image at batch size 32 and 117\u202fμs an image at batch size 128",
        "“tf.data + prefetch” beside “tf.data”: faster: 0.8 times",
        "<b>input-bound</b>: Of 10.0 ms per step, 8.0 ms (80%) go into fetching the next batch.",
        "Preprocessing takes 6.4 ms of processor time per step",
        "No NVIDIA driver answers",
        "<b>compilation counted</b>",
        "The first step of Keras takes 500\u202fms in a fresh process, later ones 1\u202fms.",
    ):
        assert words in text
    assert "not measured yet" not in text


def test_a_card_that_tensorflow_does_not_see_is_a_finding():
    text = advice.checklist([], MINE, "cpu", 1, 0, None)
    assert "<b>GPU present but not registered</b>: The driver lists 1 GPU, the framework sees 0." in text
    assert "The driver lists 1 GPU; TensorFlow sees 0." in text
    assert "The driver lists 2 GPUs; TensorFlow sees 2." in advice.checklist([], MINE, "gpu", 2, 2, None)
    assert text.count("not measured yet") == 5
    assert "not registered" not in advice.checklist([], MINE, "gpu", 1, 1, None)


def test_cards_without_cuda_are_not_registered(monkeypatch):
    for cards, why, expected in (((), "no", (0, None)), (("a",), "no CUDA", (1, 0)), (("a",), None, (1, None))):
        monkeypatch.setattr(advice, "cards", lambda cards=cards: cards)
        monkeypatch.setattr(advice, "unavailable", lambda _, why=why: why)
        assert advice.gpus() == expected


def test_apply_measures_the_reader_s_pipeline_and_the_suggested_one_in_turns(monkeypatch, tmp_path):
    engine, shown = StandIn(), []
    monkeypatch.setattr(lab_module, "shared_engine", lambda: engine)
    monkeypatch.setattr(lab_module, "Store", lambda: Store(tmp_path / "results.sqlite"))
    monkeypatch.setattr(lab_module, "opened", lambda *_: Address(arguments={"feed.lock": "True"}))
    monkeypatch.setattr(lab_module.mo.output, "replace", lambda html: shown.append(html.text))
    lab = OperationsAndFeeds()
    panel, section = lab.controls("feed"), lab.page.sections["feed"]
    for button in ("", "apply"):
        if button:
            panel._update({button: 1})
        lab.work(panel, *view.by_feeds(section))
    *alone, (_, _, pair) = engine.asked
    assert len(alone) == len(view.tasks(MINE, "cpu")), "what is stored is not measured again"
    assert pair == (Pipeline(holds_lock=True), Pipeline("autotune"))
    assert ["Applied: “tf.data, AUTOTUNE”" in one for one in (shown[0], shown[-1])] == [False, True]
