"""Where results and downloads are kept: one folder, which `MNIST_CACHE_DIR` can move."""

import os
from pathlib import Path

from lib.bare import user_cache_dir

APP_NAME = "less-overhead"


class CacheUnwritable(OSError):
    """The cache folder cannot be written; the text says which folder and what to do."""


def cache_dir() -> Path:
    """The cache folder, created if needed. Raises CacheUnwritable with a sentence for the person."""
    named = os.environ.get("MNIST_CACHE_DIR")
    folder = Path(named) if named else user_cache_dir(APP_NAME)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise CacheUnwritable(
            f"the cache folder {folder} cannot be written ({error.strerror or error}); "
            "set MNIST_CACHE_DIR to a folder that can"
        ) from error
    return folder
