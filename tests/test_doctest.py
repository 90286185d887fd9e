import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", ["backends.base", "charts", "experiments", "sweep"])
def test_examples_in_docstrings_hold(name):
    module = importlib.import_module(f"lib.{name}")
    failed, tried = doctest.testmod(module)
    assert tried > 0
    assert failed == 0
