"""What a reader's process says of what it did not expect."""

import pytest

from lib.model.hardware import process as little_memory


class Questions:
    """A connection over which these come, and then no more."""

    def __init__(self, *questions):
        self.left, self.answers = list(questions), []

    def recv(self):
        if not self.left:
            raise EOFError
        return self.left.pop(0)

    def send(self, answer):
        self.answers.append(answer)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ZeroDivisionError("x"), "of a kind that nobody expected (ZeroDivisionError); save it again"),
        (KeyError("x"), "of a kind that nobody expected (KeyError); save it again"),
        (ValueError("it is empty; save it again"), "it is empty; save it again"),
    ],
)
def test_whatever_goes_wrong_is_a_sentence_and_the_next_question_is_answered(error, says, monkeypatch):
    def read(fails):
        if fails:
            raise error
        return ["read"]

    monkeypatch.setattr(little_memory.resource, "setrlimit", lambda *_: None)
    questions = Questions((True,), (False,))
    little_memory.answer(questions, read)  # type: ignore[arg-type]
    said, found = questions.answers
    assert says in said
    assert found == ["read"]
