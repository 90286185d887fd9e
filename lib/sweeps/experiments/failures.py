"""What could not be measured is marked in its place, and a card that disappears ends nothing else."""

from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from typing import TypeVar

from lib.model.backends.registry import ALL_DEVICES, Runtime, versions
from lib.sweeps.storage.records import Kind, Record
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.messages import CardLost, TrainingFailed, WorkerDied
from lib.timing.measurement import Ended

GIVE_UP_AFTER = 2  # failures of a library on a device, one after another
_ALL_BUT_THE_CPU = tuple(device for device in ALL_DEVICES if device != "cpu")

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


class Attempts:
    """Measures rows one after another, and says why one failed; the others go on.

    A runtime whose card no longer answers, or that fails `GIVE_UP_AFTER` times in a row, is not asked again.

    Args:
        devices: On which a row may fail. On another one an error ends it all.
        together: What fails together: each runtime by itself, unless said otherwise.
    """

    def __init__(
        self, devices: Collection[str] = ALL_DEVICES, together: Callable[[Runtime], object] = lambda runtime: runtime
    ) -> None:
        self._devices, self._together = devices, together
        self._in_a_row: dict[object, int] = {}
        self._given_up: dict[object, str] = {}

    def given_up(self, runtime: Runtime) -> str:
        """Why a runtime is not asked again, in a sentence; empty where it is."""
        return self._given_up.get(self._together(runtime), "")

    def row(self, runtime: Runtime, measure: Callable[[], Iterator[T]]) -> Generator[T, None, str]:
        """What `measure` yields; the generator's value is why it failed, in a sentence, empty where it did not.

        Args:
            runtime: What measures the row.
            measure: Called, unless the runtime was given up.

        Raises:
            WorkerDied, TrainingFailed: On a device where no row may fail.
        """
        if why := self.given_up(runtime):
            return why
        try:
            yield from measure()
        except (WorkerDied, TrainingFailed) as error:
            if runtime.device not in self._devices:
                raise
            why, which = str(error), self._together(runtime)
            self._in_a_row[which] = self._in_a_row.get(which, 0) + 1
            if isinstance(error, CardLost):
                self._given_up[which] = why
            elif self._in_a_row[which] >= GIVE_UP_AFTER:
                self._given_up[which] = f"not tried any more after {GIVE_UP_AFTER} failures in a row: {why}"
        else:
            self._in_a_row[self._together(runtime)] = 0
        return why


class Marked:
    """`Attempts` whose failed rows are marked, also where their runtime was given up.

    Args:
        store: Where the marks go.
        devices: On which a row may fail. Usually all but a CPU: there an error concerns the program itself.
    """

    def __init__(self, store: Store, devices: Collection[str] = _ALL_BUT_THE_CPU) -> None:
        self._store = store
        self._attempts = Attempts(devices)
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
            WorkerDied, TrainingFailed: On a device where no row may fail.
        """
        why = yield from self._attempts.row(runtime, measure)
        if why and (row := (runtime, *sorted(subject.items()))) not in self._rows:
            self._rows.add(row)
            self._store.add(marked := failure(task, runtime, subject, why))
            yield marked
