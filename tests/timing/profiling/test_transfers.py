"""Transfers: a copy is a copy, and an alias is the same memory."""

import numpy as np
import pytest

from lib.timing.profiling.operations import LIBRARIES
from lib.timing.profiling.request import ALIASED, COPIED
from lib.timing.profiling.transfers import transfers
from tests.conftest import where_installed


@pytest.mark.parametrize("worker", ["numpy", "jax", *where_installed(["torch"])])
def test_a_copy_is_other_memory_and_an_alias_the_same(worker):
    """So large that no library has reasons of its own to copy or to share."""
    back, ways = LIBRARIES[worker]("cpu").back, transfers(worker, "cpu", 2**16)
    assert list(ways) == [COPIED, ALIASED]
    alias, again, copy = (np.asarray(back(ways[name]())) for name in (ALIASED, ALIASED, COPIED))
    assert np.shares_memory(alias, again)
    assert not np.shares_memory(alias, copy)
    assert (copy == alias).all()
    assert copy.nbytes == 2**16
