"""Stored measurements as a pandas frame: one row each, flat, with units in the column names."""

from collections.abc import Sequence

import pandas as pd

from lib.sweeps.storage.records import Record

_LAST = ("warnings", "ended", "machine", "machine_line", "versions", "sources", "measured_at")


def records_frame(records: Sequence[Record]) -> pd.DataFrame:
    """A row per measurement, the oldest first; without records, a frame without columns.

    Columns: each name in a subject; `kind`; `step_median_s` and the quartiles `step_q1_s` and `step_q3_s`; `spread`,
    the interquartile range over the median; `blocks`, `steps_per_block`, `warnings` as one text, and the record's
    `ended`, `machine`, `machine_line`, `versions`, `sources`, `measured_at`.
    """
    rows = []
    for record in records:
        measured = record.measurement
        low, high = measured.quartiles_s
        times = {"step_median_s": measured.median_s, "step_q1_s": low, "step_q3_s": high, "spread": measured.spread}
        about = {name: getattr(record, name) for name in _LAST} | {"warnings": "; ".join(record.warnings)}
        blocks = {"blocks": len(record.block_s), "steps_per_block": record.steps_per_block}
        rows.append({"kind": record.kind, **record.subject, **times, **blocks, **about})
    frame = pd.DataFrame(rows)
    return frame.sort_values("measured_at", ignore_index=True) if len(frame) else frame
