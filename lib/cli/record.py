"""Measure this machine and write the results to a file for others: `python -m lib.cli.record FILE.json`.

Runs without a page and without a network, with whatever libraries are installed; NumPy suffices. The file is rewritten
after each measurement, so it can be stopped at any time (Ctrl-C), and the same command resumes where it stopped. The
exit status is 0 where all that was asked for is there, 3 where something is left, 1 where the file or an option cannot
be used. `--plan` asks the questions of a file in its order, and `--merge` joins two recordings of one machine.
"""

import argparse
import hashlib
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from lib.cli import INCOMPLETE, UNUSABLE, Unusable, check_minutes, say, time_limit
from lib.formatting import sentence
from lib.model.backends.fingerprint import source_digest
from lib.model.backends.registry import Runtime, all_runtimes, unavailable, usable_runtimes, versions
from lib.model.hardware.machine import details, machine_id, this_machine
from lib.model.hardware.nvidia import cards
from lib.model.hardware.optional import FileLock, Timeout
from lib.sweeps.experiments.full_recording import QUESTIONS, Battery, Entry, NoPlan, not_here, read_plan
from lib.sweeps.storage.export import Export, NoExport, export_to, import_from, read_export
from lib.sweeps.storage.records import Kind, this_command
from lib.sweeps.storage.store import Store, StoreUnusable
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.queue import Cancel

MINUTES = 9.5
# A limit, not a measurement: twice as many runtimes, some of which compile for minutes.
MINUTES_WITH_A_CARD = 60.0


def resume(path: Path, store: Store) -> Export | None:
    """Load an earlier recording into the store, also what another version of this code has recorded.

    Args:
        path: The recording; it need not exist.
        store: Where its records and curves go; failures are left out, so that they are tried again.

    Raises:
        NoExport: The file is not an export.
        Unusable: It comes from another machine.
    """
    if not path.exists():
        return None
    export = read_export(path)
    other = next((record for record in export.records if record.machine != machine_id()), None)
    if other is not None:
        raise Unusable(
            f"expected a new file or one of this machine, but {path.name} was recorded on another"
            f" ({other.machine_line}); choose another name"
        )
    for record in export.records:
        if record.kind != Kind.FAILURE:
            store.add(record)
    store.merge({"curves": export.tables["curves"]})
    return export


def took_s(about: Mapping[str, object]) -> float:
    """Seconds of all runs of a recording together, by its notes."""
    said = about.get("took_s")
    return float(said) if isinstance(said, int | float) else 0.0


def asked_of(about: Mapping[str, object]) -> set[str]:
    """What of a plan a recording answers, by its notes."""
    said = about.get("asked")
    return set(map(str, said)) if isinstance(said, list) else set()


