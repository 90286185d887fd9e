"""The guess next to the result: the exact sentence in every case, and a mark on the guessed option."""

import numpy as np
import pytest

from lib.sweeps.experiments.results import Results
from lib.sweeps.experiments.teacher import Guess, GuessQuestion
from lib.sweeps.workers.messages import State
from lib.ui.views import predict_first as view
from tests import made
from tests.sweeps.experiments.test_results import filled

RATES = made.learning_rate((0.01, 0.1, 10.0), epochs=3, batch_size=32, hidden="128")
SIZES = made.batch_size((1, 32), epochs=3, rate=0.01, hidden="128", target=0.9)
DEPTHS = made.depth(("128", "256"), epochs=3, rate=0.1, batch_size=32)
BACKENDS = made.backends(batch_size=32, epochs=5, rate=0.1, hidden="128")
CHANCE = "which one seed cannot tell from chance: you may well be right."
FIRST, SLOWER = "the first to reach 90.0\u202f%", "in 110\u202fms, and yours took 210\u202fms."
LONGER = "You said the slowest would take 5 times as long per epoch; it took 2.0 times as long: less than you thought."
YES, NO = (Guess("0.1", diverges=said) for said in ("yes", "no"))
TENTH, TEN = "You said 0.1, and 0.1 was best. You also said that", "You said 10, which"


@pytest.mark.parametrize(
    ("experiment", "accuracies", "diverged", "guess", "wanted"),
    [
        (RATES, (0.9, 0.965, 0.9), (), Guess("0.1"), "You said 0.1, and 0.1 was best."),
        (RATES, (0.9, 0.965, 0.9), (), Guess("0.01"), "You said 0.01; 0.1 was best, by 6.5 points."),
        (RATES, (0.9, 0.965, 0.1), (), Guess("10"), f"{TEN} did not learn; 0.1 was best."),
        (RATES, (0.9, 0.965, 0.1), (2,), Guess("10"), f"{TEN} diverged; 0.1 was best."),
        (RATES, (0.1, 0.1, 0.1), (), Guess("10"), "You said 10; none of them learnt."),
        (RATES, (0.9, 0.965, 0.2), (2,), YES, f"{TENTH} some loss would stop being a number, and that of 10 did."),
        (RATES, (0.9, 0.965, 0.2), (), YES, f"{TENTH} some loss would stop being a number; none did."),
        (RATES, (0.9, 0.965, 0.2), (2,), NO, f"{TENTH} every loss would stay a number; that of 10 did not."),
        (RATES, (0.9, 0.965, 0.2), (), NO, f"{TENTH} every loss would stay a number, and all did."),
        (DEPTHS, (0.965, 0.967), (), Guess("128"), f"You said 128; 256 was 0.2 points ahead, {CHANCE}"),
        (SIZES, (0.97, 0.97), (), Guess("1"), f"You said 1, and 1 was {FIRST}."),
        (SIZES, (0.97, 0.97), (), Guess("1", factor="5"), f"You said 1, and 1 was {FIRST}. {LONGER}"),
        (SIZES, (0.97, 0.97), (), Guess("32"), f"You said 32; 1 was {FIRST}, {SLOWER}"),
        (SIZES, (0.97, 0.5), (), Guess("32"), "You said 32, which did not reach 90.0\u202f%; 1 was first."),
        (SIZES, (0.5, 0.5), (), Guess("32"), "You said 32; none reached 90.0\u202f%."),
    ],
)
def test_the_sentence_about_a_guess_is_exact(experiment, accuracies, diverged, guess, wanted):
    assert view.sentence(experiment, filled(experiment, accuracies, diverged=diverged), guess) == wanted


def test_a_library_is_called_slower_only_by_the_common_comparison_rule():
    """The n-th line of these results takes n times the first one's 0.1 s."""
    first, second, *_ = BACKENDS.labels
    results = filled(BACKENDS, [0.95] * len(BACKENDS.items))
    assert view.sentence(BACKENDS, results, Guess(first)) == f"You said {first}, and its epochs were the fastest."
    text = view.sentence(BACKENDS, results, Guess(second))
    assert text == f"You said {second}; {first} was the fastest: yours took 2 times as long."
    noisy = filled(BACKENDS, [0.95] * len(BACKENDS.items))
    for line, seconds in zip(noisy.lines[:2], ((0.1, 0.1, 0.4, 0.1, 0.2), (0.1, 0.11, 0.5, 0.11, 0.3)), strict=True):
        for epoch, taken_s in zip(line.epochs, seconds, strict=True):
            object.__setattr__(epoch, "train_s", taken_s)
    assert np.median(noisy.lines[0].epoch_s) < np.median(noisy.lines[1].epoch_s)
    assert "do not separate the two: you may well be right." in view.sentence(BACKENDS, noisy, Guess(second))


@pytest.mark.parametrize("state", [State.STOPPED, State.FAILED])
def test_unfinished_runs_have_no_sentence(state):
    results = filled(RATES, (0.9, 0.965, 0.9))
    results.state = state
    assert view.sentence(RATES, results, Guess("0.1")) == ""
    assert view.sentence(RATES, Results(RATES.items, RATES.labels), Guess("0.1")) == ""
    assert view.sentence(RATES, filled(RATES, (0.9, 0.965, 0.9)), None) == ""


def test_the_histogram_is_counted_marked_and_escaped():
    question = GuessQuestion("depth", "best", ("a<b", "c"))
    shown = view.histogram(question, {"a<b": 1, "c": 3}, yours="c")
    assert "Which network will be the most accurate? <small>4 answers</small>" in shown
    assert "<span>a&lt;b</span>" in shown
    assert "c <small>(yours)</small>" in shown
    assert 'width:33%"></b></i><em>1</em>' in shown
    assert 'width:100%"></b></i><em>3</em>' in shown
