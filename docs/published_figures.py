"""Writes docs/published_figures.csv: what the articles print beside what is predicted for it; a test says when it is
stale."""

import csv
import io

from lib import ROOT
from lib.sweeps.experiments.known_devices import NOT_PREDICTED, published_rows

FILE = ROOT / "docs" / "published_figures.csv"


def written() -> str:
    """The table by today's predictions, the worst errors first; then what is not predicted, and why."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["figure", "published_s", "predicted_s", "low_s", "high_s", "error_percent", "remark"])
    for row in published_rows():
        remark = "the model was set from it" if row.used else "" if row.covered else "outside of its range"
        seconds = (f"{s:.3g}" for s in (row.published_s, row.predicted_s, row.low_s, row.high_s))
        table.writerow([row.name, *seconds, f"{100 * row.error:+.0f}", remark])
    for figure, why in NOT_PREDICTED.items():
        table.writerow([figure, *[""] * 5, f"not predicted: {why}"])
    return text.getvalue()


if __name__ == "__main__":
    FILE.write_text(written())
