"""Predict the training time by device and library: `python -m lib.cli.advise --hidden 512,256 --batch 64`.

The first line is a recommendation. All seconds are predicted. On an unknown machine, the program first measures a few
similar steps, for at most 20 s (`--no-measure` skips that); `--calibrate` measures every way to train, once for all
questions. Predictions for recorded GPUs and CPUs use their recorded epochs, those for others use data sheets and
published figures. From a script, `lib.sweeps.experiments.advice.advise_here` returns the same.
"""

import argparse
import json
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from lib.formatting import seconds, sentence
from lib.model.backends.registry import BACKENDS
from lib.model.spec import N_CLASSES, N_PIXELS, N_TRAIN, Network
from lib.sweeps.experiments.advice import advise_here, all_devices, not_known
from lib.sweeps.experiments.calibration import LiveCalibrations, measure, near, ways
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Note
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.prediction.predict import Question
from lib.timing.prediction.remedies import CARDS, PROCESSORS, Advice, Answer, first_rows

HERE, RECORDED = "steps measured here", "epochs recorded on it"
SHEETS = "their data sheets"
JUDGED, FIGURES = "published figures and data sheets", "data sheets and assumptions"
NOT_KNOWN = "unknown: Apple, integrated and consumer GPUs; `notebooks/your_gpu.py` measures yours in a minute"
MEASURED_S = 20.0  # limit without `--calibrate`
UNUSABLE, INTERRUPTED = 1, 130  # exit statuses; 2 is argparse's own


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lib.cli.advise", description=__doc__)
    parser.add_argument("--hidden", default="128", help="widths of the hidden layers, such as 512,256 (default 128)")
    parser.add_argument("--batch", type=int, default=32, help="examples per step (default 32)")
    parser.add_argument("--inputs", type=int, default=N_PIXELS, help=f"inputs per example (default {N_PIXELS})")
    parser.add_argument("--classes", type=int, default=N_CLASSES, help=f"to distinguish (default {N_CLASSES})")
    parser.add_argument("--rows", type=int, default=N_TRAIN, help=f"examples per epoch (default {N_TRAIN})")
    parser.add_argument("--epochs", type=int, default=1, help="per network (default 1)")
    parser.add_argument("--networks", type=int, default=1, help="how many to train (default 1)")
    parser.add_argument(
        "--by",
        default="",
        choices=list(BACKENDS),
        metavar="BACKEND",
        help="what trains it today, such as keras-tensorflow: says what would help that program",
    )
    parser.add_argument("--price", type=float, help="dollars per hour of this machine, to give its cost here")
    parser.add_argument("--calibrate", action="store_true", help="measure this machine first: a few minutes, once")
    parser.add_argument("--no-measure", action="store_true", help="do not measure this machine if it is unknown")
    parser.add_argument("--all", action="store_true", help="all answers and all remarks")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    options = parser.parse_args(arguments)
    store = Store()
    try:
        network = replace(Network.parse(options.hidden), n_inputs=options.inputs, n_classes=options.classes)
        question = Question(network, options.batch, options.epochs, options.networks, options.price, options.rows)
        devices, live = all_devices(), LiveCalibrations(store)
        if options.calibrate:
            _show(lambda engine: measure(ways(), live, engine, store, Cancel(), Request()))
        elif not options.no_measure:
            _measure(question, live, store, options.by)
        advice = advise_here(question, devices, store, live, options.by)
    except ValueError as error:
        print(sentence(error), file=sys.stderr)
        return UNUSABLE
    except KeyboardInterrupt:
        kept = store.trouble or "Finished measurements are kept; the same command continues."
        print(f"Stopped. {kept}", file=sys.stderr)
        return INTERRUPTED
    said = advice.silent if options.all or not any(one.here for one in advice.answers) else ()
    for why in filter(None, [*said, store.trouble]):
        print(sentence(why), file=sys.stderr)
    try:
        print(as_json(advice) if options.json else as_text(advice, options.all), flush=True)
    except BrokenPipeError:  # the reader, for example `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes stdout at exit
    return 0


