import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.model.backends.registry import Runtime
from lib.model.spec import N_TRAIN, Network
from lib.timing.prediction import remedies
from lib.timing.prediction.predict import DrivenDevice, Prediction, Question, calibrate, predict
from lib.timing.prediction.remedies import RESIDENT, Effect, Remedy, Setup, advise, best, effects
from lib.timing.prediction.workload import DRIVEN, Cost, NoPrediction, Way, fully_connected, read_devices
from tests.timing.prediction.invented import device, figure

NETWORK = Network((128,))
QUESTION = Question(NETWORK, 32, networks=20)
# Only calls, dispatches and kernel launches take time, so that every part can be computed by hand.
RATES = ("transfer_bytes_per_s", "memory_bytes_per_s", "cache_bytes_per_s", "product_flops_per_s")
QUICK = {"wait_s": 0.0, "transfer_latency_s": 0.0, "filled_by": 1.0} | dict.fromkeys(RATES, 1e18)
CARD = device(host_call_s=0.09, dispatch_s=0.01, launch_s=1e-3, graph_launch_s=1e-4, memory_bytes=1e12, **QUICK)
OTHER = device(host_call_s=0.001, dispatch_s=0.001, launch_s=1e-5, memory_bytes=1e12, **QUICK)
TRANSFER = Cost(1e-3, (0.5e-3, 2e-3), 1e-9, (0.5e-9, 2e-9))
WAYS = {
    "plain": DrivenDevice(CARD, Way.OPERATIONS, library="a"),
    "step": DrivenDevice(CARD, Way.STEP, library="a", saves={RESIDENT: TRANSFER}),
    "epoch": DrivenDevice(CARD, Way.EPOCH, library="a"),
    "graph": DrivenDevice(CARD, Way.GRAPH, library="a"),
    "sixteen": DrivenDevice(CARD, Way.EPOCH, 16, "a"),
    "elsewhere": DrivenDevice(OTHER, Way.STEP, library="b"),
    "far": DrivenDevice(CARD, Way.OPERATIONS, library="c"),
}


def by_remedy(by: str, question: Question = QUESTION, ways=WAYS):
    return {one.remedy: one for one in effects(question, remedies.today(question, by, ways), ways)}


def after(effect: Effect) -> Setup:
    assert effect.setup is not None, effect.why_not
    return effect.setup


def test_each_remedy_of_a_plain_step_matches_a_hand_calculation():
    found = by_remedy("plain")
    calls = sum(one.calls for one in fully_connected(NETWORK, 32).operations)
    plain_s = calls * 0.01
    products = 5  # three more launches: the loss and two updates
    assert found[Remedy.STEP].gain == pytest.approx(plain_s / (0.09 + (products + 3) * 1e-3), rel=1e-3)
    assert found[Remedy.EPOCH].gain == pytest.approx(plain_s / (0.09 / 1500 + (products + 3) * 1e-4), rel=1e-3)
    assert found[Remedy.BATCH].gain == pytest.approx(remedies.LARGER, rel=1e-3), "nothing costs more for an image more"
    assert found[Remedy.NETWORKS].gain == pytest.approx(16 * plain_s / (0.09 / 1500 + (products + 3) * 1e-3), rel=1e-3)
    assert found[Remedy.BACKEND].gain == pytest.approx(plain_s / (0.001 + (products + 3) * 1e-5), rel=1e-3)
    assert after(found[Remedy.BACKEND]).by == "elsewhere", "the quicker of two"
    assert "already" in found[Remedy.DATA].why_not
    assert list(found) == [one for one in Remedy if not one.backends or "" in one.backends], "of no known program"


def latency(value_s: float, low_s: float, high_s: float) -> Cost:
    return Cost(value_s, (low_s, high_s), 0.0, (0.0, 0.0))


