import os
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from lib.model.hardware import process
from lib.model.hardware.process import stderr_redirected


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ZeroDivisionError("x"), "of an unexpected kind (ZeroDivisionError); save it again"),
        (KeyError("x"), "of an unexpected kind (KeyError); save it again"),
        (ValueError("it is empty; save it again"), "it is empty; save it again"),
    ],
)
def test_any_error_is_one_sentence_and_the_next_question_is_answered(error, says, monkeypatch):
    def read(fails):
        if fails:
            raise error
        return ["read"]

    monkeypatch.setattr(process.resource, "setrlimit", lambda *_: None)
    answers = []
    asked = SimpleNamespace(recv=Mock(side_effect=[(True,), (False,), EOFError]), send=answers.append)
    process.answer(asked, read)  # type: ignore[arg-type]
    said, found = answers
    assert says in said
    assert found == ["read"]


def test_only_output_within_the_block_is_captured(capfd):
    os.write(2, b"before ")
    with stderr_redirected() as written:
        os.write(2, b"greeting")
        written.seek(0)
        assert written.read() == b"greeting"
    os.write(2, b"after")
    assert capfd.readouterr().err == "before after"


def test_output_is_restored_after_an_error(capfd):
    with pytest.raises(ImportError), stderr_redirected():
        raise ImportError
    os.write(2, b"after")
    assert capfd.readouterr().err == "after"
