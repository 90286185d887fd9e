"""Which device is named, what many networks take, and questions that cannot be answered."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.model.spec import Network
from lib.timing.prediction.predict import Calibrated, Prediction, Question, calibrate, predict
from lib.timing.prediction.remedies import CARDS, MOST_ROWS, PROCESSORS, advise, first_rows, quicker
from lib.timing.prediction.workload import DRIVEN, Way, fully_connected, read_devices
from tests.timing.prediction.invented import device

SMALL, LARGE = Network((128,)), Network((4096, 4096))
SAMPLES = [
    (fully_connected(Network((width,)), size, Way.EPOCH), 1e-5 + 1e-11 * Network((width,)).step_flops(size))
    for width in (16, 64, 256)
    for size in (1, 8, 32, 256, 4096)
]
CALIBRATION = calibrate("JAX", SAMPLES)
DELAYS = ("host_call_s", "dispatch_s", "launch_s", "graph_launch_s", "wait_s", "transfer_latency_s")
HERE = {"JAX": Calibrated(CALIBRATION, Way.EPOCH)}


def test_the_quickest_comes_first_and_each_way_of_each_device_once():
    advice = advise(Question(SMALL), HERE, {"slow": device(launch_s=5e-3), "quick": device(launch_s=1e-6)})
    seconds = [answer.prediction.step_s for answer in advice.answers]
    assert seconds == sorted(seconds)
    assert len(advice.answers) == 1 + 2 * len(DRIVEN)
    assert [answer.way for answer in advice.answers if answer.here] == ["JAX"]


@given(st.integers(1, 40), st.integers(1, 5))
def test_networks_one_after_another_take_as_many_times_as_long(networks, epochs):
    question = Question(SMALL, 32, epochs, networks)
    one = advise(replace(question, networks=1, epochs=1), HERE, {}).answers[0].prediction
    all_of_them = advise(question, HERE, {}).answers[0].prediction
    assert all_of_them.step_s == pytest.approx(networks * epochs * one.step_s)
    assert sum(all_of_them.parts_s.values()) == pytest.approx(all_of_them.step_s)


def test_networks_that_do_not_fill_the_last_program_are_trained_by_a_smaller_one():
    together = {"together": replace(HERE["JAX"], together=4)}
    (answer,) = advise(Question(SMALL, 32, 1, 6), together, {}).answers
    expected = sum(1500 * predict(fully_connected(SMALL, 32, Way.EPOCH, n), CALIBRATION).step_s for n in (4, 2))
    assert answer.prediction.step_s == pytest.approx(expected)


def test_what_helps_most_is_a_change_of_the_way_that_is_advised():
    dear = {"card": replace(device(dispatch_s=0.1, wait_s=0.1, host_call_s=0.0), ways=(Way.OPERATIONS,))}
    assert "batch size 128 in place of 32" in advise(Question(SMALL), {}, dear).remedy
    both = {"slow": replace(HERE["JAX"], calibration=device(dispatch_s=0.1), way=Way.OPERATIONS), **HERE}
    advice = advise(Question(SMALL, 48_000), {"slow": both["slow"]}, {})
    assert advice.remedy == "", "no larger batch, and one way"
    assert "batch size 128 in place of 32 (`batch_size = 128`), " in advise(Question(SMALL), HERE, {}).remedy
    assert advise(Question(SMALL, 48_000), HERE, {}).remedy == "", "no larger batch, and one way"


def test_the_remedy_is_one_for_this_machine_also_where_a_card_is_the_quickest():
    rates = {"product_flops_per_s": 1e15, "memory_bytes_per_s": 1e13, "cache_bytes_per_s": 1e13}
    advice = advise(Question(SMALL), HERE, {"card": device(**dict.fromkeys(DELAYS, 0.0), **rates)})
    assert not advice.answers[0].here, "the card is the quickest"
    assert advice.remedy.startswith("batch size 128 in place of 32")


def test_a_known_device_that_is_called_as_this_machine_is_not_taken_for_it():
    same = {"same": replace(device(), name="this machine")}
    assert advise(Question(SMALL), HERE, same).remedy == advise(Question(SMALL), HERE, {}).remedy


def test_a_device_whose_memory_holds_nothing_says_so_and_comes_last():
    advice = advise(Question(LARGE), HERE, {"tiny": device(memory_bytes=1e6)})
    assert [bool(answer.why_not) for answer in advice.answers] == [False, True]
    assert "choose a smaller batch" in advice.answers[-1].why_not
    assert advise(Question(LARGE), {}, {"tiny": device(memory_bytes=1e6)}).remedy == ""


def test_a_machine_whose_memory_holds_nothing_says_so_too():
    small = {"JAX": replace(HERE["JAX"], memory_bytes=1e6)}
    advice = advise(Question(LARGE), small, {})
    assert "GB, the free memory" in advice.answers[0].why_not
    assert advice.remedy == ""


def test_this_machine_costs_what_the_question_says_and_known_devices_what_is_listed():
    known = read_devices()
    unpriced = advise(Question(SMALL), HERE, known).answers
    priced = advise(Question(SMALL, price_per_h=0.5), HERE, known).answers
    assert [(one.dollars, one.dated) for one in unpriced if one.here] == [(None, "")]
    (here,) = (one for one in priced if one.here)
    assert (here.dollars, here.dated) == (pytest.approx(0.5 * here.prediction.step_s / 3600), "your price")
    assert [one for one in priced if not one.here] == [one for one in unpriced if not one.here]
    listed = {one.name for one in known.values() if "price_per_h" in one.figures}
    assert {one.device for one in priced if one.dollars is not None and not one.here} == listed
    (free,) = (one for one in advise(Question(SMALL, price_per_h=0), HERE, {}).answers)
    assert free.dollars == 0


def test_every_preset_answers():
    names = {answer.device for answer in advise(Question(SMALL), {}, read_devices()).answers}
    assert names == {one.name for one in read_devices().values()}


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ((1.0, 0.9, 1.1), (2.0, 1.8, 2.2), -1),
        ((2.0, 1.8, 2.2), (1.0, 0.9, 1.1), 1),
        ((1.0, 0.5, 2.0), (1.5, 0.8, 3.0), 0),
        ((1.0, 1.0, 1.0), (1.0, 1.0, 1.0), 0),
    ],
)
def test_what_the_intervals_leave_open_is_too_close_to_call(one, other, expected):
    assert quicker(Prediction(*one, {}), Prediction(*other, {})) == expected


def known(seconds_per_flop: float) -> Calibrated:
    """A way to train that was calibrated, whose steps take that long."""
    samples = [(workload, 1e-5 + seconds_per_flop * workload.flops) for workload, _ in SAMPLES]
    return Calibrated(calibrate("way", samples), Way.EPOCH, library="way")


CARD = replace(device(), name="card", on_gpu=True)


def test_the_headline_says_on_what_by_what_how_long_how_sure_and_what_helps():
    said = advise(Question(SMALL, 32, 20), HERE, {}).headline
    assert said.startswith("train it on this machine (JAX): 20 epochs take ")
    assert " (90 %: " in said
    assert "; what helps most: batch size 128 in place of 32 (`batch_size = 128`), " in said
    assert advise(Question(LARGE), {}, {"tiny": device(memory_bytes=1e6)}).headline.startswith("nothing that is known")


@pytest.mark.parametrize(("networks", "place"), [(1, "this machine"), (100_000, "a card such as card")])
def test_another_device_is_advised_where_it_surely_saves_a_minute(networks, place):
    """A card that is a hundred times as fast saves seconds of one training, and hours of many."""
    here, there = {"slow": known(1e-10)}, {"card": {"quick": known(1e-13)}}
    headline = advise(Question(SMALL, 4096, networks=networks), here, {"card": CARD}, there).headline
    assert headline.partition(" on ")[2].startswith(f"{place} (")
    assert ("no card surely saves a minute" in headline) == (place == "this machine")
    assert ("this machine takes" in headline) == (place != "this machine")


def test_the_first_rows_are_few_and_data_sheets_share_one():
    known_by_sheets = {key: replace(one, judged=True) for key, one in read_devices().items()}
    here = {f"way {n}": replace(known((1 + n) * 1e-11), library=f"library {n}") for n in range(6)}
    answers = advise(Question(SMALL), here, known_by_sheets).answers
    rows = first_rows(answers)
    assert len(rows) <= MOST_ROWS < len(answers)
    assert [one.way for one in rows if one.here] == ["way 0", "way 1", "way 2"]
    (sheets,) = (one for one in rows if not one.here)
    cards = [one for one in answers if one.on_gpu]
    assert all(one.device.partition(" (")[0] in sheets.device for one in cards)
    assert sheets.prediction.low_s == min(
        one.prediction.low_s for one in cards if one.device in {c.device for c in cards}
    )
    alone = first_rows(advise(Question(SMALL), {}, known_by_sheets).answers)
    assert [one.device.partition(":")[0] for one in alone] == [CARDS, PROCESSORS]


def test_what_was_recorded_of_a_card_answers_in_place_of_its_sheet():
    rows = first_rows(advise(Question(SMALL), {}, {"card": CARD}, {"card": {"quick": known(1e-13)}}).answers)
    assert [(one.device, one.recorded) for one in rows] == [("card", True)]


def test_what_widens_both_alike_makes_neither_the_quicker():
    one, other = Prediction(1.0, 0.3, 3.0, {}), Prediction(2.0, 0.6, 6.0, {})
    assert (quicker(one, other), quicker(one, other, 2.5), quicker(other, one, 2.5)) == (0, -1, 1)
    assert quicker(one, other, 100.0) == -1, "no interval is narrower than none"
    assert quicker(one, one, 100.0) == 0
