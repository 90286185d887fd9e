"""Records as pandas reads them."""

import pytest

from lib.sweeps.storage.frames import records_frame
from lib.sweeps.storage.records import Kind, Record
from lib.timing.measurement import Ended, Measurement


def test_a_row_a_record_flat_and_in_the_order_of_time():
    made = [
        Record.of(
            Kind.RACE,
            {"backend": "numpy", "batch_size": size},
            Measurement((3.0, 1.0, 2.0), 10, Ended.CAP, warnings=("loud",)),
        )
        for size in (32, 512)
    ]
    later, earlier = made[0], Record(**{**vars(made[1]), "measured_at": "2000-01-01T00:00:00"})
    frame = records_frame([later, earlier])
    assert list(frame["batch_size"]) == [512, 32]
    assert list(frame["step_median_s"]) == [0.2, 0.2]
    assert list(frame["step_q1_s"]) == pytest.approx([0.15, 0.15])
    assert list(frame["warnings"]) == ["loud", "loud"]
    assert {"machine", "versions", "measured_at", "blocks", "steps_per_block", "spread"} <= set(frame.columns)
    assert all(isinstance(value, (str, int, float)) for row in frame.to_dict("records") for value in row.values()), (
        "flat"
    )


def test_nothing_kept_is_an_empty_frame():
    assert len(records_frame([])) == 0
