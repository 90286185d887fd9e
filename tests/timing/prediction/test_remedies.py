"""Remedies on devices whose exact time is known, what does not exist, and what cannot be."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.model.spec import N_TRAIN, Network
from lib.timing.prediction.predict import Calibrated, NotCalibrated, Question, predict
from lib.timing.prediction.remedies import (
    LARGER,
    RESIDENT,
    Effect,
    Remedy,
    Setup,
    best,
    effects,
    in_words,
    to_paste,
    today,
)
from lib.timing.prediction.workload import Cost, DoesNotFit, Way, fully_connected
from tests.timing.prediction.invented import device, figure

NETWORK = Network((128,))
QUESTION = Question(NETWORK, 32, networks=20)
# Whose parts are all known by hand: nothing but a call, a dispatch or a start of a kernel costs more than nothing.
QUICK = {
    "wait_s": 0.0,
    "transfer_latency_s": 0.0,
    "transfer_bytes_per_s": 1e13,
    "memory_bytes_per_s": 1e14,
    "cache_bytes_per_s": 1e14,
    "product_flops_per_s": 1e16,
    "filled_by": 1.0,
}
CARD = device(host_call_s=0.09, dispatch_s=0.01, launch_s=1e-3, graph_launch_s=1e-4, memory_bytes=1e12, **QUICK)
OTHER = device(host_call_s=0.001, dispatch_s=0.001, launch_s=1e-5, memory_bytes=1e12, **QUICK)
TRANSFER = Cost(1e-3, (0.5e-3, 2e-3), 1e-9, (0.5e-9, 2e-9))
WAYS = {
    "plain": Calibrated(CARD, Way.OPERATIONS, library="a"),
    "step": Calibrated(CARD, Way.STEP, library="a", saves={RESIDENT: TRANSFER}),
    "epoch": Calibrated(CARD, Way.EPOCH, library="a"),
    "graph": Calibrated(CARD, Way.GRAPH, library="a"),
    "sixteen": Calibrated(CARD, Way.EPOCH, 16, "a"),
    "elsewhere": Calibrated(OTHER, Way.STEP, library="b"),
    "far": Calibrated(CARD, Way.OPERATIONS, library="c"),
}


def by_remedy(by: str, question: Question = QUESTION, ways=WAYS):
    return {one.remedy: one for one in effects(question, today(question, by, ways), ways)}


def after(effect: Effect | None) -> Setup:
    assert effect is not None
    assert effect.setup is not None, effect.why_not
    return effect.setup


def step_s(way: Way, batch_size: int = 32, networks: int = 1, on=CARD) -> float:
    return predict(fully_connected(NETWORK, batch_size, way, networks), on).step_s


def test_each_remedy_of_a_plain_step_by_hand():
    found = by_remedy("plain")
    calls = sum(one.calls for one in fully_connected(NETWORK, 32).operations)
    plain_s = calls * 0.01
    products = 5  # and the loss, and an update of two layers
    assert found[Remedy.STEP].gain == pytest.approx(plain_s / (0.09 + (products + 3) * 1e-3), rel=1e-3)
    assert found[Remedy.EPOCH].gain == pytest.approx(plain_s / (0.09 / 1500 + (products + 3) * 1e-4), rel=1e-3)
    assert found[Remedy.BATCH].gain == pytest.approx(LARGER, rel=1e-3), "nothing costs more for an image more"
    assert found[Remedy.NETWORKS].gain == pytest.approx(16 * plain_s / (0.09 / 1500 + (products + 3) * 1e-3), rel=1e-3)
    assert found[Remedy.BACKEND].gain == pytest.approx(plain_s / (0.001 + (products + 3) * 1e-5), rel=1e-3)
    assert after(found[Remedy.BACKEND]).by == "elsewhere", "the quicker of two"
    assert found[Remedy.DATA].why_not.endswith("already")
    assert list(found) == [one for one in Remedy if not one.whom or "" in one.whom], "of no known program"


def test_a_batch_that_is_brought_each_step_need_not_be():
    effect = by_remedy("step")[Remedy.DATA]
    n_bytes = 32 * 784 * 4
    before = step_s(Way.STEP)
    assert effect.gain == pytest.approx(before / (before - 1e-3 - 1e-9 * n_bytes))
    assert effect.low == pytest.approx(before / (before - 0.5e-3 - 0.5e-9 * n_bytes))
    assert effect.high == pytest.approx(before / (before - 2e-3 - 2e-9 * n_bytes))
    assert after(effect).variant == RESIDENT
    dear = WAYS | {"step": replace(WAYS["step"], saves={RESIDENT: Cost(1.0, (0.5, 2.0), 0.0, (0.0, 0.0))})}
    assert after(by_remedy("step", ways=dear)[Remedy.DATA]).step.step_s > 0, "a step never takes no time"


def test_what_is_applied_already_or_does_not_exist_says_so():
    found = by_remedy("graph", replace(QUESTION, batch_size=N_TRAIN, networks=1))
    assert found[Remedy.STEP].why_not == "its step is compiled already"
    assert found[Remedy.EPOCH].why_not == "its whole epoch is compiled already"
    assert found[Remedy.BATCH].why_not == "a batch has all images already"
    assert found[Remedy.NETWORKS].why_not == "there is one network only, and none to train beside it"
    lonely = by_remedy("elsewhere", ways={"elsewhere": WAYS["elsewhere"]})
    assert "no such way to train with this library" in lonely[Remedy.EPOCH].why_not
    assert "does not train several networks" in lonely[Remedy.NETWORKS].why_not
    assert lonely[Remedy.BACKEND].why_not == "there is no other here"
    for one in (*found.values(), *lonely.values()):
        assert bool(one.why_not) == (one.setup is None)


def test_what_exists_and_is_not_calibrated_is_named():
    ways = WAYS | {name: replace(WAYS[name], calibration=None) for name in ("step", "elsewhere", "far", "sixteen")}
    found = by_remedy("plain", ways=ways)
    assert found[Remedy.STEP].why_not == "not calibrated yet: step"
    assert found[Remedy.BACKEND].why_not == "not calibrated yet: elsewhere and far"
    assert found[Remedy.EPOCH].setup is not None
    with pytest.raises(NotCalibrated, match="step is not calibrated on this machine"):
        today(QUESTION, "step", ways)


def test_a_network_that_no_memory_holds_is_refused_and_a_remedy_that_does_not_fit_says_so():
    question = Question(Network((4096,)), 32, networks=16)
    needed = [fully_connected(question.network, 32, Way.EPOCH, n).working_bytes for n in (1, 16)]
    ways = {name: replace(one, memory_bytes=sum(needed) / 2) for name, one in WAYS.items()}
    assert "16 at once; choose a smaller batch" in by_remedy("epoch", question, ways)[Remedy.NETWORKS].why_not
    small = {name: replace(one, memory_bytes=1e6) for name, one in ways.items()}
    with pytest.raises(DoesNotFit, match=r"4096: expected a step of at most 0.001 GB.*choose a smaller batch"):
        today(question, "epoch", small)
    only = ways | {"elsewhere": small["elsewhere"], "far": ways["far"]}
    assert after(by_remedy("epoch", question, only)[Remedy.BACKEND]).by == "far", "the other that has the memory"


@given(
    st.sampled_from([name for name, one in WAYS.items() if one.together == 1]),
    st.integers(1, N_TRAIN),
    st.integers(1, 100),
    st.floats(1.0, 3.0),
)
def test_a_gain_lies_in_its_interval_and_is_a_ratio_of_seconds_an_image(by, batch_size, networks, wide):
    uncertain = device(**{**CARD.figures, "launch_s": figure(1e-3, high=wide * 1e-3)})
    ways = WAYS | {name: replace(one, calibration=uncertain) for name, one in WAYS.items() if one.library == "a"}
    question = Question(NETWORK, batch_size, networks=networks)
    before = today(question, by, ways)
    for effect in effects(question, before, ways):
        if effect.setup is not None:
            assert effect.low <= effect.gain * (1 + 1e-12)
            assert effect.gain <= effect.high * (1 + 1e-12)
            after_s = effect.setup.step.step_s / effect.setup.batch_size / effect.setup.at_once
            assert effect.gain == pytest.approx(before.step.step_s / batch_size / after_s)
            assert in_words(effect, before)
    assert before.at_once == 1


def test_independent_errors_add_as_squares_do():
    def only_calls(call_s: float):
        return device(host_call_s=figure(call_s, call_s / 2, call_s * 2), launch_s=0.0, **QUICK)

    ways = {
        "one": Calibrated(only_calls(0.01), Way.STEP, library="a"),
        "other": Calibrated(only_calls(0.001), Way.STEP, library="b"),
    }
    effect = by_remedy("one", ways=ways)[Remedy.BACKEND]
    assert effect.gain == pytest.approx(10, rel=1e-3)
    assert effect.high / effect.gain == pytest.approx(2 ** math.sqrt(2), rel=1e-3)
    assert effect.gain / effect.low == pytest.approx(2 ** math.sqrt(2), rel=1e-3)


def test_the_best_gains_most_and_nothing_is_best_where_nothing_gains():
    found = effects(QUESTION, today(QUESTION, "plain", WAYS), WAYS)
    quickest = best(found)
    assert quickest is not None
    assert quickest.gain == max(one.gain for one in found if one.remedy is not Remedy.BACKEND)
    (other,) = (one for one in found if one.remedy is Remedy.BACKEND)
    assert best([replace(one, gain=0.9) if one is not other else one for one in found]) == other, "nothing else helps"
    assert best([replace(one, gain=0.9) for one in found]) is None


KERAS = {
    "Keras on TensorFlow": Calibrated(
        CARD,
        Way.STEP,
        library="keras-tensorflow/cpu",
        backend="keras-tensorflow",
        saves={
            Remedy.EXECUTION.variant: Cost(0.04, (0.03, 0.05), 0.0, (0.0, 0.0)),
            Remedy.ARRAYS.variant: Cost(0.1, (0.05, 0.2), 0.0, (0.0, 0.0)),
            Remedy.XLA.variant: "what it saves is not measured yet",
        },
    ),
    "Keras on JAX": Calibrated(OTHER, Way.STEP, library="keras-jax/cpu", backend="keras-jax"),
    "NumPy": Calibrated(CARD, Way.OPERATIONS, library="numpy/cpu", backend="numpy"),
}


def test_a_keras_user_is_told_lines_of_keras_and_another_backend_is_one():
    """Another library is another program; another backend of Keras is a line."""
    ways, question = KERAS, Question(NETWORK, 64)
    before = today(question, "Keras on TensorFlow", ways)
    found = {one.remedy: one for one in effects(question, before, ways)}
    assert {Remedy.KERAS, Remedy.EXECUTION, Remedy.METRIC, Remedy.XLA, Remedy.ARRAYS, Remedy.BATCH} <= set(found)
    assert not {Remedy.DATA, Remedy.GRAPH, Remedy.DONATED} & set(found), "those are of other programs"
    assert after(found[Remedy.KERAS]).by == "Keras on JAX"
    assert to_paste(found[Remedy.KERAS], ways, before).startswith('os.environ["KERAS_BACKEND"] = "jax"')
    assert to_paste(found[Remedy.EXECUTION], ways, before) == "model.compile(..., steps_per_execution=50)"
    assert to_paste(found[Remedy.BATCH], ways, before) == "model.fit(x, y, batch_size=256)"
    assert after(found[Remedy.BACKEND]).by == "NumPy", "Keras on JAX is no other program"
    assert found[Remedy.XLA].why_not == "what it saves is not measured yet"
    assert to_paste(found[Remedy.XLA], ways, before) == ""
    others = {one.remedy: one for one in effects(question, today(question, "NumPy", ways), ways)}
    assert Remedy.KERAS not in others
    assert after(others[Remedy.BACKEND]).by == "Keras on JAX"


def test_what_a_variant_saves_is_taken_from_the_step_and_what_is_kept_is_compared_with_the_step_without():
    question = Question(NETWORK, 64)
    before = today(question, "Keras on TensorFlow", KERAS)
    found = {one.remedy: one for one in effects(question, before, KERAS)}
    whole_s = before.step.step_s
    saved, kept = found[Remedy.EXECUTION], found[Remedy.ARRAYS]
    assert saved.gain == pytest.approx(whole_s / (whole_s - 0.04))
    assert kept.gain == pytest.approx((whole_s + 0.1) / whole_s)
    assert after(kept).step.step_s == pytest.approx(whole_s + 0.1), "the seconds are those without"
    for one in (saved, kept):
        assert one.low < one.gain < one.high
    assert best([kept]) is None, "it is so already"
    assert "already" in in_words(kept, before)


@pytest.mark.parametrize("remedy", list(Remedy))
def test_every_variant_has_whom_it_is_for_and_a_line_to_paste(remedy):
    if remedy.variant:
        assert remedy.whom
        assert all(any(one.startswith(key) for key in remedy.lines) for one in remedy.whom if one)
