"""This machine's calibrations as a reader sees them: which ways to train can be predicted, how well, and why others
cannot. Measures nothing."""

import html
from collections.abc import Collection, Sequence

from lib.experiments.calibration import Trained
from lib.experiments.live_calibration import Standing
from lib.formatting import listed, sentence
from lib.views.markup import on_demand, table


def calibrated_sentence(standings: Sequence[Standing]) -> str:
    """For which ways to train this machine is calibrated, and how far a step is off that is predicted from the others.

    Args:
        standings: Of all ways.
    """
    known = [
        f"{one.trained.label} (a step that is left out is {one.calibration.median_error:.0%} off at the median)"
        for one in standings
        if one.calibration
    ]
    if not known:
        return "This machine is not calibrated yet: nothing is predicted for it."
    return f"This machine is calibrated for {listed(known)}."


def problems(standings: Sequence[Standing], chosen: Collection[Trained]) -> list[str]:
    """Why ways to train that were asked for have no calibration, a sentence each.

    Args:
        standings: Of all ways.
        chosen: That are calibrated, or were.
    """
    return [sentence(one.why_not) for one in standings if one.trained in chosen and one.why_not]


def progress(standings: Sequence[Standing], chosen: Collection[Trained]) -> tuple[int, int]:
    """How many steps are measured of those that the calibrations of the chosen ways take, and how many these are."""
    counted = [one for one in standings if one.trained in chosen]
    return sum(one.n_measured for one in counted), sum(len(one.wanted) for one in counted)


def calibrations_table(standings: Sequence[Standing]) -> str:
    """HTML: each way to train with its measured steps and how good its calibration is; closed until opened."""
    rows = [
        [
            html.escape(one.trained.label),
            f"{one.n_measured} of {len(one.wanted)}",
            f"{one.calibration.median_error:.1%}" if one.calibration else "–",
            html.escape(sentence(one.why_not)) if one.why_not else "",
        ]
        for one in standings
    ]
    head = ["trained by", "steps measured here", "left-out error, median", "why there is none"]
    return on_demand("Calibrations", table(head, rows)) if rows else ""
