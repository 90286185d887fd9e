"""Each machine's GPU beside its processor: of machines that readers have kept from their browsers, and recorded ones.

Those of readers, as many as a class has pupils, are watched in the store, which all sessions and processes of a
server share: what one keeps, all others see.
"""

import time
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lib.model.backends.registry import ALL_DEVICES
from lib.model.hardware.nvidia import nvidia_driver_answers
from lib.model.hardware.webgpu import SOFTWARE
from lib.model.spec import Network
from lib.once import once
from lib.sweeps.experiments.background import View, Watched
from lib.sweeps.experiments.recorded_machines import Best, Machine, best_runtime, browsers_in, recorded_gpus, told_apart
from lib.sweeps.storage.records import Record
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.notes import State
from lib.timing.comparison import Comparison, Verdict, between

LOOK_S = 1.0
GPUS = tuple(device for device in ALL_DEVICES if device not in ("cpu", SOFTWARE))
# What anybody sends is kept for ever, and drawn for everybody.
MOST_MACHINES, MOST_OF_A_VIEWER, MOST_RECORDS = 120, 3, 300  # of a store; of those one viewer's; of a machine
MOST_ELSEWHERE = 3  # of a class's GPUs beside what is measured here; all of them are side by side on their own page


class KeptMachines(Watched):
    """The machines of a store that came from browsers. Whoever waits for news looks, once in `LOOK_S` for all of them.

    Args:
        store: Read again only when somebody has written it.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(State.MEASURING)
        self._store, self._stamp, self._looked = store, None, -LOOK_S
        self._machines: tuple[Machine, ...] = ()
        self._n_records: Counter[str] = Counter()  # by machine
        self._of_viewer: dict[Hashable, frozenset[str]] = {}  # the machines that each has kept

    def keep(self, viewer: Hashable, records: Sequence[Record]) -> str:
        """Store a viewer's records, all of one machine, and return the store's trouble.

        Raises:
            ValueError: So much is kept already that these are not; the text says what.
        """
        machine = records[0].machine
        with self.changed:
            self._look()
            mine = self._of_viewer.get(viewer, frozenset()) | {machine}
            for most, of, n in (
                (MOST_MACHINES, "machines of all readers", len({*self._n_records, machine})),
                (MOST_OF_A_VIEWER, "machines of yours", len(mine)),
                (MOST_RECORDS, "results of your machine", self._n_records[machine] + len(records)),
            ):
                if n > most:
                    raise ValueError(f"expected at most {most} {of}, got one more, which is not kept; those before are")
            for record in records:
                self._store.add(record)
            self._of_viewer[viewer] = mine
            self._n_records[machine] += len(records)
            return self._store.trouble

    def view(self) -> View[Machine]:
        """The machines that were there at the last look, in the order of time."""
        with self.changed:
            self._look()
            return View(list(self._machines), self.state, "", "", self.version)

    def wait_for_news(self, version: int, timeout_s: float | None = None) -> bool:
        """Look; where nothing is new, wait once and look again. Whether the version is another one."""
        with self.changed:
            self._look()
        super().wait_for_news(version, timeout_s)
        with self.changed:
            self._look()
            return self.version != version

    def recognise(self, machine: str) -> None:
        """Have all who watch see them anew where the machine of this id is among them: its reader has come back."""
        with self.changed:
            self._look()
            if any(one.records[0].machine == machine for one in self._machines):
                self._tell()

    def _look(self) -> None:
        """Read what was written since the last look. To be called with `changed` held."""
        now = time.monotonic()
        if now - self._looked < LOOK_S:
            return
        self._looked, stamp = now, self._store.stamp()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        machines = told_apart(browsers_in(self._store))
        self._n_records = Counter({one.records[0].machine: len(one.records) for one in machines})
        if machines != self._machines:
            self._machines = machines
            self._tell()


@once
def kept_in(path: Path | None) -> KeptMachines:
    """What was kept in the store of this path: one for all who watch it."""
    return KeptMachines(Store(path))


def gpus_elsewhere() -> tuple[Machine, ...]:
    """The recorded machines with a GPU, and the last `MOST_ELSEWHERE` that readers kept with one.

    None where this machine has a GPU of its own, which is measured instead.
    """
    if nvidia_driver_answers():
        return ()
    kept = [one for one in kept_in(Store().path).view().items if one.has_gpu]
    return (*recorded_gpus(), *kept[-MOST_ELSEWHERE:])


@dataclass(frozen=True)
class Contest:
    """A machine's GPU beside its processor, each by its quickest way, for one network and batch size."""

    machine: Machine
    gpu: Best | None  # or of the software that its browser offers in the place of one
    cpu: Best | None

    @property
    def is_software(self) -> bool:
        """Whether what stands for the GPU computes on the processor."""
        return self.gpu is not None and self.gpu.runtime.device == SOFTWARE

    @cached_property
    def comparison(self) -> Comparison | None:
        """The GPU's time over the processor's; None where one of both has none."""
        if self.gpu is None or self.cpu is None:
            return None
        return between(self.gpu.seconds.estimate, self.cpu.seconds.estimate)

    @property
    def verdict(self) -> Verdict | None:
        """Of the GPU: faster, slower, … than the processor; None where there is no GPU, or no comparison."""
        return self.comparison.verdict if self.comparison is not None and not self.is_software else None


def contests(machines: Sequence[Machine], network: Network, batch_size: int) -> list[Contest]:
    """A contest for each machine with figures of this network and batch size.

    Where the GPU is the most ahead comes first; then software adapters, and last who has only one of both.
    """

    def of(machine: Machine, device: str) -> Best | None:
        return best_runtime(machine, lambda one, runtime: one.epoch(runtime, batch_size, network), device)

    def of_gpu(machine: Machine) -> Best | None:
        known = [found for device in GPUS if (found := of(machine, device)) is not None]
        return min(known, key=lambda best: best.seconds.middle, default=None)

    found = [Contest(one, of_gpu(one) or of(one, SOFTWARE), of(one, "cpu")) for one in machines]

    def place(one: Contest) -> tuple[bool, bool, float]:
        return one.comparison is None, one.is_software, one.comparison.ratio if one.comparison else 0.0

    return sorted((one for one in found if one.gpu is not None or one.cpu is not None), key=place)


def elsewhere(machines: Sequence[Machine], network: Network, batch_size: int) -> dict[tuple[Network, int], int]:
    """How many machines have kept another network or batch size: by these, the most frequent first."""
    counted: dict[tuple[Network, int], int] = {}
    for machine in machines:
        for cell in machine.cells - {(network, batch_size)}:
            counted[cell] = counted.get(cell, 0) + 1
    return dict(sorted(counted.items(), key=lambda item: -item[1]))