def merge(path: Path, other: Path) -> None:
    """Join another recording of the same machine with this one; rows of every version of this code are kept.

    Raises:
        NoExport: One of them cannot be read.
        Unusable: It cannot be written, or they are of two machines.
    """
    if path.resolve() == other.resolve():
        raise Unusable(f"expected two recordings, got {path.name} twice; name the other one")
    with alone(path), tempfile.TemporaryDirectory() as folder:
        exports = [read_export(path), read_export(other)]
        lines = {record.machine: record.machine_line for export in exports for record in export.records}
        if len(lines) > 1:
            of = [
                (file.name, export.records[0].machine_line) for file, export in zip((path, other), exports, strict=True)
            ]
            raise Unusable(
                f"expected two recordings of one machine, but {of[0][0]} is of {of[0][1]}, and {of[1][0]} of another,"
                f" {of[1][1]}; leave each a file of its own: pages read all that lie in recorded/"
            )
        store = Store(Path(folder) / "merged.sqlite")
        import_from(path, store)
        rows, new = import_from(other, store)
        # The notes of the later one hold.
        early, late = sorted((one.about for one in exports), key=lambda about: str(about.get("recorded_at", "")))
        together = {"took_s": took_s(early) + took_s(late), "asked": sorted(asked_of(early) | asked_of(late))}
        whole = write(path, store, {**early, **late, **together})
        by_version = Counter(record.sources for record in store.records())
    print(f"rows of {other.name}: {rows:,}, of them new: {new:,}; rows of {path.name}: {whole:,}")
    for sources, count in by_version.most_common():
        which = "this version" if sources == source_digest() else "another version"
        print(f"measurements by {which} of the code ({sources}): {count:,}")


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold a lock on the file: two programs that write it would each lose what the other measured.

    Raises:
        Unusable: Another program holds it.
    """
    name = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
    lock = FileLock(Path(tempfile.gettempdir()) / f"less-overhead-record-{name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise Unusable(
            f"expected to be the only one that writes {path.name}, but another record runs; wait for its end, or choose"
            " another name"
        ) from error
    try:
        yield
    finally:
        lock.release()


def write(path: Path, store: Store, noted: Mapping[str, object] | None = None) -> int:
    """Write all rows of the store to the file, without the losses of each step, and return how many there are.

    Args:
        path: Replaced whole, or left as it was.
        store: What is written.
        noted: Notes on the whole recording; None for none.

    Raises:
        StoreUnusable: The store cannot be read.
        Unusable: The file cannot be written.
    """
    try:
        return export_to(path, store, noted, with_losses=False)  # megabytes, which nobody compares
    except StoreUnusable:
        raise
    except OSError as error:
        raise Unusable(
            f"expected to write {path.name}, but it cannot be written ({error.strerror}); free the disk, or choose"
            " another folder. What it had is still there"
        ) from error


def about(battery: Battery, took_s: float) -> dict[str, object]:
    """Notes on a whole recording: command, machine, libraries, and what is missing.

    Args:
        battery: All that could be measured, asked for or not.
        took_s: Seconds of all its runs together.
    """
    left = battery.left()
    return {
        "command": this_command(),
        "recorded_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "took_s": round(took_s, 1),
        "complete": not left,
        "left": left,
        "asked": sorted(battery.asked),
        "left_out": battery.left_out(),
        "machine": this_machine().line,
        "details": details(),
        "data": battery.facts.source if battery.facts else "",
        "libraries": {runtime.label: versions(runtime) for runtime in battery.runtimes},
        "not_here": [
            [runtime.label, gap.reason, gap.remedy]
            for runtime in all_runtimes()
            if (gap := unavailable(runtime)) is not None
        ],
    }


def record(
    path: Path,
    minutes: float = MINUTES,
    runtimes: Sequence[Runtime] = (),
    titles: Collection[str] = (),
    plan: Sequence[Entry] = (),
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Measure this machine for at most this many minutes, and return whether what was asked for is complete.

    Reports to standard output. Ctrl-C or SIGTERM ends it; what was measured by then is in the file.

    Args:
        path: The recording; one that exists is resumed.
        minutes: Time limit.
        runtimes: What is measured; empty: all that run here.
        titles: Questions of `Battery` that are asked; empty: all.
        plan: What is asked, in this order; empty: all questions.
        clock: Seconds, by which a plan stops in time.

    Raises:
        NoPlan: The plan is for a card, and none can be used.
        NoExport: The file cannot be read.
        Unusable: It cannot be used or written, or another program writes it.
    """
    cancel, began = Cancel(), clock()
    usable = usable_runtimes()
    elsewhere = not_here(plan, runtimes or usable)
    plan = [entry for entry in plan if entry not in elsewhere]
    with alone(path), tempfile.TemporaryDirectory() as folder:
        store, engine = Store(Path(folder) / "record.sqlite"), Engine()
        earlier = resume(path, store)
        before = earlier.about if earlier else {}
        battery = Battery(
            engine,
            store,
            cancel,
            runtimes or usable,
            titles=titles,
            plan=plan,
            asked=asked_of(before),
            until_s=began + minutes * 60,
            clock=clock,
            traces=path.with_name(f"{path.stem}_traces"),
        )

        def so_far() -> dict[str, object]:
            spent = {"took_s": took_s(before) + clock() - began, "asked": sorted(battery.asked), "complete": False}
            return {**before, **spent}

        write(path, store, so_far())  # before ten minutes are spent: what cannot be written is said at once
        say(
            0,
            minutes * 60,
            f"{this_machine().line}; {len(usable)} runtimes; {len(store.records())} figures are there already",
        )
        try:
            with time_limit(minutes, cancel) as stopped:
                for note in battery.run():
                    if note.text:
                        say(clock() - began, minutes * 60, note.text)
                    else:
                        write(path, store, so_far())
        finally:
            engine.close()
        whole = replace(battery, runtimes=usable, titles=(), plan=())
        noted = about(whole, took_s(before) + clock() - began)
        rows, missing = write(path, store, noted), battery.left()
    for reason in (*elsewhere.values(), *battery.left_out()):
        say(clock() - began, minutes * 60, f"left out: {reason}")
    ended = "complete" if not missing else "the time is up" if cancel.is_set() else "over"
    why = battery.lost or ("stopped" if stopped.is_set() else ended)
    left = ", ".join(missing)
    rest = f"; left: {left}. The same command goes on from here" if left else ""
    failures = sum(one.kind == Kind.FAILURE for one in read_export(path).records)
    failed = f", {failures} could not be measured" if failures else ""
    say(clock() - began, minutes * 60, f"{why}: {rows:,} rows in {path.name}{failed}{rest}")
    return not missing


