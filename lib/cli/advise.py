"""Which device and which way to train takes how long: `python -m lib.cli.advise --hidden 512,256 --batch 64`.

All seconds are predicted. Devices that are known by their data sheets always answer; this machine does where it was
calibrated, which `--calibrate` does now. From a script, `lib.prediction.advise.advise` says the same.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from lib.backends.registry import DEVICES, usable_runtimes
from lib.experiments import calibration
from lib.experiments.calibration import Trained, Trial, all_ways, not_predicted
from lib.experiments.live_calibration import LiveCalibrations, measure
from lib.experiments.what_would_help import offered
from lib.formatting import seconds, sentence
from lib.prediction.advise import Advice, Answer, advise
from lib.prediction.device import FILE, UnusableDevice, read_devices
from lib.prediction.question import Calibrated, Question
from lib.spec import Network
from lib.storage.records import Kind
from lib.storage.store import Store
from lib.sweeps.cost_model import StepTime
from lib.workers.cancel import Cancel
from lib.workers.engine import Engine
from lib.workers.queue import Request

HERE, FIGURES = "steps measured here", "data sheets and assumptions"
UNUSABLE, INTERRUPTED = 1, 130  # exit statuses; 2 is argparse's own


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer, and return the exit status: 1 where the question or a file cannot be used, 130 where it was interrupted.

    Args:
        arguments: Words of the command line; None for those of this program.

    Raises:
        SystemExit: The words cannot be read (status 2), or ask for help (status 0).
    """
    parser = argparse.ArgumentParser(prog="python -m lib.cli.advise", description=__doc__)
    parser.add_argument("--hidden", default="128", help="widths of the hidden layers, such as 512,256 (default 128)")
    parser.add_argument("--batch", type=int, default=32, help="images a step (default 32)")
    parser.add_argument("--epochs", type=int, default=1, help="of each network (default 1)")
    parser.add_argument("--networks", type=int, default=1, help="how many of them are trained (default 1)")
    parser.add_argument("--devices", type=Path, default=FILE, help="a file of devices (default recorded/devices.json)")
    parser.add_argument("--calibrate", action="store_true", help="measure this machine first: some minutes, once")
    parser.add_argument("--json", action="store_true", help="for a program instead of a person")
    options = parser.parse_args(arguments)
    store = Store()
    try:
        question = Question(Network.parse(options.hidden), options.batch, options.epochs, options.networks)
        devices = read_devices(options.devices)
        measured, failed = _calibrate(store) if options.calibrate else ({}, [])
        here, why_not = _here(store, measured)
    except (ValueError, UnusableDevice) as error:
        print(sentence(error), file=sys.stderr)
        return UNUSABLE
    except KeyboardInterrupt:
        kept = store.trouble or "What was measured is kept, and the same command goes on."
        print(f"Stopped. {kept}", file=sys.stderr)
        return INTERRUPTED
    advice = advise(question, here, devices)
    for why in dict.fromkeys(filter(None, [*failed, *why_not, store.trouble])):
        print(sentence(why), file=sys.stderr)
    try:
        print(as_json(advice) if options.json else as_text(advice), flush=True)
    except BrokenPipeError:  # whoever reads has read enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python writes when it ends
    return 0


def _calibrate(store: Store) -> tuple[dict[tuple[Trained, Trial], StepTime], list[str]]:
    """Measure the steps that are missing, with a line of progress on standard error where that is a terminal.

    Returns:
        All steps that are measured, also where the store cannot keep them; and why ways to train failed.
    """
    engine, live, ways, seen = Engine(), LiveCalibrations(store), _ways(), sys.stderr.isatty()
    try:
        for note in measure(ways, live, engine, store, Cancel(), Request()):
            if note.text and seen:
                print(f"\r{note.text}\x1b[K", end="", file=sys.stderr, flush=True)
    finally:
        if seen:
            print(file=sys.stderr)
        engine.close()
    standings = [live.of(one) for one in ways]
    measured = {(one.trained, trial): step_time for one in standings for trial, step_time in one.step_times.items()}
    failed = [(one.trained.label, one.why_not) for one in standings if one.why_not]
    return measured, [why if why.startswith(label) else f"{label}: {why}" for label, why in failed]


def _ways() -> list[Trained]:
    return all_ways([runtime for runtime in usable_runtimes() if runtime.device in DEVICES])


def _here(
    store: Store, measured: Mapping[tuple[Trained, Trial], StepTime]
) -> tuple[Mapping[str, Calibrated], list[str]]:
    """The ways to train that are calibrated here, by name, and why others are not."""
    step_times = {**calibration.stored(_ways(), store), **measured}
    if not step_times:
        return {}, ["this machine is not calibrated, so it does not answer: add --calibrate"]
    found, why_not = calibration.calibrations(step_times)
    return offered(list(found), found, store.records(Kind.ANATOMY)), [
        *why_not.values(),
        not_predicted(usable_runtimes()),
    ]


def as_text(advice: Advice) -> str:
    """A table, the quickest first, and the remedy."""
    cells = [("device", "trained by", "predicted", "90 % interval or range", "dollars", "predicted from")]
    cells += [_cells(answer) for answer in advice.answers if not answer.why_not]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    refused = [answer.why_not for answer in advice.answers if answer.why_not]
    warned = [
        f"{answer.way} on {answer.device}: {answer.prediction.warning}, so it may be further off than its interval says"
        for answer in advice.answers
        if answer.prediction.warning
    ]
    remedy = [f"what helps most: {advice.remedy}"] if advice.remedy else []
    return "\n".join([*lines, *(sentence(text) for text in (*refused, *warned, *remedy))])


def _cells(answer: Answer) -> tuple[str, ...]:
    found = answer.prediction
    dollars = f"{answer.dollars:.2g} ({answer.dated})" if answer.dollars is not None else "–"
    return (
        answer.device,
        answer.way,
        seconds(found.step_s),
        f"{seconds(found.low_s)} to {seconds(found.high_s)}",
        dollars,
        HERE if answer.here else FIGURES,
    )


def as_json(advice: Advice) -> str:
    """All answers with the parts of their seconds, and the remedy."""
    answers = [
        {
            "device": answer.device,
            "way": str(answer.way),
            "origin": HERE if answer.here else FIGURES,
            "seconds": _finite(answer.prediction.step_s),
            "low_s": _finite(answer.prediction.low_s),
            "high_s": _finite(answer.prediction.high_s),
            "parts_s": dict(answer.prediction.parts_s),
            "dollars": answer.dollars,
            "price_dated": answer.dated,
            "warning": answer.prediction.warning,
            "why_not": answer.why_not,
        }
        for answer in advice.answers
    ]
    return json.dumps({"answers": answers, "remedy": advice.remedy}, indent=1, ensure_ascii=False)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


if __name__ == "__main__":
    sys.exit(main())
