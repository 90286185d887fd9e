"""Published figures: read from the file with keys that the rest of the program uses, and never changed."""

import pytest

from lib.sweeps.experiments import published


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (("keras-tensorflow", "gpu", 32), 6.26),
        (("numpy", "cpu", 4096), 1.03),
        (("numpy", "cpu", 7), None),
        (("torch", "cpu", 32), None),
    ],
)
def test_an_epoch_is_the_articles_or_there_is_none(asked, expected):
    assert published.epoch_s(*asked) == expected


def test_the_operations_of_a_step_add_up_to_its_total():
    *parts, total = published.OPERATION_S.values()
    for device in (0, 1):
        assert sum(part[device] for part in parts) == pytest.approx(total[device], abs=3e-6)