def test_keeping_batches_on_the_device_saves_the_transfer():
    effect = by_remedy("step")[Remedy.DATA]
    n_bytes = 32 * 784 * 4
    before = predict(fully_connected(NETWORK, 32, Way.STEP), CARD).step_s
    assert effect.gain == pytest.approx(before / (before - 1e-3 - 1e-9 * n_bytes))
    assert effect.low == pytest.approx(before / (before - 0.5e-3 - 0.5e-9 * n_bytes))
    assert effect.high == pytest.approx(before / (before - 2e-3 - 2e-9 * n_bytes))
    assert after(effect).variant == RESIDENT
    dear = WAYS | {"step": replace(WAYS["step"], saves={RESIDENT: latency(1.0, 0.5, 2.0)})}
    assert after(by_remedy("step", ways=dear)[Remedy.DATA]).step.step_s > 0, "a step never takes no time"


def test_applied_or_missing_remedies_say_why_not():
    found = by_remedy("graph", replace(QUESTION, batch_size=N_TRAIN, networks=1))
    assert found[Remedy.STEP].why_not == "its step is already compiled"
    assert found[Remedy.EPOCH].why_not == "its whole epoch is already compiled"
    assert found[Remedy.BATCH].why_not == "a batch already has all images"
    assert found[Remedy.NETWORKS].why_not == "there is only one network"
    lonely = by_remedy("elsewhere", ways={"elsewhere": WAYS["elsewhere"]})
    assert "this library has no such way to train" in lonely[Remedy.EPOCH].why_not
    assert "does not train several networks" in lonely[Remedy.NETWORKS].why_not
    assert lonely[Remedy.BACKEND].why_not == "there is no other one here"
    for one in (*found.values(), *lonely.values()):
        assert bool(one.why_not) == (one.setup is None)


def test_uncalibrated_ways_are_named():
    ways = WAYS | {
        name: replace(WAYS[name], device=None, label=name) for name in ("step", "elsewhere", "far", "sixteen")
    }
    found = by_remedy("plain", ways=ways)
    assert found[Remedy.STEP].why_not == "not calibrated yet: step"
    assert found[Remedy.BACKEND].why_not == "not calibrated yet: elsewhere and far"
    assert found[Remedy.EPOCH].setup is not None
    with pytest.raises(NoPrediction, match="step is not calibrated on this machine"):
        remedies.today(QUESTION, "step", ways)


def test_networks_and_remedies_beyond_the_memory_are_refused():
    question = Question(Network((4096,)), 32, networks=16)
    needed = [fully_connected(question.network, 32, Way.EPOCH, n).working_bytes for n in (1, 16)]
    ways = {name: replace(one, memory_bytes=sum(needed) / 2) for name, one in WAYS.items()}
    assert "16 at once; choose a smaller batch" in by_remedy("epoch", question, ways)[Remedy.NETWORKS].why_not
    small = {name: replace(one, memory_bytes=1e6) for name, one in ways.items()}
    with pytest.raises(NoPrediction, match=r"4096: expected a step of at most 0.001 GB.*choose a smaller batch"):
        remedies.today(question, "epoch", small)
    only = ways | {"elsewhere": small["elsewhere"], "far": ways["far"]}
    assert after(by_remedy("epoch", question, only)[Remedy.BACKEND]).by == "far", "the other that has the memory"


@given(
    st.sampled_from([name for name, one in WAYS.items() if one.together == 1]),
    st.integers(1, N_TRAIN),
    st.integers(1, 100),
    st.floats(1.0, 3.0),
)
def test_a_gain_is_a_ratio_of_seconds_an_image_within_its_interval(by, batch_size, networks, wide):
    uncertain = device(**{**CARD.figures, "launch_s": figure(1e-3, high=wide * 1e-3)})
    ways = WAYS | {name: replace(one, device=uncertain) for name, one in WAYS.items() if one.library == "a"}
    question = Question(NETWORK, batch_size, networks=networks)
    before = remedies.today(question, by, ways)
    for effect in effects(question, before, ways):
        if effect.setup is not None:
            assert effect.low <= effect.gain * (1 + 1e-12)
            assert effect.gain <= effect.high * (1 + 1e-12)
            after_s = effect.setup.step.step_s / effect.setup.batch_size / effect.setup.at_once
            assert effect.gain == pytest.approx(before.step.step_s / batch_size / after_s)
            assert effect.words
    assert before.at_once == 1


