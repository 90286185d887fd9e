"""A worksheet on paper: for each experiment what to predict, what to write down, and what to ask afterwards."""

import html
from collections.abc import Sequence
from dataclasses import dataclass

LINES, MANY_LINES = 2, 5  # to write on, below a question; where the page has no table


@dataclass(frozen=True)
class Sheet:
    """A page of paper: an experiment's heading and question, its trainings, and what is written about them.

    `predict` is asked before the run, of the trainings in `choices`; `columns` are what is written down of each of
    them; `ask` is asked afterwards. Without choices there is room for an answer in words.
    """

    heading: str
    question: str
    address: str
    predict: str
    choices: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()


@dataclass(frozen=True)
class Questions:
    """What is asked about an experiment, before and afterwards, and what is written down of each training."""

    heading: str
    question: str
    predict: str
    columns: tuple[str, ...]
    ask: tuple[str, ...]


QUESTIONS = {
    "rate": Questions(
        "1 · How large a step?",
        "The learning rate is the length of a step against the gradient.",
        "Which learning rate has the highest accuracy after these epochs?",
        ("last loss", "accuracy, %", "what its curve does"),
        (
            "Was your prediction right? What did the curves of the smallest and the largest rate do?",
            "Double the epochs. Which rate gains most by it, and why?",
            "Find the smallest rate whose loss stops being a number. What else did you change to find it?",
        ),
    ),
    "size": Questions(
        "2 · How many images a step?",
        "A step pays its overhead once, however many images it takes.",
        "Which batch size has the quickest epoch? Which one is first at the target accuracy?",
        ("steps an epoch", "seconds an epoch", "accuracy, %", "seconds to the target"),
        (
            "Is the batch size with the quickest epoch also the first at the target? Why, or why not?",
            "How many times as many steps has the smallest size as the largest? How many times as long is its epoch?",
            "Raise the learning rate for the largest batch size. What happens to its accuracy?",
        ),
    ),
    "depth": Questions(
        "3 · How many layers?",
        "More and wider layers have more parameters, and more arithmetic in each step.",
        "Which of these networks has the highest accuracy? Which one is worth its seconds?",
        ("parameters", "accuracy, %", "seconds of training"),
        (
            "What does the second hidden layer gain, in points and in seconds?",
            "Try a network without a hidden layer (none). How far does it get, and what can it not learn?",
            "Two accuracies differ by 0.3 points. Would you call one network better? How could you find out?",
        ),
    ),
    "backend": Questions(
        "4 · Which library?",
        "The same training by every library that can run here: what does a step cost beside its arithmetic?",
        "Which is the quickest, and how many times as long does the slowest take?",
        ("seconds an epoch", "times the quickest", "accuracy, %"),
        (
            "Why are all accuracies nearly the same?",
            "Make the batch size larger. Which of the libraries gains most, and what does that tell of its overhead?",
            "Would a graphics card help this training? Which figure of this page says so?",
        ),
    ),
}
ANY = (
    "What did you find? Write down the figures that you would show to somebody who doubts it.",
    "What surprised you?",
)


def sheet(asked: Questions, address: str, choices: Sequence[str]) -> Sheet:
    """The page for an experiment whose trainings have these labels."""
    return Sheet(asked.heading, asked.question, address, asked.predict, tuple(choices), asked.columns, asked.ask)


def as_html(sheets: Sequence[Sheet]) -> str:
    """All pages of paper, one after another."""
    return "".join(_page(one) for one in sheets)


def _page(one: Sheet) -> str:
    boxes = "".join(f"<li>{html.escape(choice)}</li>" for choice in one.choices)
    ticks = f'<ul class="ticks">{boxes}</ul>' if boxes else ""
    n_lines = LINES if boxes else MANY_LINES
    why = _asked("Why do you think so?", n_lines) if boxes else _room(n_lines)
    return (
        '<section class="sheet"><p class="who"><span>Name</span><span>Date</span></p>'
        f"<h2>{html.escape(one.heading)}</h2>"
        f"<p>{html.escape(one.question)}</p><p>On the class site: <code>{html.escape(one.address)}</code></p>"
        f"<h3>Before you look</h3><p>{html.escape(one.predict)}</p>{ticks}{why}"
        f"{_table(one)}<h3>Afterwards</h3>{''.join(_asked(question, n_lines) for question in one.ask)}</section>"
    )


def _table(one: Sheet) -> str:
    """A row for each training, with empty cells to write into."""
    if not one.columns:
        return ""
    head = "".join(f'<th scope="col">{html.escape(column)}</th>' for column in ("training", *one.columns))
    cells = "<td></td>" * len(one.columns)
    rows = "".join(f'<tr><th scope="row">{html.escape(choice)}</th>{cells}</tr>' for choice in one.choices)
    return f"<h3>What happened</h3><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _asked(question: str, n_lines: int) -> str:
    return f"<p>{html.escape(question)}</p>{_room(n_lines)}"


def _room(lines: int) -> str:
    return f'<div class="room" aria-hidden="true">{"<i></i>" * lines}</div>'
