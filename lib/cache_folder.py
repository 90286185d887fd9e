"""The folder for results and downloads, which `MNIST_CACHE_DIR` can move, and how a file in it is replaced."""

import os
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

APP_NAME = "less-overhead"
ABANDONED_S = 600.0  # a temporary file that nobody has written to for so long: its writer was killed
_TEMPORARY = f"*.{8 * '[0-9a-f]'}.writing"


class CacheUnwritable(OSError):
    """The cache folder cannot be written; the text names the folder and says what to do."""


def cache_folder() -> Path:
    """Where the cache folder is, whether it is there or not."""
    named = os.environ.get("MNIST_CACHE_DIR")
    return Path(named) if named else user_cache_dir(APP_NAME)


def cache_dir() -> Path:
    """The cache folder, created if needed. Raises CacheUnwritable, with a sentence for the user."""
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
    """Replace a file atomically: yields a temporary path for the new content, which is renamed when the block ends.

    If the block or the renaming raises, the file stays as it was, and the temporary one is removed. Those that killed
    writers have left in the folder are removed, too.
    """
    for left in path.parent.glob(_TEMPORARY):
        with suppress(OSError):  # another process removes it too
            if time.time() - left.stat().st_mtime > ABANDONED_S:
                left.unlink()
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.writing")  # unique: threads write at once
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def user_cache_dir(name: str) -> Path:
    """Where this system wants the caches of a program of this name; `~/.cache/name` without platformdirs."""
    try:
        import platformdirs
    except ModuleNotFoundError:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / name
    return Path(platformdirs.user_cache_dir(name, appauthor=False))