def test_independent_errors_add_in_quadrature():
    def only_calls(call_s: float):
        return device(host_call_s=figure(call_s, call_s / 2, call_s * 2), launch_s=0.0, **QUICK)

    ways = {
        "one": DrivenDevice(only_calls(0.01), Way.STEP, library="a"),
        "other": DrivenDevice(only_calls(0.001), Way.STEP, library="b"),
    }
    effect = by_remedy("one", ways=ways)[Remedy.BACKEND]
    assert effect.gain == pytest.approx(10, rel=1e-3)
    assert effect.high / effect.gain == pytest.approx(2 ** math.sqrt(2), rel=1e-3)
    assert effect.gain / effect.low == pytest.approx(2 ** math.sqrt(2), rel=1e-3)


def test_the_best_remedy_gains_most_and_must_gain():
    found = list(by_remedy("plain").values())
    quickest = best(found)
    assert quickest is not None
    assert quickest.gain == max(one.gain for one in found if one.remedy is not Remedy.BACKEND)
    useless = [replace(one, gain=0.9) for one in found]
    (other,) = (one for one in found if one.remedy is Remedy.BACKEND)
    assert best([*useless, other]) == other, "nothing else helps"
    assert best(useless) is None


SAVES = {
    Remedy.EXECUTION.variant: latency(0.04, 0.03, 0.05),
    Remedy.ARRAYS.variant: latency(0.1, 0.05, 0.2),
    Remedy.XLA.variant: "its saving is not measured yet",
}
KERAS = {
    "Keras on TensorFlow": DrivenDevice(CARD, Way.STEP, library="a", runtime=Runtime("keras-tensorflow"), saves=SAVES),
    "Keras on JAX": DrivenDevice(OTHER, Way.STEP, library="b", runtime=Runtime("keras-jax")),
    "NumPy": DrivenDevice(CARD, Way.OPERATIONS, library="c", runtime=Runtime("numpy")),
}


def keras_today(by: str):
    question = Question(NETWORK, 64)
    return remedies.today(question, by, KERAS), by_remedy(by, question, KERAS)


def test_keras_users_get_lines_of_keras_including_its_backend():
    _, found = keras_today("Keras on TensorFlow")
    assert {Remedy.KERAS, Remedy.EXECUTION, Remedy.METRIC, Remedy.XLA, Remedy.ARRAYS, Remedy.BATCH} <= set(found)
    assert not {Remedy.DATA, Remedy.GRAPH, Remedy.DONATED} & set(found), "those are of other programs"
    assert after(found[Remedy.KERAS]).by == "Keras on JAX"
    assert found[Remedy.KERAS].line.startswith('import os; os.environ["KERAS_BACKEND"] = "jax"')
    assert found[Remedy.EXECUTION].line == "model.compile(..., steps_per_execution=50)"
    assert found[Remedy.BATCH].line == "model.fit(x, y, batch_size=256)"
    assert after(found[Remedy.BACKEND]).by == "NumPy", "Keras on JAX is no other program"
    assert found[Remedy.XLA].why_not == "its saving is not measured yet"
    assert found[Remedy.XLA].line == ""
    _, others = keras_today("NumPy")
    assert Remedy.KERAS not in others
    assert after(others[Remedy.BACKEND]).by == "Keras on JAX"


def test_savings_are_subtracted_and_applied_variants_compared():
    before, found = keras_today("Keras on TensorFlow")
    whole_s = before.step.step_s
    saved, kept = found[Remedy.EXECUTION], found[Remedy.ARRAYS]
    assert saved.gain == pytest.approx(whole_s / (whole_s - 0.04))
    assert kept.gain == pytest.approx((whole_s + 0.1) / whole_s)
    assert after(kept).step.step_s == pytest.approx(whole_s + 0.1), "the seconds are without it"
    for one in (saved, kept):
        assert one.low < one.gain < one.high
    assert best([kept]) is None, "already in use"
    assert "already" in kept.words


