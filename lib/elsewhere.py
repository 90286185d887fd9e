"""Graphics cards that were recorded elsewhere: what a page shows where this machine has none, with machine and date."""

from functools import cache

from lib.backends import BACKENDS, Way, nvidia_driver_answers
from lib.formatting import listed, seconds
from lib.recorded import Machine, Seconds, recorded_here

NONE_YET = "No graphics card has been recorded yet: `python -m lib.record FILE.json` on a machine with one, and its file in recorded/, put its figures here."


@cache
def recorded_gpus() -> tuple[Machine, ...]:
    """The recorded machines with a card; none where this machine has one of its own, which is then measured instead."""
    return () if nvidia_driver_answers() else tuple(one for one in recorded_here().machines if one.has_gpu)


def gpu_ways(machine: Machine) -> list[Way]:
    return [way for way in machine.ways if way.device == "gpu"]


def named(machine: Machine) -> str:
    """Machine and date, as its figures are labelled everywhere."""
    card = machine.name.split(" · ")[-1]
    return f"{card}, recorded {machine.dates[1]}"


def epoch_note(batch_size: int) -> str:
    """Seconds of an epoch by each recorded card, in a sentence."""
    return _note(
        f"an epoch at batch size {batch_size:,}",
        [(machine, {way: one for way in gpu_ways(machine) if (one := machine.epoch(way, batch_size))}) for machine in recorded_gpus()],
    )  # fmt: skip


def step_note() -> str:
    """Where a step on 32 images goes on the recorded cards."""
    if not recorded_gpus():
        return _none()
    said = []
    for machine in recorded_gpus():
        splits = {way: one for way in gpu_ways(machine) if (one := machine.split(way)) is not None}
        shares = [
            f"{BACKENDS[way.backend].label} {seconds(one.step_s)}, {one.share('arithmetic'):.0%} of it arithmetic"
            for way, one in splits.items()
        ]
        said += [f"{named(machine)}: a step on 32 images takes {listed(shares)}."] if shares else []
    return " ".join(said)


def models_note() -> str:
    """What a network costs on the recorded cards, alone and with the most others in one program."""
    if not recorded_gpus():
        return _none()
    said = []
    for machine in recorded_gpus():
        points = {
            count: one for (strategy, count), one in machine.models("gpu").items() if strategy == "vmap" or count == 1
        }
        if len(points) > 1:
            few, many = min(points), max(points)
            said.append(
                f"{named(machine)}: an epoch of each network takes {seconds(points[few].middle)} alone and {seconds(points[many].middle)} with {many:,} in one program."
            )
    return " ".join(said)


def _note(what: str, found: list[tuple[Machine, dict[Way, Seconds]]]) -> str:
    if not recorded_gpus():
        return _none()
    said = []
    for machine, by_way in found:
        times = [
            f"{BACKENDS[way.backend].label} {seconds(one.middle)} ({seconds(one.low)} – {seconds(one.high)})"
            for way, one in by_way.items()
        ]
        said += [f"{named(machine)}: {what} takes {listed(times)}."] if times else []
    return " ".join(said)


def _none() -> str:
    return "" if nvidia_driver_answers() else NONE_YET
