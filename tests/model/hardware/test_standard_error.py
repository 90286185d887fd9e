"""What native code prints while a library is loaded is kept, and what comes later is printed again."""

import os

import pytest

from lib.model.hardware.process import kept_away


def test_what_is_printed_meanwhile_is_kept_and_the_rest_is_not(capfd):
    os.write(2, b"before ")
    with kept_away() as written:
        os.write(2, b"greeting")
        written.seek(0)
        assert written.read() == b"greeting"
    os.write(2, b"after")
    assert capfd.readouterr().err == "before after"


def test_after_an_error_it_is_printed_again(capfd):
    with pytest.raises(ImportError), kept_away():
        raise ImportError
    os.write(2, b"after")
    assert capfd.readouterr().err == "after"
