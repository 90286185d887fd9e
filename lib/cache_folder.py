"""Where results and downloads are kept, one folder, which `MNIST_CACHE_DIR` can move; and how a file there is
replaced."""

import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

APP_NAME = "less-overhead"


class CacheUnwritable(OSError):
    """The cache folder cannot be written; the text says which folder and what to do."""


def cache_dir() -> Path:
    """The cache folder, created if needed. Raises CacheUnwritable with a sentence for the person."""
    named = os.environ.get("MNIST_CACHE_DIR")
    folder = Path(named) if named else user_cache_dir(APP_NAME)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):  # a file of its own: many threads ask at once
            pass
    except OSError as error:
        raise CacheUnwritable(
            f"the cache folder {folder} cannot be written ({error.strerror or error}); "
            "set MNIST_CACHE_DIR to a folder that can"
        ) from error
    return folder


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A name beside the file for its new content, which takes its place whole at the end of the block, or not at
    all."""
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.writing")  # nobody else's: threads write at once
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def user_cache_dir(name: str) -> Path:
    try:
        import platformdirs
    except ModuleNotFoundError:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / name
    return Path(platformdirs.user_cache_dir(name, appauthor=False))
