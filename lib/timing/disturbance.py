"""What disturbed a measurement: the machine's counters before and after show what other programs used."""

import multiprocessing
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from lib.model.hardware.nvidia import Gpu, gpus
from lib.model.hardware.optional import psutil
from lib.timing.measurement import Measurement

# Of the processor time that programs wanted. Stolen time lengthens a figure by about its share, and repetitions differ
# by a tenth anyway (`diagnosis.SPREAD`): less changes no answer, and a rented machine always loses some.
STEAL_SHARE = 0.1
# Of the watched time. A card slowed for a tenth of it loses less than a tenth, and a boosting card always touches its
# power limit for moments.
SLOWED_SHARE = 0.1
OTHERS_CORES = 0.25
SWAP_BYTES = 2**20
LOOK_S = 0.5  # processor time is counted in ticks of 10 ms, and a look takes several
_KINDS = ("other virtual machines took", "other programs kept", "MiB were swapped", "the graphics card was slowed by")


@dataclass(frozen=True)
class Disturbance:
    """What other processes did on the machine between two moments."""

    seconds: float
    steal_share: float  # of the processor time that programs wanted, taken by other virtual machines of the host
    others_cores: float  # cores that other programs kept busy, on average
    swapped_bytes: int
    slowed_s: Mapping[str, float] = field(default_factory=dict)  # how long a graphics card was slowed, by cause
    throttled_by: tuple[str, ...] = ()  # what slowed a card at the end, if it does not count seconds

    @property
    def flags(self) -> list[str]:
        """A sentence for each disturbance that makes a figure untrustworthy."""
        slowed = {cause: s for cause, s in self.slowed_s.items() if s > SLOWED_SHARE * self.seconds}
        remedy = "let it cool, or name its clock with the figure"
        possible = (
            (
                self.steal_share > STEAL_SHARE,
                f"other virtual machines took {self.steal_share:.0%} of the processor: measure again, or on a machine"
                " of your own",
            ),
            (
                self.others_cores > OTHERS_CORES,
                f"other programs kept {self.others_cores:.1f} cores busy: close them, and measure again",
            ),
            (
                self.swapped_bytes > SWAP_BYTES,
                f"{self.swapped_bytes / 2**20:.0f} MiB were swapped: free memory, or measure something smaller",
            ),
            (
                bool(slowed),
                "the graphics card was slowed by "
                + " and ".join(f"{cause} for {s:.2g} of {self.seconds:.2g} s" for cause, s in slowed.items())
                + f": {remedy}",
            ),
            (
                bool(self.throttled_by),
                f"the graphics card was slowed by {' and '.join(self.throttled_by)} when it was asked at the end (this"
                f" one does not count for how long): {remedy}",
            ),
        )
        return [flag for applies, flag in possible if applies]


def disturbances(warnings: Sequence[str]) -> list[str]:
    """The warnings that `Disturbance.flags` wrote, the last of each kind."""
    return list({kind: warning for warning in warnings for kind in _KINDS if kind in warning}.values())


@dataclass(frozen=True)
class _Moment:
    """The machine's counters at one moment, in seconds of processor time."""

    at_s: float
    busy_s: float  # of all programs, without stolen time and waiting
    steal_s: float
    own_s: float
    swapped_bytes: int
    gpus: tuple[Gpu, ...] = ()