def _measure(question: Question, live: LiveCalibrations, store: Store, by: str = "") -> None:
    """Measure a few steps like the question's, for at most `MEASURED_S`, with the libraries not yet measured here."""
    chosen = not_known(question, live, store, by)
    if not chosen:
        return
    print(
        f"This machine is unknown so far: measuring a few steps, for at most {MEASURED_S:g} s; --no-measure skips"
        " this.",
        file=sys.stderr,
        flush=True,
    )
    enough = Cancel()
    timer = threading.Timer(MEASURED_S, enough.set)
    timer.daemon = True
    timer.start()
    try:
        _show(lambda engine: measure(chosen, live, engine, store, enough, Request(), asked=near(question)))
    finally:
        timer.cancel()


def _show(measuring: Callable[[Engine], Iterator[Note]]) -> None:
    engine, seen = Engine(), sys.stderr.isatty()
    try:
        for note in measuring(engine):
            if note.text and seen:
                print(f"\r{note.text}\x1b[K", end="", file=sys.stderr, flush=True)
    finally:
        if seen:
            print(file=sys.stderr)
        engine.close()


def as_text(advice: Advice, everything: bool) -> str:
    """Format a recommendation and a table, fastest first.

    With `everything`, it has all answers, why some are missing or uncertain, and what another device would gain.
    """
    able = [one for one in advice.answers if not one.why_not]
    shown = able if everything else first_rows(able)
    cells = [("device", "trained by", "predicted", "90 % interval or range", "dollars", "predicted from")]
    cells += [_cells(answer) for answer in shown]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    lines = [sentence(advice.headline), "", *lines]
    changes = [f"in your program: {one}" for one in advice.changes]
    if not everything:
        more = len(able) - sum(one in able for one in shown)
        return "\n".join([*lines, *map(sentence, changes), f"{more} more with --all; {NOT_KNOWN}."])
    refused = [answer.why_not for answer in advice.answers if answer.why_not]
    unsure: dict[str, list[str]] = {}
    for answer in advice.answers:
        if answer.prediction.warning:
            unsure.setdefault(answer.prediction.warning, []).append(f"{answer.way} on {answer.device}")
    warned = [
        f"{'; '.join(which)}: {warning}, so it may be off by more than its interval says"
        for warning, which in unsure.items()
    ]
    return "\n".join([*lines, *map(sentence, (*refused, *warned, NOT_KNOWN, *changes))])


def _cells(answer: Answer) -> tuple[str, ...]:
    found = answer.prediction
    dollars = f"{answer.dollars:.2g} ({answer.dated})" if answer.dollars is not None else "–"
    return (
        answer.device,
        answer.way,
        seconds(found.step_s),
        f"{seconds(found.low_s)} to {seconds(found.high_s)}",
        dollars,
        _origin(answer),
    )


def _origin(answer: Answer) -> str:
    if answer.device.startswith((CARDS, PROCESSORS)):
        return SHEETS
    if answer.here or answer.recorded:
        return HERE if answer.here else RECORDED
    return JUDGED if answer.judged else FIGURES


def as_json(advice: Advice) -> str:
    answers = [
        {
            "device": answer.device,
            "way": str(answer.way),
            "origin": _origin(answer),
            "seconds": _finite(answer.prediction.step_s),
            "low_s": _finite(answer.prediction.low_s),
            "high_s": _finite(answer.prediction.high_s),
            "dollars": answer.dollars,
            "price_dated": answer.dated,
            "warning": answer.prediction.warning,
            "why_not": answer.why_not,
        }
        for answer in advice.answers
    ]
    found = {
        "headline": advice.headline,
        "answers": answers,
        "remedy": advice.remedy,
        "changes": advice.changes,
        "silent": advice.silent,
        "not_known": NOT_KNOWN,
    }
    return json.dumps(found, indent=1, ensure_ascii=False)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


if __name__ == "__main__":
    sys.exit(main())
