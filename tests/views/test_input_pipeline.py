"""What feeds a step, as it is told: from literal figures, each sentence and table says what they show, and no more."""

import pytest

from lib.experiments.input_pipeline import Figures
from lib.profiling.fresh_model import FRESH, REPEATED
from lib.profiling.request import FEEDS, Pipeline
from lib.spec import Network
from lib.timing.measurement import Ended, Measurement
from lib.views import input_pipeline as view

MINE = Pipeline()
FEED = list(FEEDS["keras-tensorflow"])
PIPELINES = [Pipeline(feed) for feed in FEED]


def measured(*seconds):
    return Measurement(seconds, 1, Ended.CAP)


def figures(pipeline, both_s, waits):
    return Figures(
        pipeline,
        data=measured(*[waits * both_s] * 9),
        step=measured(*[(1 - waits) * both_s] * 9),
        both=measured(*[both_s] * 9),
        waits=measured(*[waits * both_s] * 9),
        preprocessing=measured(2e-4),
        first=measured(0.1),
    )


def known(*found):
    return {one.pipeline: one for one in found}


SLOW, FAST = figures(MINE, 1e-2, 0.8), figures(Pipeline("autotune"), 4e-3, 0.5)


def test_a_bar_is_divided_by_the_share_that_is_waited():
    rows = [row for rows in view.feeds_chart(PIPELINES, known(SLOW)).spec["datasets"].values() for row in rows]
    works, waits = (
        next(row for row in rows if row.get("part") == part) for part in ("the step works", "the step waits")
    )
    assert (works["from"], works["to"]) == (0.0, pytest.approx(2.0))
    assert (waits["from"], waits["to"]) == (pytest.approx(2.0), pytest.approx(10.0))
    mark = next(row for row in rows if "data" in row)
    assert mark["data"] == pytest.approx(8.0)
    assert mark["text"] == "10.0 ms · waits 80%"


def test_nothing_jumps_while_the_chart_fills():
    assert view.feeds_chart([], {}).spec["height"] > 0, "Vega takes 0 for no height"
    assert view.feeds_chart(PIPELINES, {}).height_px == view.feeds_chart(PIPELINES, known(SLOW, FAST)).height_px


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
    larger = figures(Pipeline(batch_size=128, holds_lock=True), 1e-2, 0.1)
    assert "Applied: a batch of 128 and preprocessing that holds" not in view.applied_sentence((SLOW, larger))
    assert view.applied_sentence(()) == ""


def test_a_feed_that_raised_is_marked_in_one_sentence():
    raised = {Pipeline("prefetch"): "reading a batch raised ValueError: <3> is damaged"}
    text = view.feeds_table(PIPELINES, known(SLOW), raised)
    assert text.count("<tr") == 1 + len(PIPELINES)
    assert text.count("not measured") == 1
    assert "<b>tf.data + prefetch</b>: reading a batch raised ValueError: &lt;3&gt; is damaged." in view.raised_list(
        raised
    )
    assert view.raised_list({}) == ""


PLACED = {"MatMul/GPU/CPU GPU": 5, "PyFunc/CPU/CPU": 1, "Shape/CPU/CPU GPU": 2, "gpus": 1, "cuda": 1}


def test_an_operation_says_why_it_runs_where_it_runs():
    text = view.placement_table(PLACED)
    assert "it has a kernel for a GPU, and TensorFlow prefers that" in text
    assert "it has no kernel for a GPU" in text
    assert "works on what lies in the host&#x27;s memory" in text
    assert "but TensorFlow sees none" in view.placement_table(PLACED | {"gpus": 0})
    assert view.placement_table(PLACED | {"cuda": 0}).count("the build for processors") == 2
    assert view.placement_table({}) == ""


def test_operations_are_added_up_by_device():
    assert "the 8 operations of a step, its fetching of a batch included, 3 on the CPU and 5 on the GPU" in (
        view.placement_sentence(PLACED)
    )
    assert "all on the CPU; it sees no GPU" in view.placement_sentence({"MatMul/CPU/CPU": 5, "gpus": 0})
    assert view.placement_sentence({}) == ""


def created(again_s):
    return {name: measured(1.0) for name in FRESH} | {
        name: measured(*(again_s * (1 + 0.01 * n) for n in range(9))) for name in REPEATED
    }


def test_the_first_time_stands_beside_the_next_ones():
    found = {Network((128,)): created(0.01), Network((4096, 4096)): created(0.1)}
    text = view.models_sentence(found)
    assert "784→128→10 (101,770 parameters): 2.0\u202fs pass before a model can be built" in text
    assert "building, cloning and the first step take 3.0\u202fs, and 31\u202fms the second time" in text
    assert "Cloning the large one takes 10 times as long" in text
    table = view.models_table(found)
    assert table.count("<tr") == 1 + len(FRESH)
    assert view.models_table({}) == view.models_sentence({}) == ""


def test_the_checklist_answers_each_piece_of_advice():
    prefetched, tuned = (figures(Pipeline(feed), 8e-3, 0.7) for feed in ("prefetch", "autotune"))
    larger = figures(Pipeline(batch_size=128), 3e-2, 0.5)
    text = view.checklist(
        [SLOW, prefetched, tuned, larger],
        MINE,
        "cpu",
        0,
        0,
        {"step": measured(0.5), "step again": measured(1e-3, 1e-3)},
    )
    assert "62\u202fμs an image at batch size 32 and 117\u202fμs an image at batch size 128" in text
    assert "“tf.data + prefetch” beside “tf.data”: faster: 0.8 times" in text
    assert "<b>input-bound</b>: Of 10.0 ms per step, 8.0 ms (80%) go into fetching the next batch." in text
    assert "Preprocessing takes 6.4 ms of processor time per step" in text
    assert "No NVIDIA driver answers" in text
    assert "<b>compilation counted</b>" in text
    assert "The first step of Keras takes 500\u202fms in a fresh process, later ones 1\u202fms." in text
    assert text.count("not measured yet") == 0


def test_a_card_that_tensorflow_does_not_see_is_a_finding():
    text = view.checklist([], MINE, "cpu", 1, 0, None)
    assert "<b>GPU present but not registered</b>: The driver lists 1 GPU, the framework sees 0." in text
    assert "The driver lists 1 GPU; TensorFlow sees 0." in text
    assert "The driver lists 2 GPUs; TensorFlow sees 2." in view.checklist([], MINE, "gpu", 2, 2, None)
    assert text.count("not measured yet") == 5
    assert "not registered" not in view.checklist([], MINE, "gpu", 1, 1, None)
