"""What is asked of an experiment: generated from its lines, and the same for as long as they are the same."""

from lib.sweeps.experiments.teacher import BEST, DIVERGES, FACTOR, Guess, guess_of, questions
from tests import made


def rates(*values, epochs=3):
    return made.learning_rate(values, epochs=epochs, batch_size=32, hidden="128")


def test_what_may_be_guessed_are_the_lines_that_compete():
    best, diverges = questions(rates(0.01, 0.1, 10.0))
    assert (best.asks, best.options) == (BEST, ("0.01", "0.1", "10"))
    assert (diverges.asks, diverges.options) == (DIVERGES, ("yes", "no"))
    beside = made.learning_rate((0.1, 1.0), epochs=1, batch_size=32, hidden="128", backend="numpy")
    assert questions(beside)[0].options == ("0.1", "1"), "not those that are trained for comparison"
    libraries = made.backends(batch_size=32, epochs=2, rate=0.1, hidden="128")
    assert [one.asks for one in questions(libraries)] == [BEST, FACTOR]
    assert questions(libraries)[0].options == libraries.labels
    sizes, alone = (made.batch_size(some, epochs=2, rate=0.1, hidden="128") for some in ((1, 32, 256), (32,)))
    assert [one.asks for one in questions(sizes)] == [BEST, FACTOR]
    assert [one.asks for one in questions(alone)] == [BEST], "nothing is slower than itself"


def test_other_candidates_are_other_questions_and_other_epochs_are_not():
    assert questions(rates(0.1, 1.0)) == questions(rates(0.1, 1.0, epochs=7))
    assert not set(questions(rates(0.1, 1.0))) & set(questions(rates(0.1, 10.0)))


def test_there_is_a_guess_where_somebody_named_a_winner():
    experiment = rates(0.1, 1.0)
    best, diverges = questions(experiment)
    assert guess_of({diverges: "no"}, experiment) is None
    assert guess_of({best: "1", diverges: "no"}, experiment) == Guess("1", diverges="no")
    assert guess_of({best: "1"}, rates(0.1, 10.0)) is None
