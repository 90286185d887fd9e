"""Kept measurements as a pandas frame: one row each, flat, units in the names."""

from collections.abc import Sequence

import pandas as pd

from lib.storage.records import Record

_LAST = ("warnings", "ended", "machine", "machine_line", "versions", "sources", "measured_at")


def records_frame(records: Sequence[Record]) -> pd.DataFrame:
    """What was measured (each subject's own columns), median and quartiles of a step in seconds, and what it was
    measured on."""
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