@pytest.mark.parametrize("remedy", list(Remedy))
def test_every_variant_names_its_backends_and_a_line_to_paste(remedy):
    if remedy.variant:
        assert remedy.backends
        assert all(any(one.startswith(key) for key in remedy.lines) for one in remedy.backends if one)


SMALL, LARGE = Network((128,)), Network((4096, 4096))
SAMPLES = [
    (fully_connected(Network((width,)), size, Way.EPOCH), 1e-5 + 1e-11 * Network((width,)).step_flops(size))
    for width in (16, 64, 256)
    for size in (1, 8, 32, 256, 4096)
]
CALIBRATION = calibrate("JAX", SAMPLES)
HERE = {"JAX": DrivenDevice(CALIBRATION, Way.EPOCH)}


def test_answers_are_sorted_and_list_each_way_of_each_device_once():
    advice = advise(Question(SMALL), HERE, {"slow": device(launch_s=5e-3), "quick": device(launch_s=1e-6)})
    seconds = [answer.prediction.step_s for answer in advice.answers]
    assert seconds == sorted(seconds)
    assert len(advice.answers) == 1 + 2 * len(DRIVEN)
    assert [answer.way for answer in advice.answers if answer.here] == ["JAX"]


@given(st.integers(1, 40), st.integers(1, 5))
def test_sequential_networks_and_epochs_multiply_the_time(networks, epochs):
    question = Question(SMALL, 32, epochs, networks)
    one = advise(replace(question, networks=1, epochs=1), HERE, {}).answers[0].prediction
    all_of_them = advise(question, HERE, {}).answers[0].prediction
    assert all_of_them.step_s == pytest.approx(networks * epochs * one.step_s)


def test_remaining_networks_are_trained_by_a_smaller_program():
    together = {"together": replace(HERE["JAX"], together=4)}
    (answer,) = advise(Question(SMALL, 32, 1, 6), together, {}).answers
    expected = sum(1500 * predict(fully_connected(SMALL, 32, Way.EPOCH, n), CALIBRATION).step_s for n in (4, 2))
    assert answer.prediction.step_s == pytest.approx(expected)


def test_the_remedy_is_for_the_advised_way():
    dear = {"card": replace(device(dispatch_s=0.1, wait_s=0.1, host_call_s=0.0), ways=(Way.OPERATIONS,))}
    assert "batch size 128 instead of 32" in advise(Question(SMALL), {}, dear).remedy
    assert advise(Question(SMALL, 48_000), HERE, {}).remedy == "", "no larger batch, and one way"


def test_the_remedy_is_for_this_machine_even_if_a_card_is_faster():
    delays = dict.fromkeys(("host_call_s", "dispatch_s", "launch_s", "graph_launch_s"), 0.0)
    advice = advise(Question(SMALL), HERE, {"card": device(**delays, **QUICK)})
    assert not advice.answers[0].here, "the card is the quickest"
    assert advice.remedy.startswith("batch size 128 instead of 32")


def test_a_device_named_like_this_machine_is_not_taken_for_it():
    same = {"same": replace(device(), name="this machine")}
    assert advise(Question(SMALL), HERE, same).remedy == advise(Question(SMALL), HERE, {}).remedy


TINY = {"tiny": device(memory_bytes=1e6)}


def test_a_device_with_too_little_memory_says_so_and_comes_last():
    advice = advise(Question(LARGE), HERE, TINY)
    assert [bool(answer.why_not) for answer in advice.answers] == [False, True]
    assert "choose a smaller batch" in advice.answers[-1].why_not
    small = {"JAX": replace(HERE["JAX"], memory_bytes=1e6)}
    advice = advise(Question(LARGE), small, TINY)
    assert "GB, the free memory" in advice.answers[0].why_not
    assert advice.remedy == ""
    assert advice.headline.startswith("no known device")


