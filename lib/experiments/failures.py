"""What could not be measured is marked by a record in its place, and a card that disappears ends nothing else."""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from lib.backends.registry import Runtime, versions
from lib.storage.records import Kind, Record
from lib.storage.store import Store
from lib.timing.measurement import Ended
from lib.workers.messages import CardLost, TrainingFailed, WorkerDied

GIVE_UP_AFTER = 2  # failures of a library on a device, one after another

T = TypeVar("T")
Subject = Mapping[str, str | int | float]


def failure(task: str, runtime: Runtime, subject: Subject, sentence: str) -> Record:
    """A record in place of a figure that could not be measured; it has no blocks, and the sentence as its warning.

    Args:
        task: What was to be measured, in words.
        runtime: What was to measure it.
        subject: Of the record that should have been.
        sentence: What happened instead.
    """
    named = {"task": task, **runtime.subject, **subject}
    return Record(Kind.FAILURE, named, (), 1, Ended.CAP.name, (sentence,), versions(runtime))


def words(failed: Record) -> str:
    """Which runtime failed and why, in a sentence, from a record of `failure`."""
    runtime = Runtime(*(str(failed.says(name)) for name in ("backend", "device", "precision")))
    return f"{runtime.label}: {'; '.join(failed.warnings)}"


class Marked:
    """Measures rows one after another. Those that fail on a graphics card are marked, and the others go on.

    A runtime whose card no longer answers, or that fails `GIVE_UP_AFTER` times in a row, is not asked again: its other
    rows are marked with the same sentence. On a CPU an error ends it all, as it concerns the program itself.

    Args:
        store: Where the marks go.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._in_a_row: dict[Runtime, int] = {}
        self._given_up: dict[Runtime, str] = {}
        self._rows: set[tuple] = set()

    def row(
        self, task: str, runtime: Runtime, subject: Subject, measure: Callable[[], Iterator[T]]
    ) -> Iterator[T | Record]:
        """What `measure` yields; if it fails, a record of kind `FAILURE` at last, once for each subject.

        Args:
            task: What is measured, in words.
            runtime: What measures it.
            subject: Of the record that it makes.
            measure: Called, unless the runtime was given up.

        Raises:
            WorkerDied, TrainingFailed: On a CPU.
        """
        if (why := self._given_up.get(runtime)) is None:
            try:
                yield from measure()
                self._in_a_row[runtime] = 0
                return
            except (WorkerDied, TrainingFailed) as error:
                if runtime.device != "gpu":
                    raise
                why = str(error)
                self._in_a_row[runtime] = self._in_a_row.get(runtime, 0) + 1
                if isinstance(error, CardLost) or self._in_a_row[runtime] >= GIVE_UP_AFTER:
                    self._given_up[runtime] = why
        if (row := (runtime, *sorted(subject.items()))) not in self._rows:
            self._rows.add(row)
            self._store.add(marked := failure(task, runtime, subject, why))
            yield marked