def main(arguments: Sequence[str] | None = None) -> int:
    """Record, and return the exit status: 0 where all that was asked for is there, or `INCOMPLETE`, or `UNUSABLE`.

    Args:
        arguments: Words of the command line; None for those of this program.

    Raises:
        SystemExit: The words cannot be read (status 2), or ask for help (status 0).
    """
    parser = argparse.ArgumentParser(prog="python -m lib.cli.record", description=__doc__)
    parser.add_argument("file", type=Path, help="what to write, or to go on with")
    limits = f"default {MINUTES:g}, with a graphics card {MINUTES_WITH_A_CARD:g}"
    parser.add_argument("--minutes", type=float, help=f"at most so long ({limits})")
    parser.add_argument("--card", type=int, help="which graphics card, where there are several: 0 (default), 1, …")
    parser.add_argument(
        "--runtimes", nargs="+", default=[], metavar="NAME", help="these alone: jax-epoch/gpu numpy/cpu …"
    )
    parser.add_argument("--questions", nargs="+", default=[], metavar="NAME", help='these alone: ceilings "race" …')
    parser.add_argument(
        "--plan", type=Path, metavar="FILE.toml", help="what to ask, in which order; see recorded/plan.toml"
    )
    parser.add_argument(
        "--merge", type=Path, metavar="OTHER.json", help="measure nothing: join that recording with FILE"
    )
    options = parser.parse_args(arguments)
    try:
        if options.minutes is not None:
            check_minutes(options.minutes, 600, 9)
        if not options.file.parent.is_dir():
            raise Unusable(f"expected a folder that exists, got {options.file.parent}; make it first")
        if options.file.is_dir():
            raise Unusable(f"expected a file, got the folder {options.file}; add a name, such as machine.json")
        if options.merge is not None:
            merge(options.file, options.merge)
            return 0
        plan = read_plan(options.plan, QUESTIONS) if options.plan is not None else []
        choose_card(options.card)
        minutes = options.minutes or (MINUTES_WITH_A_CARD if cards() else MINUTES)
        usable = {runtime.address: runtime for runtime in usable_runtimes()}
        runtimes = [usable[name] for name in _known("runtimes", options.runtimes, usable)]
        titles = _known("questions", options.questions, QUESTIONS)
        return 0 if record(options.file, minutes, runtimes, titles, plan) else INCOMPLETE
    except (Unusable, NoExport, NoPlan, StoreUnusable) as error:
        print(sentence(error), file=sys.stderr)
        return UNUSABLE


def choose_card(number: int | None) -> None:
    """Hide all GPUs but one from this program: each is recorded by itself, under its own name.

    Args:
        number: Counted from 0; None for the first, and for a machine without one.

    Raises:
        Unusable: There is no such GPU.
    """
    found = cards()
    if number is None and len(found) < 2:
        return
    if not 0 <= (number or 0) < len(found):
        raise Unusable(
            f"card: expected 0 to {len(found) - 1}, got {number}"
            if found
            else f"card: expected a machine with a driver that answers, got {number} on one without; leave --card out"
        )
    if number is None:
        print(
            f"{len(found)} graphics cards; the first is recorded, another by --card 1 and a file of its own", flush=True
        )
    os.environ["CUDA_VISIBLE_DEVICES"] = found[number or 0].uuid


def _known(what: str, named: Sequence[str], known: Collection[str]) -> Sequence[str]:
    """The names; raises Unusable if one is unknown."""
    if unknown := [name for name in named if name not in known]:
        raise Unusable(f"{what}: expected some of {', '.join(known)}, got {unknown[0]}; choose among these")
    return named


if __name__ == "__main__":
    sys.exit(main())
