"""Traces of a step: profiled on this machine, shipped with the project, or read from a reader's file."""

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
from lib.timing.profiling.traces.form import Trace, parsed, written

SHIPPED = ROOT / "recorded" / "traces"
MAX_SAVED = 64  # profiles on this machine; the oldest are deleted
# Workers whose library has a profiler.
PROFILERS = ("jax", "torch", "keras-jax", "keras-tensorflow", "keras-torch")


def runtimes() -> list[Runtime]:
    return [runtime for runtime in usable_runtimes() if BACKENDS[runtime.backend].worker in PROFILERS]


def task_of(runtime: Runtime, network: Network, batch_size: int) -> AnatomyTask:
    return AnatomyTask(runtime, Examination("trace", network, batch_size))


def profile(
    task: AnatomyTask, engine: Engine, store: Store, cancel: Cancel, request: Request
) -> Iterator[Record | Trace | Note]:
    """Profile this task's training in its library's worker, and save the trace.

    Yields:
        Notes on progress, the records of seconds per step with and without the profiler, then the trace.

    Raises:
        TrainingFailed: There is no profile; the message says why.
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
        except TrainingFailed as why:
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
    """Return a task's saved trace if it matches this machine, code and library versions; else None."""
    found = task.found(records).get(PROFILED)
    if found is None:
        return None
    with suppress(OSError, ValueError, KeyError):
        trace = parsed(_file(task).read_bytes())
        if trace.about.get("measured_at") == found.measured_at:
            return trace
    return None


def _save(task: AnatomyTask, trace: Trace) -> None:
    with suppress(OSError):  # without a cache folder, nothing is saved
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
    """Return the trace in a file; None if cancelled. Raises `TrainingFailed`; it says what the file looks like."""
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
    assert found is None or isinstance(found, Trace), "the reader's module answers nothing else"
    return found


def read_files(
    files: Sequence[tuple[str, bytes | Path]], cancel: Cancel, request: Request | None = None, niceness: int = 0
) -> Iterator[Trace | str | Note]:
    """Read files as traces, each in a separate process; yield a sentence in place of a trace for a file without one.

    Args:
        files: Name, and content or path, of each.
        cancel: Ends the reading.
        request: The viewer's request; None: a new viewer.
        niceness: Of the processes, relative to this one.
    """
    with tempfile.TemporaryDirectory(prefix="trace-") as folder:
        for name, content in files:
            path = content if isinstance(content, Path) else Path(folder) / "dropped"
            if not isinstance(content, Path):
                path.write_bytes(content)
            try:
                trace = yield from _read(path, name, cancel, request, niceness, f"reading {name}")
            except TrainingFailed as why:
                yield f"{name}: {why}."
                continue
            if trace is None:
                return
            yield trace