def test_this_machine_is_priced_by_the_question_and_others_by_list():
    known = read_devices()
    unpriced = advise(Question(SMALL), HERE, known).answers
    priced = advise(Question(SMALL, price_per_h=0.5), HERE, known).answers
    assert [(one.dollars, one.dated) for one in unpriced if one.here] == [(None, "")]
    (here,) = (one for one in priced if one.here)
    assert (here.dollars, here.dated) == (pytest.approx(0.5 * here.prediction.step_s / 3600), "your price")
    assert [one for one in priced if not one.here] == [one for one in unpriced if not one.here]
    assert {one.device for one in priced if not one.here} == {one.name for one in known.values()}
    listed = {one.name for one in known.values() if "price_per_h" in one.figures}
    assert {one.device for one in priced if one.dollars is not None and not one.here} == listed
    (free,) = (one for one in advise(Question(SMALL, price_per_h=0), HERE, {}).answers)
    assert free.dollars == 0


def test_overlapping_intervals_are_too_close_to_call():
    quicker, exact = remedies.quicker, Prediction(1.0, 1.0, 1.0)
    one, other = Prediction(1.0, 0.9, 1.1), Prediction(2.0, 1.8, 2.2)
    assert (quicker(one, other), quicker(other, one), quicker(exact, exact)) == (-1, 1, 0)
    one, other = Prediction(1.0, 0.3, 3.0), Prediction(2.0, 0.6, 6.0)
    assert (quicker(one, other), quicker(one, other, 2.5), quicker(other, one, 2.5)) == (0, -1, 1), "a common widening"
    assert quicker(one, other, 100.0) == -1, "no interval is narrower than none"
    assert quicker(one, one, 100.0) == 0


def known(seconds_per_flop: float) -> DrivenDevice:
    samples = [(workload, 1e-5 + seconds_per_flop * workload.flops) for workload, _ in SAMPLES]
    return DrivenDevice(calibrate("way", samples), Way.EPOCH, library="way")


ANY_CARD = replace(device(), name="card", on_gpu=True)


def test_the_headline_names_device_way_time_interval_and_remedy():
    said = advise(Question(SMALL, 32, 20), HERE, {}).headline
    assert said.startswith("train it on this machine (JAX): 20 epochs take ")
    assert " (90 %: " in said
    assert "; what helps most: batch size 128 instead of 32 (`batch_size = 128`), " in said


@pytest.mark.parametrize(("networks", "place"), [(1, "this machine"), (100_000, "a GPU such as card")])
def test_another_device_is_advised_where_it_surely_saves_a_minute(networks, place):
    here, there = {"slow": known(1e-10)}, {"card": {"quick": known(1e-13)}}
    headline = advise(Question(SMALL, 4096, networks=networks), here, {"card": ANY_CARD}, there).headline
    assert headline.partition(" on ")[2].startswith(f"{place} (")
    assert ("no GPU is certain to save a minute" in headline) == (place == "this machine")
    assert ("this machine takes" in headline) == (place != "this machine")


def test_the_first_rows_are_few_and_data_sheets_share_one():
    known_by_sheets = {key: replace(one, judged=True) for key, one in read_devices().items()}
    here = {f"way {n}": replace(known((1 + n) * 1e-11), library=f"library {n}") for n in range(6)}
    answers = advise(Question(SMALL), here, known_by_sheets).answers
    rows = remedies.first_rows(answers)
    assert len(rows) <= remedies.MOST_ROWS < len(answers)
    assert [one.way for one in rows if one.here] == ["way 0", "way 1", "way 2"]
    (sheets,) = (one for one in rows if not one.here)
    cards = [one for one in answers if one.on_gpu]
    assert all(one.device.partition(" (")[0] in sheets.device for one in cards)
    assert sheets.prediction.low_s == min(one.prediction.low_s for one in cards)
    alone = remedies.first_rows(advise(Question(SMALL), {}, known_by_sheets).answers)
    assert [one.device.partition(":")[0] for one in alone] == [remedies.CARDS, remedies.PROCESSORS]


def test_recorded_figures_of_a_card_replace_its_data_sheet():
    answers = advise(Question(SMALL), {}, {"card": ANY_CARD}, {"card": {"quick": known(1e-13)}}).answers
    assert [(one.device, one.recorded) for one in remedies.first_rows(answers)] == [("card", True)]
