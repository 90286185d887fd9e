import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from lib.sweeps.experiments import teacher
from lib.sweeps.experiments.results import Watched
from lib.sweeps.experiments.teacher import BEST, DIVERGES, FACTOR, Classroom, Guesses, GuessQuestion, questions
from tests import made


def test_a_change_notifies_every_page_once():
    room, pages = Classroom(), [Watched() for _ in range(3)]
    for page in pages:
        room.followed_by(page)
    room.say("predicts", True)
    assert [page.version for page in pages] == [1, 1, 1]
    room.left_by(pages[0])
    room.say("pauses", True)
    assert [page.version for page in pages] == [1, 2, 2]
    assert (room.predicts, room.pauses, room.shows) == (True, True, False)


QUESTIONS = tuple(
    GuessQuestion("learning-rate", "best", ("0.1", "1", "10"), about) for about in (("a",), ("b",), ("c",))
)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from("pqrs"), st.sampled_from(QUESTIONS), st.sampled_from(QUESTIONS[0].options)),
        st.sampled_from("pqrs"),  # a viewer who leaves
    ),
    max_size=60,
)


@given(ACTIONS)
def test_each_viewer_counts_once_per_question_even_after_leaving(actions):
    pool, present, left = Guesses(), {}, Counter()
    for action in actions:
        if isinstance(action, str):
            pool.forget(action)
            left.update((asked, option) for (who, asked), option in present.items() if who == action)
            present = {(who, asked): option for (who, asked), option in present.items() if who != action}
        else:
            viewer, question, option = action
            pool.guess(viewer, question, option)
            present[viewer, question] = option
    expected = left + Counter((question, option) for (_, question), option in present.items())
    wanted = {one: {option: expected[one, option] for option in one.options} for one in QUESTIONS}
    assert pool.tally() == {one: counts for one, counts in wanted.items() if any(counts.values())}


def test_forty_concurrent_guesses_are_all_counted():
    pool, ready, versions = Guesses(), threading.Barrier(41), []

    def guess(number: int) -> None:
        ready.wait(60)
        for option in ("0.1", "1", "10") * 5 + ("1",):
            pool.guess(f"viewer {number}", QUESTIONS[number % 2], option)
        if number % 4 == 0:
            pool.forget(f"viewer {number}")

    def watch() -> None:
        ready.wait(60)
        while not versions or versions[-1] < 40 * 16:
            assert pool.wait_for_news(versions[-1] if versions else 0, 60)
            version, tally = pool.version, pool.tally()
            assert sum(sum(counts.values()) for counts in tally.values()) <= 40, "nobody counts twice"
            versions.append(version)

    with ThreadPoolExecutor(41) as threads:
        for done in [threads.submit(watch), *(threads.submit(guess, number) for number in range(40))]:
            done.result(120)
    tally = pool.tally()
    assert tally == {question: {"0.1": 0, "1": 20, "10": 0} for question in QUESTIONS[:2]}
    assert versions == sorted(set(versions))


def rates(*values, epochs=3):
    return made.learning_rate(values, epochs=epochs, batch_size=32, hidden="128")


def test_the_options_of_a_question_are_the_competing_lines():
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


def test_a_guess_needs_a_named_winner():
    experiment = rates(0.1, 1.0)
    best, diverges = questions(experiment)
    assert teacher.guess_of({diverges: "no"}, experiment) is None
    assert teacher.guess_of({best: "1", diverges: "no"}, experiment) == teacher.Guess("1", diverges="no")
    assert teacher.guess_of({best: "1"}, rates(0.1, 10.0)) is None
