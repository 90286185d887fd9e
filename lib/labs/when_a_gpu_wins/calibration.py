"""How well this machine is known: which ways to train are calibrated, how far that is, and how good."""

from collections.abc import Callable, Collection, Sequence
from functools import partial

from lib.formatting import listed, sentence
from lib.sweeps.experiments.calibration import CalibrationProgress, TrainingWay, live_in, measure, unasked, ways
from lib.ui import layout
from lib.ui.lab import Asked, Drawing, Page, Shown
from lib.ui.panel import Controls, several
from lib.ui.stage import Work


class CalibratedWays(Controls):
    """The ways to train that are calibrated."""

    AGAIN = "Calibrate again", "Measure what is missing, and once more what something disturbed"
    ways = several(
        "Calibrate",
        lambda: tuple(one.address for one in unasked()),
        lambda: {one.label: one.address for one in ways()},
    )


def calibration(page: Page) -> tuple[Callable[[CalibratedWays], Asked], Callable[[Shown], Drawing]]:
    """Measure what the chosen ways lack, and say how well each is known; it is news to all sections of the page."""
    live = live_in(page.store.path)
    live.followed_by(page.news)

    def chosen_by(at: CalibratedWays) -> tuple[TrainingWay, ...]:
        return tuple(one.trained for one in live.view().items if one.trained.address in at.ways)

    def ask(at: CalibratedWays) -> Asked:
        chosen = chosen_by(at)

        def make(again: bool) -> tuple[tuple, Work]:
            done, total = progress(live.view().items, chosen)
            return (done == total and not again,), partial(measure, chosen, live, again=again)

        return Asked(chosen, make)

    def draw(shown: Shown) -> Drawing:
        now, standings, (saved,) = shown.now, live.view().items, shown.known
        chosen = chosen_by(shown.at)
        done, total = progress(standings, chosen)
        words = f"{done} of {total} steps measured" + (f"; {now.note}" if now.note else "")
        line = layout.state_line(layout.saved_or(now.state, saved), done, total, words, now.problem)
        said = calibrated_sentence(standings)
        failed = [sentence(one.why_not) for one in standings if one.trained in chosen and one.why_not]
        result = line + layout.problems(failed) + layout.sentence(said)
        return Drawing(result, " ".join([said, *failed]))

    return ask, draw


def calibrated_sentence(standings: Sequence[CalibrationProgress]) -> str:
    """For which ways to train this machine is calibrated, and how far off a step is that the others predict."""
    known = [f"{one.trained.label} ({one.calibration.median_error:.0%})" for one in standings if one.calibration]
    if not known:
        return "This machine is not calibrated yet: nothing is predicted for it."
    return f"This machine is calibrated for {listed(known)}: so far off is a step that is left out, at the median."


def progress(standings: Sequence[CalibrationProgress], chosen: Collection[TrainingWay]) -> tuple[int, int]:
    """How many steps are measured of those that the calibrations of the chosen ways take, and how many these are."""
    counted = [one for one in standings if one.trained in chosen]
    return sum(one.n_measured for one in counted), sum(len(one.wanted) for one in counted)
