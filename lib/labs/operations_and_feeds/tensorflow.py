"""Where TensorFlow runs the operations of a step, and what creating a model of Keras takes in a fresh process."""

import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from lib.formatting import justified, listed, seconds
from lib.labs.operations_and_feeds.operations import state_line
from lib.model.backends.environment_variables import complete_environment
from lib.model.backends.registry import Runtime, environment_of, unavailable, versions
from lib.model.spec import Network
from lib.sweeps.experiments.anatomy_of_a_step import stored
from lib.sweeps.experiments.input_pipeline import NETWORK
from lib.sweeps.storage.current import current
from lib.sweeps.storage.records import Kind, Record
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.cancel import Cancel
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import TrainingFailed
from lib.sweeps.workers.notes import Note, note_of
from lib.sweeps.workers.process import Process
from lib.sweeps.workers.queue import Request
from lib.timing.comparison import Verdict, compared
from lib.timing.measurement import Ended, Measurement
from lib.timing.profiling.first_use import FRESH, REPEATED
from lib.timing.profiling.request import Examination
from lib.ui import layout
from lib.ui.lab import Asked, Drawing, Shown
from lib.ui.panel import Controls
from lib.ui.stage import Work
from lib.ui.views.markup import on_demand, table

TENSORFLOW = "keras-tensorflow"
MODELS = (NETWORK, Network((4_096, 4_096)))  # small and large
STAGES = {
    "import": "import Keras and TensorFlow",
    "device": "first operation on the device",
    "build": "build a model",
    "clone": "clone it",
    "step": "first step, traced and compiled",
}
AGAIN = {"build": "build again", "clone": "clone again", "step": "step again"}
assert set(FRESH) == set(STAGES), "each has a row"

Created = dict[Network, dict[str, Measurement]]  # by the names of `lib.timing.profiling.first_use`


class Placement(Controls):
    """Of the section on operations; it has no controls."""

    AGAIN = "Measure again", "Measure it anew"


class Models(Placement):
    """Of the section on models; it has no controls."""


def placement_device() -> str:
    return "cpu" if unavailable(Runtime(TENSORFLOW, "gpu")) is not None else "gpu"


def by_tensorflow(store: Store, question: str) -> tuple[Callable[[Controls], Asked], Callable[[Shown], Drawing]]:
    """What a section asks of TensorFlow, and how that is drawn; without TensorFlow it says why not."""
    found, measure, draw, n_wanted = QUESTIONS[question]
    device, why = placement_device(), unavailable(Runtime(TENSORFLOW))

    def ask(_at: Controls) -> Asked:
        def make(again: bool) -> tuple[tuple, Work]:
            known = {} if again else found(store.records(Kind.PIPELINE), device)
            work = partial(measure, known, device) if why is None else lambda *_: iter(())
            return (len(known) >= n_wanted,), work

        return Asked(device, make)

    def drawn(shown: Shown) -> Drawing:
        if why is not None:
            return Drawing(layout.quiet(f"Not measured: {why.reason}; {why.remedy}."), "")
        known = found(store.records(Kind.PIPELINE), device)
        sentence, content = draw(known)
        line = state_line(shown, min(len(known), n_wanted), n_wanted, "")
        return Drawing(line + layout.sentence(sentence) + content, sentence)

    return ask, drawn


def repeated_cell(measured: Measurement) -> str:
    low, high = measured.quartiles_s
    title = f"quartiles {seconds(low)} to {seconds(high)}, {len(measured.block_s)} rounds"
    return f'<span title="{title}">{justified(measured.median_s, low, high)}</span>'


# Where operations run.


def _placement_subject(device: str) -> dict[str, str | int | float]:
    return {**Runtime(TENSORFLOW, device).subject, "hidden": NETWORK.label, "placement": 1}


def placement(records: Sequence[Record], device: str) -> dict[str, int]:
    """Numbers by name, as of `measure_placement`, of the latest valid run; empty while there is none."""
    found = current(records, Kind.PIPELINE, _placement_subject(device), Runtime(TENSORFLOW, device))
    return {str(record.subject["name"]): round(record.block_s[0]) for record in found}


def measure_placement(
    known: Mapping[str, int], device: str, engine: Engine, store: Store, cancel: Cancel, request: Request
) -> Iterator[Record | Note]:
    """Run a step, unless its placement is known, and store where its operations were.

    Raises:
        WorkerDied: The worker ended; the text says what to do.
        TrainingFailed: TensorFlow could not be asked; the text says why.
    """
    if not known:
        runtime = Runtime(TENSORFLOW, device)
        messages = engine.examine(runtime, Examination("placement", NETWORK), cancel, request)
        doing = "where TensorFlow places the operations of a step"
        yield from stored(messages, store, Kind.PIPELINE, _placement_subject(device), versions(runtime), doing)


def _operations(placed: Mapping[str, int]) -> list[tuple[str, str, list[str], int]]:
    """Each operation, the device that it ran on, the devices that it has kernels for, and how often a step has it."""
    parts = [(name.split("/"), count) for name, count in sorted(placed.items()) if name.count("/") == 2]
    return [(operation, device, kernels.split(), count) for (operation, device, kernels), count in parts]


def placement_table(placed: Mapping[str, int]) -> str:
    rows = [
        [f"<code>{html.escape(operation)}</code>", str(count), device, html.escape(_why(device, kernels, placed))]
        for operation, device, kernels, count in _operations(placed)
    ]
    return table(["operation", "in a step", "ran on", "why there"], rows, "anatomy-parts") if rows else ""


