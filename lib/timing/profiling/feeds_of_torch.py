"""What feeds a PyTorch model: `DataLoader`, with batches made in the loop itself or by worker processes.

The workers are spawned: a library with threads does not survive a fork. They live until the feed is closed; if this
process is killed, each of them finds that out by itself, within the five seconds in which PyTorch's workers look.
"""

# pyright: reportMissingImports=false
# Optional: `make torch` installs it.

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from lib.model.backends.with_torch import build, one_step, torch_device
from lib.timing.profiling.harness import Subject
from lib.timing.profiling.input_pipeline import Feed, Preprocessing, rows_of
from lib.timing.profiling.request import Pipeline

AHEAD = 2  # batches that each worker makes ahead: PyTorch's default


def feed(pipeline: Pipeline, preprocess: Preprocessing, subject: Subject) -> Feed:
    """The pipeline's batches, and the step on them."""
    return _TorchFeed(pipeline, preprocess, subject)


def explained(error: Exception) -> str:
    """What a loader raised, in a line; of an error in one of its workers, the last line of its traceback."""
    lines = str(error).strip().splitlines() or [""]
    in_worker = "DataLoader worker process" in lines[0] and len(lines) > 1
    return (lines[-1] if in_worker else f"{type(error).__name__}: {lines[0]}")[:200].rstrip(": ")


@dataclass
class _TorchImages(Dataset):
    """Images (rows, 784) and labels (rows,), each image preprocessed when it is asked for."""

    images: np.ndarray
    labels: np.ndarray
    preprocess: Preprocessing

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        image = self.images[index]
        return self.preprocess(image) if self.preprocess.repetitions else image, int(self.labels[index])


@dataclass
class _Endless:
    """All indices in their order, again and again."""

    rows: int

    def __iter__(self) -> Iterator[int]:
        return cycle(range(self.rows))


class _TorchFeed(Feed):
    def __init__(self, pipeline: Pipeline, preprocess: Preprocessing, subject: Subject) -> None:
        workers = int(pipeline.feed.removeprefix("loader-"))
        self._on_their_way = AHEAD * workers
        self._device = torch_device(subject.device)
        self._loader: DataLoader | None = DataLoader(
            _TorchImages(*rows_of(subject.data, pipeline.rows), preprocess),
            pipeline.batch_size,
            sampler=_Endless(pipeline.rows),  # pyright: ignore[reportArgumentType]
            drop_last=True,
            num_workers=workers,
            persistent_workers=workers > 0,
            multiprocessing_context="spawn" if workers else None,
            prefetch_factor=AHEAD if workers else None,
            pin_memory=subject.device == "gpu",
        )
        model = build(subject.network, subject.parameters, self._device)
        self._step = one_step(model, subject.training.learning_rate)

    def open(self) -> Iterator[Any]:
        assert self._loader is not None, "not closed"
        return iter(self._loader)

    def rest(self) -> int:
        return self._on_their_way  # they cannot be called back

    def step(self, batch: Any) -> object:
        images, labels = (part.to(self._device, non_blocking=True) for part in batch)
        return self._step(images, labels).item()  # waits for the device

    def close(self) -> None:
        self._loader = None  # with its last reference its workers are told to end, and waited for
