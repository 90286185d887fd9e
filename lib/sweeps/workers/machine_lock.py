"""The turn between the programs of one person on one machine, so that two do not time something at once.

A program that holds the turn says so in a file beside the lock: which program, and since when. It gives the turn back
when another asks for it. One that does not, because it sleeps in a debugger, holds nobody up for longer than
`PATIENCE_S`: others then go on beside it, and their times are marked. A page of the editor also ends its runs when
another page asks for that, and takes no turn while no browser shows it.
"""

import json
import os
import platform
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from lib.cache_folder import APP_NAME, user_cache_dir
from lib.model.hardware.optional import FileLock, Timeout

SERVED = "MNIST_NOTEBOOKS_SERVED"  # environment variable: how the notebooks are served: “app”, “edit” or “run”
POLL_S = 0.02
ASKED_S = 3.0  # a program counts as one that waits for so long after it asked
PATIENCE_S = 60.0
START_S = 30.0  # longer than a page takes from its process to its lock: it may be left meanwhile
END_IT = "“End it”"  # in words for whoever waits: there a page shows a button


@dataclass(frozen=True)
class Holder:
    """The program that holds the turn, and since when."""

    program: str
    pid: int
    since: float  # seconds since 1970
    is_page: bool = False  # of the editor
    heeds: bool = False  # ends its runs when another page asks for it, as pages of older versions do not

    @classmethod
    def me(cls) -> "Holder":
        """This program, from now on."""
        is_page = _in_editor()
        return cls(Path(sys.argv[0]).name or "python", os.getpid(), time.time(), is_page, heeds=is_page)

    def __str__(self) -> str:
        since = f"since {datetime.fromtimestamp(self.since):%H:%M:%S}"
        if self.is_page:
            return f"the page “{Path(self.program).stem.replace('_', ' ')}” in another tab, {since}"
        return f"{self.program} (process {self.pid}), {since}"

    @property
    def waited_for(self) -> str:
        """In words for whoever waits: what measures, and how to end it."""
        if self.heeds and _in_editor():
            how = f"press {END_IT}"
        else:
            how = "close that tab" if self.is_page else "end that program"
        return f"{self} is measuring; to end it, {how}"

    @property
    def disturbs(self) -> str:
        """The warning on times that are taken beside it."""
        return f"timed beside another measurement, by {self}, which did not give way: end it, and measure again"


def _in_editor() -> bool:
    return os.environ.get(SERVED) in ("app", "edit")


def folder() -> Path:
    """Where the lock lies: a folder of this person's on this machine.

    A home may be shared by machines, and a temporary folder by persons.
    """
    given = os.environ.get("XDG_RUNTIME_DIR")
    return Path(given) / APP_NAME if given else user_cache_dir(APP_NAME) / f"turn-{platform.node()}"


def note_left(pages: Iterable[int | None], others: Iterable[int | None]) -> None:
    """Note which pages of the editor no browser shows, by process ids, and of which others that is no longer so."""
    with suppress(OSError):
        folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        for pid in pages:
            (folder() / f"left-{pid}").touch()
        for pid in others:
            (folder() / f"left-{pid}").unlink(missing_ok=True)


class MachineLock:
    """A lock file; a file that says who holds it; and a file whose age tells the holder that somebody waits.

    As a context manager it waits for the turn, and gives it back at the end.

    Args:
        patience_s: Seconds after which a holder that does not give way is no longer waited for.
    """

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._folder = folder()
        self._lock = FileLock(self._folder / "timing.lock", thread_local=False)
        self._holder, self._waiting = self._folder / "holder.json", self._folder / "waiting"
        self._to_end, self._left = (self._folder / f"{what}-{os.getpid()}" for what in ("end", "left"))
        self._made_at = time.time()
        self._asked: tuple[Holder | None, float, float] | None = None  # which holder, since when, and when last
        self._overtaken: Holder | None = None  # whom it lost its patience with
        self.beside: Holder | None = None  # who holds it, where this program runs beside it

    def __enter__(self) -> "MachineLock":
        while not self.take():
            time.sleep(POLL_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def take(self) -> bool:
        """Ask for the turn, without waiting; True if this program may go on, as it may when it holds the turn already.

        Also True where no lock file can be made (better unprotected than not at all), and where a holder did not give
        way: `beside` then names it.
        """
        if self._lock.is_locked or self.beside:  # the lock counts, and one release must be enough
            return True
        if self.is_left():
            return False
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
        except Timeout:
            return self._ask()
        except OSError:
            return True
        self.is_to_end()  # a request that came too late for the turn before
        with suppress(OSError):
            self._holder.write_text(json.dumps(asdict(Holder.me())))
        return True

    def release(self) -> None:
        """Give the turn back, and wait long enough for another that asked for it: it looks every `POLL_S`."""
        self.beside = None
        if self._lock.is_locked:
            asked = self.wanted()
            with suppress(OSError):
                self._holder.unlink()
            self._lock.release()
            if asked:
                with suppress(OSError):
                    self._waiting.unlink()
                time.sleep(5 * POLL_S)

    def holder(self) -> Holder | None:
        """The program that holds the turn; None where that is not known."""
        try:
            return Holder(**json.loads(self._holder.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def is_left(self) -> bool:
        """Whether this program is a page that no browser shows at present."""
        try:
            return self._left.stat().st_mtime > self._made_at - START_S  # else of another that had this process id
        except OSError:
            return False

    def is_to_end(self) -> bool:
        """Whether another page has asked that this program's runs end; a request is told once."""
        try:
            self._to_end.unlink()
        except OSError:
            return False
        return True

    def end_holder(self) -> None:
        """Ask the page that holds the turn to end its runs; only pages of the editor may, and only they do so."""
        holder = self.holder()
        if _in_editor() and holder is not None and holder.heeds:
            with suppress(OSError):
                (self._folder / f"end-{holder.pid}").touch()

    def wanted(self) -> bool:
        """Whether another program has asked for the turn within the last `ASKED_S`."""
        try:
            return time.time() - self._waiting.stat().st_mtime < ASKED_S
        except OSError:
            return False

    def _ask(self) -> bool:
        """Tell the holder that somebody waits; True where it has not given way for too long."""
        with suppress(OSError):
            self._waiting.touch()
        now, holder = time.monotonic(), self.holder()
        asked = self._asked
        since = asked[1] if asked is not None and asked[0] == holder and now - asked[2] < ASKED_S else now
        self._asked = (holder, since, now)
        if now - since > self._patience_s:
            self._overtaken = holder or Holder("another program", 0, time.time())
        if self._overtaken is not None and holder in (self._overtaken, None):
            self.beside = self._overtaken
        return self.beside is not None