def _why(device: str, kernels: Sequence[str], placed: Mapping[str, int]) -> str:
    reasons = {
        "it has a kernel for a GPU, and TensorFlow prefers that": device == "GPU",
        "this TensorFlow is the build for processors: it sees no GPU": not placed.get("cuda", 0),
        "it has no kernel for a GPU": "GPU" not in kernels,
        "it has a kernel for a GPU, but TensorFlow sees none": not placed.get("gpus", 0),
        "it has a kernel for a GPU, but works on what lies in the host's memory": True,
    }
    return next(why for why, holds in reasons.items() if holds)


def placement_sentence(placed: Mapping[str, int]) -> str:
    ran = _operations(placed)
    counts = {device: sum(n for _, where, _, n in ran if where == device) for _, device, _, _ in ran}
    if not counts:
        return ""
    gpus = placed.get("gpus", 0)
    parts = [f"{count} on the {device}" for device, count in sorted(counts.items())]
    where = f"all on the {next(iter(counts))}" if len(counts) == 1 else listed(parts)
    seen = f"it sees {gpus} GPU{'s' if gpus > 1 else ''}" if gpus else "it sees no GPU"
    return (
        f"TensorFlow ran the {sum(counts.values())} operations of a step, its fetching of a batch included, {where};"
        f" {seen}. What a data set maps its images with runs on the processor, wherever the step runs."
    )


def draw_placement(placed: Mapping[str, int]) -> tuple[str, str]:
    rows = on_demand("Operation by operation", placement_table(placed)) if placed else ""
    return placement_sentence(placed), rows


# Building and cloning a model.


def _model_subject(network: Network, device: str) -> dict[str, str | int | float]:
    return {**Runtime(TENSORFLOW, device).subject, "hidden": network.label, "model": 1}


def models(records: Sequence[Record], device: str) -> Created:
    """What was measured of building each network's model in the latest fresh process, by name; only whole ones."""
    runtime = Runtime(TENSORFLOW, device)
    latest = {
        network: {
            str(record.subject["name"]): record.measurement
            for record in current(records, Kind.PIPELINE, _model_subject(network, device), runtime)
        }
        for network in MODELS
    }
    return {network: found for network, found in latest.items() if {*FRESH, *REPEATED} <= found.keys()}


def measure_models(
    known: Created, device: str, engine: Engine, store: Store, cancel: Cancel, request: Request
) -> Iterator[Record | Note]:
    """Build and clone each network's model that is not known, in a fresh process, and store what that took.

    Yields:
        The records of a process when it is done, and notes.

    Raises:
        TrainingFailed: A process ended early.
    """
    runtime = Runtime(TENSORFLOW, device)
    for network in (one for one in MODELS if one not in known):
        with engine.turn(request) as turn:
            for message in engine.take(turn, cancel):
                if (note := note_of(message)) is not None:
                    yield note
            if cancel.is_set():
                return
            yield Note(f"{network.label} in a fresh process: TensorFlow is imported, a model built and cloned")
            with engine.watch(runtime) as watch:
                rows = _from_fresh_process(network, runtime, cancel)
        for name, block_s in rows.items():
            measured = watch.marked(Measurement(block_s, 1, Ended.CAP))
            subject = {**_model_subject(network, device), "name": name, "work": 1.0}
            record = Record.of(Kind.PIPELINE, subject, measured, versions(runtime))
            store.add(record)
            yield record


def _from_fresh_process(network: Network, runtime: Runtime, cancel: Cancel) -> dict[str, tuple[float, ...]]:
    found: dict[str, tuple[float, ...]] = {}
    arguments = (network.label, runtime.device)
    process = Process(
        "lib.timing.profiling.first_use", arguments, complete_environment(runtime), environment_of(runtime).python
    )
    try:
        while not cancel.is_set():
            if process.connection.poll(0.05):
                if (row := process.connection.recv()) is None:
                    return found
                found |= dict([row])
    except (EOFError, OSError) as error:
        raise TrainingFailed(
            f"The fresh process for {network.label} ended after {', '.join(found) or 'nothing'}, often for want of"
            " memory; the terminal has its message. Free memory, and measure again."
        ) from error
    finally:
        process.kill()
    return {}


def models_table(found: Created) -> str:
    head = ["in a fresh process"]
    head += [f"{html.escape(network.label)}: {when}" for network in found for when in ("first time", "again")]
    rows = [
        [label]
        + [
            cell
            for measured in found.values()
            for cell in (
                seconds(measured[stage].median_s),
                repeated_cell(measured[AGAIN[stage]]) if stage in AGAIN else "–",
            )
        ]
        for stage, label in STAGES.items()
    ]
    return table(head, rows) if found else ""


def models_sentence(found: Created) -> str:
    said = []
    for network, measured in found.items():
        before, first, again = (
            seconds(sum(measured[name].median_s for name in names))
            for names in (("import", "device"), ("build", "clone", "step"), REPEATED)
        )
        said.append(
            f"784→{network.label}→10 ({network.n_parameters:,} parameters): {before} pass before a model can be built;"
            f" building, cloning and the first step take {first}, and {again} the second time."
        )
    if len(found) == 2:
        small, large = found.values()
        ratio = compared(large["clone again"].step_s, small["clone again"].step_s, paired=False)
        if ratio.verdict in (Verdict.SLOWER, Verdict.FASTER):
            said.append(
                f"Cloning the large one takes {ratio.ratio:.2g} times as long ({ratio.low:.2g} to {ratio.high:.2g})."
            )
    return " ".join(said)


def draw_models(found: Created) -> tuple[str, str]:
    return models_sentence(found), models_table(found)


# What is known by records on a device; what measures the rest there; the known in a sentence and as HTML; and how many
# things are known at least when all are.
QUESTIONS: dict[str, tuple[Callable, Callable, Callable, int]] = {
    "placement": (placement, measure_placement, draw_placement, 1),
    "models": (models, measure_models, draw_models, len(MODELS)),
}
