"""GPUs recorded on other machines or in browsers, shown with their dates where this machine has none."""

from lib.formatting import seconds
from lib.model.hardware.nvidia import nvidia_driver_answers
from lib.sweeps.experiments.recorded_machines import Machine, Seconds, gpu_runtimes, named, recorded_gpus
from lib.sweeps.experiments.your_gpu import gpus_elsewhere

NONE_YET = (
    "No GPU has been recorded yet. To show its figures here, run `python -m lib.cli.record FILE.json` on a machine with"
    " one and put the file into recorded/."
)


def interval(one: Seconds) -> str:
    if one.n <= 1:
        return seconds(one.middle) + (", once" if one.n else "")
    wide = "; wide: the host was busy, or its clock changed" if one.is_wide else ""
    return f"{seconds(one.middle)} ({seconds(one.low)} – {seconds(one.high)}{wide})"


def marked(machine: Machine) -> str:
    if machine.is_published:
        return "published"
    first, last = machine.dates
    return ("live, " if machine.live else "recorded ") + first + (f" to {last}" if last != first else "")


def epoch_note(batch_size: int) -> str:
    """Seconds per epoch on each recorded GPU, or how to record one, in sentences; empty if this machine has a GPU."""
    said = [
        f"{named(machine)}: an epoch at batch size {batch_size:,} takes {'; '.join(times)}."
        for machine in gpus_elsewhere()
        if (
            times := [
                f"{interval(one)} by {runtime.short_label}"
                for runtime in gpu_runtimes(machine)
                if (one := machine.epoch(runtime, batch_size)) is not None
            ]
        )
    ]
    return NONE_YET if not (said or recorded_gpus() or nvidia_driver_answers()) else " ".join(said)