class Watch:
    """`with Watch() as watch: ...`, then `watch.disturbance`.

    This process, the processes `pids`, and the children of all count as measured, as does the server whose kernel this
    process is. `gpu` adds the graphics cards: their counters of slowed seconds are read before and after, because an
    idle card is never slowed. Everything timed is watched: see `Engine.watch` and `marked`.
    """

    def __init__(self, *pids: int, gpu: bool = False) -> None:
        self._pids, self._gpu = pids, gpu
        self.disturbance: Disturbance | None = None

    def __enter__(self) -> "Watch":
        self._before, self.disturbance = self._look(), None
        return self

    def __exit__(self, *_: object) -> None:
        self.disturbance = self.so_far()

    def marked(self, measured: Measurement) -> Measurement:
        """The measurement, with all disturbances so far among its warnings."""
        flags = (self.disturbance or self.so_far()).flags
        return replace(measured, warnings=tuple(dict.fromkeys((*measured.warnings, *flags))))

    def so_far(self) -> Disturbance:
        before, after = self._before, self._look()
        seconds, steal_s = after.at_s - before.at_s, after.steal_s - before.steal_s
        wanted_s = after.busy_s - before.busy_s + steal_s
        others_s = max(0.0, (after.busy_s - before.busy_s) - max(0.0, after.own_s - before.own_s))
        return Disturbance(
            seconds,
            steal_s / wanted_s if wanted_s > 0 else 0.0,
            others_s / seconds if seconds > 0 else 0.0,
            after.swapped_bytes - before.swapped_bytes,
            _slowed_s(before.gpus, after.gpus),
            tuple(dict.fromkeys(cause for gpu in after.gpus if gpu.slowed_s is None for cause in gpu.throttled_by)),
        )

    def _look(self) -> _Moment:
        cards = tuple(gpus()) if self._gpu else ()
        if psutil is None:  # a bare machine: nothing is known of others
            return _Moment(time.perf_counter(), 0.0, 0.0, 0.0, 0, cards)
        family = self._family()  # before any clock is read: looking for children takes time
        times = psutil.cpu_times()
        own_s = _spent_s(family)
        steal_s = getattr(times, "steal", 0.0)
        # Guest time is part of user time, and waiting for a disk keeps no core busy.
        idle_s = times.idle + getattr(times, "iowait", 0.0)
        total_s = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        swap = psutil.swap_memory()
        return _Moment(time.perf_counter(), total_s - idle_s - steal_s, steal_s, own_s, swap.sin + swap.sout, cards)

    def _family(self) -> "list[psutil.Process]":
        """The measured processes and their children, each once: most of `pids` are children too."""
        server = multiprocessing.parent_process()
        pids = (os.getpid(), *self._pids, *([server.pid] if server is not None and server.pid else []))
        family = []
        for pid in pids:
            with suppress(psutil.NoSuchProcess):
                family += [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        return list(dict.fromkeys(family))


class Turns:
    """What disturbed work that is done in turns, with other work in between.

    `flags` looks at a turn every `LOOK_S` at most, and never at a shorter turn. `watch` is of the processes that do the
    work, and not begun yet.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._earlier: list[str] = []  # of earlier turns
        self._now: list[str] = []
        self._looked_at: float | None = None  # in seconds of the monotonic clock; None between turns

    def begin(self) -> None:
        """Begin a turn, and end the one before."""
        self.end()
        self._watch.__enter__()
        self._looked_at = time.monotonic()

    def end(self) -> None:
        self._earlier, self._now, self._looked_at = list(self.flags()), [], None

    def flags(self) -> tuple[str, ...]:
        """A sentence for each disturbance of any turn so far, the last of each kind."""
        if self._looked_at is not None and time.monotonic() - self._looked_at >= LOOK_S:
            self._watch.__exit__()
            self._now = self._watch.disturbance.flags if self._watch.disturbance is not None else []
            self._looked_at = time.monotonic()
        return tuple(disturbances([*self._earlier, *self._now]))


def _slowed_s(before: Sequence[Gpu], after: Sequence[Gpu]) -> dict[str, float]:
    """Seconds between two moments in which a card was slowed, by cause; the longest of several cards."""
    began = {gpu.uuid: gpu.slowed_s or {} for gpu in before}
    found: dict[str, float] = {}
    for gpu in after:
        for cause, until_s in (gpu.slowed_s or {}).items():
            slowed_s = until_s - began.get(gpu.uuid, {}).get(cause, until_s)
            found[cause] = max(found.get(cause, 0.0), slowed_s)  # below 0 if the driver was reloaded
    return found


def _spent_s(family: "list[psutil.Process]") -> float:
    """User and system time of each process, and of its children that have ended; live ones are in the family."""
    spent_s = 0.0
    for process in family:
        with suppress(psutil.NoSuchProcess):
            spent_s += sum(process.cpu_times()[:4])
    return spent_s
