"""Writes docs/published_figures.csv, which compares published figures with predictions; a test fails if it is stale."""

import csv
import io
from collections.abc import Mapping

from lib import ROOT
from lib.sweeps.experiments.advice import published_rows

# Published figures that a model of a training step cannot predict.
NOT_PREDICTED: Mapping[str, str] = {
    "five learning rates, 4 times faster in five processes": "it is about processes, not about a step",
    "five learning rates, 6 times faster by vmap": "it is the 28 s and the 5 s above, as a ratio",
    "2.7 s of CUDA's calls in an epoch, and each call's share": "they are parts of the 6.5 s above, and overlap",
    "half the time of large products is transfer, on an A100": "the article does not say how large they are",
    "about 210 μs a step on an L4": "an estimate, which the same article's 63 s contradict",
}

FILE = ROOT / "docs" / "published_figures.csv"


def written() -> str:
    """Return the table with current predictions, worst errors first, then the figures that are not predicted."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["figure", "published_s", "predicted_s", "low_s", "high_s", "error_percent", "remark"])
    for row in published_rows():
        found = row.predicted
        remark = "the model was set from it" if row.figure.used else "" if row.covered else "outside of its range"
        seconds = (f"{s:.3g}" for s in (row.figure.published_s, found.step_s, found.low_s, found.high_s))
        table.writerow([row.figure.name, *seconds, f"{100 * row.error:+.0f}", remark])
    for figure, why in NOT_PREDICTED.items():
        table.writerow([figure, *[""] * 5, f"not predicted: {why}"])
    return text.getvalue()


if __name__ == "__main__":
    FILE.write_text(written())
