"""Starts a participant's process, asks it, and tells when it has ended."""

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from benchmarks.peer import Peer
from lib.cache_folder import CacheUnwritable, cache_dir
from lib.model.backends.registry import Runtime, worker_environment

ROOT = Path(__file__).resolve().parent.parent.parent
CLOSE_LIMIT_S = 5


class PeerFailed(RuntimeError):
    """A participant that did not answer: it raised, ended or hung. The text says which."""


class PeerProcess:
    """One participant, kept from the first question to `close`. Idle, it waits for a line and uses no processor.

    Args:
        peer: The participant.
        settings: Environment variables over those that it has anyway.
        threads: At most so many; None: as many as there are cores.
    """

    def __init__(self, peer: Peer, settings: Mapping[str, str] | None = None, threads: int | None = None) -> None:
        self.peer = peer
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (it lives as long as the process)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.peer", peer.key],
            cwd=ROOT,
            env=environment(peer, settings, threads),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, question: Mapping[str, object], limit_s: float) -> dict:
        """Send a question and wait for its answer."""
        assert self._process.stdin is not None, "opened with pipes"
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise PeerFailed(self._why_ended()) from error
        return self.answer(limit_s)

    def answer(self, limit_s: float) -> dict:
        """The next answer; the first one, that it is ready, comes without a question."""
        assert self._process.stdout is not None, "opened with pipes"
        if not select.select([self._process.stdout], [], [], limit_s)[0]:
            raise PeerFailed(f"it gave no answer within {limit_s:.0f} s")
        line = self._process.stdout.readline()
        if not line.endswith("\n"):
            raise PeerFailed(self._why_ended())
        answer = json.loads(line)
        if "error" in answer:
            raise PeerFailed(answer["error"])
        return answer

    def close(self) -> None:
        """End it: by the end of its input, or, where it is busy, at once."""
        with suppress(OSError):
            self._process.stdin.close()  # pyright: ignore[reportOptionalMemberAccess]
        try:
            self._process.wait(CLOSE_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()  # pyright: ignore[reportOptionalMemberAccess]
        self._log.close()

    def _why_ended(self) -> str:
        status = self._process.wait(CLOSE_LIMIT_S)
        self._log.seek(0)
        said = [line.strip() for line in self._log.read().splitlines() if line.strip()]
        return f"its process ended with status {status}" + (f": {said[-1][:300]}" if said else "")


def environment(peer: Peer, settings: Mapping[str, str] | None = None, threads: int | None = None) -> dict[str, str]:
    """All of its environment: a worker's, with the compilers' caches in this project's folder and no compiler left
    running; arguments as of `PeerProcess`."""
    try:
        folder = cache_dir()
    except CacheUnwritable:
        kept = worker_environment(Runtime(), None, threads)
    else:
        kept = worker_environment(Runtime(), str(folder / "xla"), threads)
        kept |= {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "CACHEDB": str(folder / "tinygrad.db")}
    kept |= {"TORCHINDUCTOR_COMPILE_THREADS": "1"} | dict(peer.environment)
    kept |= {"NUM_CPU_THREADS": kept["OMP_NUM_THREADS"]}  # tinygrad's
    return dict(os.environ) | kept | dict(settings or {})
