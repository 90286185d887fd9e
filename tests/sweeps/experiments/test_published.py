"""Published figures: read from the file with keys that the rest of the program uses, and never changed."""

import json

import pytest

from lib.sweeps.experiments import published


def test_every_figure_of_the_file_is_read():
    """Runtimes become pairs and batch sizes numbers; no figure is lost on the way."""
    rows = json.loads(published.FILE.read_text())["machines"]
    assert [machine.name for machine in published.MACHINES] == [row["name"] for row in rows]
    for row, machine in zip(rows, published.MACHINES, strict=True):
        again = {
            "/".join(runtime): {str(size): s for size, s in by_size.items()}
            for runtime, by_size in machine.epoch_s.items()
        }
        assert again == row["epoch_s"]
        assert {"/".join(runtime): s for runtime, s in machine.experiment_s.items()} == row["experiment_s"]
        assert (machine.price_per_h, machine.price_date) == (row.get("price_per_h"), row.get("price_date", ""))


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


def test_an_experiment_has_both_machines_of_the_second_article():
    """On the card first, then on the 22 cores."""
    assert published.EXPERIMENT_S["batch-size"] == (423.0, 164.0)


def test_every_source_has_an_address():
    assert {*(machine.source for machine in published.MACHINES), published.OPERATIONS_ARTICLE} == set(
        published.ADDRESSES
    )


def test_the_operations_of_a_step_add_up_to_its_total():
    """Within the article's rounding to whole microseconds."""
    *parts, total = published.OPERATION_S.values()
    for device in (0, 1):
        assert sum(part[device] for part in parts) == pytest.approx(total[device], abs=3e-6)
