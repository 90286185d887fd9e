"""The folder for results and downloads, which `MNIST_CACHE_DIR` overrides, and atomic replacement of files."""

import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

APP_NAME = "less-overhead"


class CacheUnwritable(OSError):
    """The cache folder cannot be written; the text names the folder and says what to do."""


def cache_folder() -> Path:
    """Return the cache folder's path, even if it does not exist."""
    named = os.environ.get("MNIST_CACHE_DIR")
    return Path(named) if named else user_cache_dir(APP_NAME)


def cache_dir() -> Path:
    """Return the cache folder, created if needed. Raises CacheUnwritable, with a sentence for the user."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):  # a unique name, because many threads do this at once
            pass
    except OSError as error:
        raise CacheUnwritable(
            f"the cache folder {folder} cannot be written ({error.strerror or error}); "
            "set MNIST_CACHE_DIR to a folder that can"
        ) from error
    return folder


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Replace a file atomically: yields a temporary path for the new content, renamed when the block ends.

    If the block or the renaming raises, the file stays unchanged and the temporary one is removed.
    """
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.writing")  # unique: threads write at once
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def user_cache_dir(name: str) -> Path:
    """Return the system's cache folder for a program; `$XDG_CACHE_HOME` or `~/.cache` without platformdirs."""
    try:
        import platformdirs
    except ModuleNotFoundError:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / name
    return Path(platformdirs.user_cache_dir(name, appauthor=False))
