"""Other machines: an executor that was given, or a Dask scheduler's workers as one. `make cluster` installs Dask.

Every worker is asked what it has before it is given anything; those of other versions or code, and those that compute
wrongly, are left out, and reported by name.
"""

import os
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from lib.model.backends.registry import Runtime
from lib.model.hardware.machine import usable_cores
from lib.sweeps.executor import Expected, why_not
from lib.sweeps.workers.messages import TrainingFailed

ADDRESS = "DASK_SCHEDULER_ADDRESS"
ANSWER_S = 4.0  # a scheduler that is there answers sooner
LOCAL = "or choose another strategy: all of them train on this machine"


class NoCluster(TrainingFailed):
    """No cluster can be used; the text says why and what to do."""


@dataclass(frozen=True)
class Cluster:
    """Workers that compute what this program does."""

    executor: Executor
    n_workers: int
    refused: tuple[str, ...]  # a sentence for each worker that does not


def address() -> str | None:
    """The scheduler's address, from the environment variable `DASK_SCHEDULER_ADDRESS`; None if it is unset or empty."""
    return os.environ.get(ADDRESS) or None


def cluster(executor: Executor | None, runtime: Runtime, data_digest: str) -> AbstractContextManager[Cluster]:
    """The executor, or where there is none the scheduler at `address()`: see `connected`.

    Raises:
        ValueError: There is neither.
    """
    if executor is not None:
        return nullcontext(Cluster(executor, getattr(executor, "_max_workers", None) or usable_cores(), ()))
    if (to := address()) is None:
        raise ValueError(
            f"strategy cluster: expected an executor or {ADDRESS}, got neither; set it to a Dask scheduler's address,"
            f" {LOCAL}"
        )
    return connected(to, runtime, data_digest)


@contextmanager
def connected(to: str, runtime: Runtime, data_digest: str) -> Iterator[Cluster]:
    """A connection to a scheduler, closed at the end of the block.

    Args:
        to: The scheduler's address, such as `tcp://host:8786`.
        runtime: What the workers shall train with; those that cannot, or compute wrongly with it, are refused.
        data_digest: Of the training images; each worker compares its own when it is given a task.

    Yields:
        The workers that can be used, at least one.

    Raises:
        NoCluster: Dask is not installed, the scheduler does not answer within `ANSWER_S`, or no worker can be used.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise NoCluster(f"Dask is not installed, so {to} cannot be used; run `make cluster`, {LOCAL}") from error
    try:
        client = Client(to, timeout=ANSWER_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError, TypeError) as error:
        raise NoCluster(
            f"the scheduler at {to} did not answer within {ANSWER_S:.0f} s; start it, correct {ADDRESS}, {LOCAL}"
        ) from error
    with client:
        said: dict = client.run(why_not, Expected.here(runtime, data_digest), runtime, on_error="return")  # type: ignore[assignment]
        refused = {worker: _words(answer) for worker, answer in said.items() if answer}
        good = [worker for worker in said if worker not in refused]
        if not good:
            why = next(iter(refused.values()), "it has no workers yet: start some")
            raise NoCluster(f"no worker of the scheduler at {to} can be used: {why}; {LOCAL}")
        executor = client.get_executor(workers=good, allow_other_workers=False, pure=False)
        yield Cluster(executor, len(good), tuple(f"{worker}: {why}" for worker, why in refused.items()))


def _words(answer: object) -> str:
    """A refusal, or what went wrong on the way to one: a worker without this project cannot even be asked."""
    if isinstance(answer, ImportError):
        return f"it cannot import this project ({answer}); start it in the project's folder, with its requirements"
    return str(answer)
