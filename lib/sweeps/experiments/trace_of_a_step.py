"""Traces of a step: profiled on this machine, shipped with the project, or read from a file that somebody brings."""

import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from lib import ROOT
from lib.cache_folder import cache_dir, replaced
from lib.model.backends.registry import BACKENDS, Runtime, usable_runtimes, versions
from lib.model.hardware.machine import this_machine
from lib.model.spec import Network
from lib.sweeps.experiments.anatomy_of_a_step import AnatomyTask, measure_tasks
from lib.sweeps.storage.records import Record
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import Engine, read
from lib.sweeps.workers.messages import Note, TrainingFailed
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.profiling.request import PLAIN, PROFILED, Examination
from lib.timing.profiling.traces.form import Refused, Trace, parsed, written

SHIPPED = ROOT / "recorded" / "traces"
MAX_SAVED = 64  # profiles that are saved on this machine; the oldest goes first
# Workers whose library has a profiler.
PROFILERS = ("jax", "torch", "keras-jax", "keras-tensorflow", "keras-torch")


def runtimes() -> list[Runtime]:
    return [runtime for runtime in usable_runtimes() if BACKENDS[runtime.backend].worker in PROFILERS]


def task_of(runtime: Runtime, network: Network, batch_size: int) -> AnatomyTask:
    return AnatomyTask(runtime, Examination("trace", network, batch_size))


def profile(
    task: AnatomyTask, engine: Engine, store: Store, cancel: Cancel, request: Request
) -> Iterator[Record | Trace | Note]:
    """Profile a training of this task in its library's worker, and save the trace.

    Yields:
        The records of its seconds a step, with the profiler and without; then the trace; and notes on what happens.

    Raises:
        WorkerDied: A worker ended while it measured; the text says what to do.
        TrainingFailed: There is no profile; the text says why.
    """
    with tempfile.TemporaryDirectory(prefix="profile-") as folder:
        asked = replace(task, examination=replace(task.examination, folder=folder))
        records: list[Record] = []
        for item in measure_tasks([asked], engine, store, cancel, request):
            records += [item] if isinstance(item, Record) else []
            yield item
        if cancel.is_set():
            return
        files = sorted([*Path(folder).rglob("*.xplane.pb"), *Path(folder).glob("trace.json")])
        if not files:
            raise TrainingFailed("The profiler wrote no file; press “Profile now” again.")
        try:
            trace = yield from _read(files[-1], title_of(task), cancel, request, engine.niceness, "reading the profile")
        except Refused as why:
            raise TrainingFailed(f"The profile could not be read: {why}.") from None
        if trace is not None:
            trace = replace(trace, title=title_of(task), about=_about(task, task.found(records)))
            _save(task, trace)
            yield trace


def title_of(task: AnatomyTask) -> str:
    network, size = task.examination.network, task.examination.batch_size
    return f"{task.runtime.label}, batch size {size:,}, hidden layers {network.label}"


def _about(task: AnatomyTask, found: dict[str, Record]) -> dict[str, str | float]:
    profiled = found[PROFILED]
    return {
        "machine": this_machine().line,
        "versions": versions(task.runtime),
        "measured_at": profiled.measured_at,
        "device": task.runtime.device,
        "steps": profiled.steps_per_block,
        "profiled_step_s": profiled.measurement.median_s,
        "plain_step_s": found[PLAIN].measurement.median_s,
    }


def saved(task: AnatomyTask, records: Sequence[Record]) -> Trace | None:
    """The trace that was saved for a task, where it is still of this machine, code and versions; else None."""
    found = task.found(records).get(PROFILED)
    if found is None:
        return None
    with suppress(OSError, Refused):
        trace = parsed(_file(task).read_bytes())
        if trace.about.get("measured_at") == found.measured_at:
            return trace
    return None


def _save(task: AnatomyTask, trace: Trace) -> None:
    """Save a trace for the next time, and remove the oldest beyond `MAX_SAVED`; without a cache folder do nothing."""
    with suppress(OSError):
        path = _file(task)
        path.parent.mkdir(exist_ok=True)
        with replaced(path) as temporary:
            temporary.write_text(written(trace))
        for old in sorted(path.parent.glob("*.json"), key=lambda one: one.stat().st_mtime)[:-MAX_SAVED]:
            old.unlink(missing_ok=True)


def _file(task: AnatomyTask) -> Path:
    hidden = "-".join(map(str, task.examination.network.hidden)) or "none"
    name = f"{task.runtime.address}-{hidden}-{task.examination.batch_size}.json".replace("/", "-")
    return cache_dir() / "traces" / name


@cache
def shipped() -> tuple[Trace, ...]:
    return tuple(parsed(path.read_bytes()) for path in sorted(SHIPPED.glob("*.json")))


def _read(
    path: Path, title: str, cancel: Cancel, request: Request | None, niceness: int, doing: str
) -> Generator[Note, None, Trace | None]:
    """The trace in a file; None where it was cancelled.

    Raises:
        Refused: There is none; the text says what the file looks like, and what to do.
    """
    try:
        found = yield from read(
            "lib.timing.profiling.traces.reading",
            path,
            title,
            cancel=cancel,
            request=request,
            niceness=niceness,
            doing=doing,
            advice="record fewer steps",
        )
    except TrainingFailed as why:
        raise Refused(str(why)) from None
    assert found is None or isinstance(found, Trace), "the reader's module answers nothing else"
    return found


def read_files(
    files: Sequence[tuple[str, bytes | Path]], cancel: Cancel, request: Request | None = None, niceness: int = 0
) -> Iterator[Trace | str | Note]:
    """Read these files as traces, each in a process of its own; why there is none in one is a sentence.

    Args:
        files: Name, and content or path, of each.
        cancel: Ends the reading.
        request: For whom; None: a viewer of its own.
        niceness: Of the processes, above this one's.
    """
    with tempfile.TemporaryDirectory(prefix="trace-") as folder:
        for name, content in files:
            path = content if isinstance(content, Path) else Path(folder) / "dropped"
            if not isinstance(content, Path):
                path.write_bytes(content)
            try:
                trace = yield from _read(path, name, cancel, request, niceness, f"reading {name}")
            except Refused as why:
                yield f"{name}: {why}."
                continue
            if trace is None:
                return
            yield trace
