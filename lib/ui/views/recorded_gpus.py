"""GPUs that were recorded on other machines, or kept from a browser: shown where this machine has none, with date."""

from collections.abc import Callable

from lib.formatting import seconds
from lib.model.hardware.nvidia import nvidia_driver_answers
from lib.sweeps.experiments.recorded_machines import Machine, Seconds, gpu_runtimes, named, recorded_gpus
from lib.sweeps.experiments.your_gpu import gpus_elsewhere
from lib.timing.profiling.request import Split

NONE_YET = (
    "No graphics card has been recorded yet: `python -m lib.cli.record FILE.json` on a machine with one, and its file"
    " in recorded/, put its figures here."
)


def interval(one: Seconds) -> str:
    """A time with its quartiles, and a warning where they are far apart; a published time has none."""
    if one.n <= 1:
        return seconds(one.middle) + (", once" if one.n else "")
    wide = "; wide: the host was busy, or its clock changed" if one.is_wide else ""
    return f"{seconds(one.middle)} ({seconds(one.low)} – {seconds(one.high)}{wide})"


def marked(machine: Machine) -> str:
    """Where a machine's figures come from: published, recorded or live, with the dates of measurement."""
    if machine.is_published:
        return "published"
    first, last = machine.dates
    return ("live, " if machine.live else "recorded ") + first + (f" to {last}" if last != first else "")


def epoch_note(batch_size: int) -> str:
    """Seconds of an epoch on each recorded GPU, in a sentence; empty where this machine has a GPU of its own."""

    def of(machine: Machine) -> str:
        times = [
            f"{interval(one)} by {runtime.short_label}"
            for runtime in gpu_runtimes(machine)
            if (one := machine.epoch(runtime, batch_size)) is not None
        ]
        return f"an epoch at batch size {batch_size:,} takes {'; '.join(times)}." if times else ""

    return _note(of)


def arithmetic_share(one: Split) -> str:
    """How much of a step is arithmetic, in words; the seconds that do not add up are no shares."""
    share = one.share("arithmetic")
    return "its parts do not add up" if share is None else f"{share:.0%} of it arithmetic"


def step_note() -> str:
    """How long a step on 32 images takes on each recorded GPU, and how much of it is arithmetic, in a sentence."""

    def of(machine: Machine) -> str:
        shares = [
            f"{seconds(one.step_s)} by {runtime.short_label} ({arithmetic_share(one)})"
            for runtime in gpu_runtimes(machine)
            if (one := machine.split(runtime)) is not None
        ]
        return f"a step on 32 images takes {'; '.join(shares)}." if shares else ""

    return _note(of)


def models_note() -> str:
    """Seconds of an epoch per network on each recorded GPU, alone and with the most others in one program."""

    def of(machine: Machine) -> str:
        found = machine.models("gpu").items()
        points = {count: one.middle for (strategy, count), one in found if strategy == "vmap" or count == 1}
        if len(points) < 2:
            return ""
        alone, together = seconds(points[min(points)]), seconds(points[max(points)])
        return f"an epoch of each network takes {alone} alone and {together} with {max(points):,} in one program."

    return _note(of)


def _note(of: Callable[[Machine], str]) -> str:
    """What there is to say of each GPU elsewhere; how to record a card where none is, nor one in this machine."""
    said = " ".join(f"{named(machine)}: {text}" for machine in gpus_elsewhere() if (text := of(machine)))
    return NONE_YET if not (said or recorded_gpus() or nvidia_driver_answers()) else said
