"""Graphics cards that were recorded elsewhere: what a page shows where this machine has none, with machine and date."""

from lib.backends.registry import BACKENDS, Runtime
from lib.experiments.recorded_machines import Machine, Seconds, gpu_runtimes, named, recorded_gpus
from lib.formatting import listed, seconds
from lib.hardware.nvidia_smi import nvidia_driver_answers

NONE_YET = (
    "No graphics card has been recorded yet: `python -m lib.cli.record FILE.json` on a machine with one, and its file"
    " in recorded/, put its figures here."
)


def epoch_note(batch_size: int) -> str:
    """Seconds of an epoch by each recorded card, in a sentence."""
    return _note(
        f"an epoch at batch size {batch_size:,}",
        [
            (
                machine,
                {runtime: one for runtime in gpu_runtimes(machine) if (one := machine.epoch(runtime, batch_size))},
            )
            for machine in recorded_gpus()
        ],
    )


def step_note() -> str:
    """Where a step on 32 images goes on the recorded cards."""
    if not recorded_gpus():
        return _none()
    said = []
    for machine in recorded_gpus():
        splits = {runtime: one for runtime in gpu_runtimes(machine) if (one := machine.split(runtime)) is not None}
        shares = [
            f"{BACKENDS[runtime.backend].label} {seconds(one.step_s)}, {one.share('arithmetic'):.0%} of it arithmetic"
            for runtime, one in splits.items()
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
                f"{named(machine)}: an epoch of each network takes {seconds(points[few].middle)} alone and"
                f" {seconds(points[many].middle)} with {many:,} in one program."
            )
    return " ".join(said)


def _note(what: str, found: list[tuple[Machine, dict[Runtime, Seconds]]]) -> str:
    if not recorded_gpus():
        return _none()
    said = []
    for machine, by_runtime in found:
        times = [
            f"{BACKENDS[runtime.backend].label} {seconds(one.middle)} ({seconds(one.low)} – {seconds(one.high)})"
            for runtime, one in by_runtime.items()
        ]
        said += [f"{named(machine)}: {what} takes {listed(times)}."] if times else []
    return " ".join(said)


def _none() -> str:
    return "" if nvidia_driver_answers() else NONE_YET
