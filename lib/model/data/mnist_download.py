"""Downloads MNIST: Keras' copy, or else the four IDX files of another mirror."""

import gzip
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType

from lib.model.data.mnist_arrays import DataError, Raw, check_arrays, read_idx, read_npz, save_npz

KERAS_URL = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"
IDX_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
IDX_FILES = {
    "x_train": "train-images-idx3-ubyte.gz",
    "y_train": "train-labels-idx1-ubyte.gz",
    "x_test": "t10k-images-idx3-ubyte.gz",
    "y_test": "t10k-labels-idx1-ubyte.gz",
}
DOWNLOAD_TIMEOUT_S = (4, 30)  # for the connection, and for the next bytes
RETRY_DOWNLOAD_AFTER_S = 600  # every worker loads the data; without a network, only the first waits for it

Fetch = Callable[[str], AbstractContextManager[Path]]  # URL to downloaded file, which is deleted when the block ends


def download_unless_it_just_failed(path: Path) -> Raw:
    """Download from the first mirror whose arrays are verified, save them here, and return them.

    Raises DataError with each mirror's failure, and repeats it for ten minutes without another attempt.
    """
    failure = path.with_name("download-failed.txt")
    if failure.exists() and 0 <= time.time() - failure.stat().st_mtime < RETRY_DOWNLOAD_AFTER_S:
        raise DataError(failure.read_text())
    try:
        raw = _download(path)
    except DataError as error:
        failure.write_text(str(error))
        raise
    failure.unlink(missing_ok=True)
    return raw


def _download(path: Path) -> Raw:
    try:
        import pooch  # only here: it imports requests, which a start from the cache does not need
    except ModuleNotFoundError as error:
        raise DataError("pooch, which downloads it, is not installed") from error

    pooch.get_logger().setLevel(logging.WARNING)
    reasons = []
    for name, mirror in (("npz", _fetch_npz), ("idx", _fetch_idx)):
        try:
            raw = mirror(partial(_fetched, pooch, path.parent))
        except Exception as error:  # any network error: try the next mirror
            reasons.append(f"{name}: {_brief(error)}")
        else:
            save_npz(path, raw)
            return raw
    raise DataError("no copy could be downloaded (" + "; ".join(reasons) + ")")


def _brief(error: Exception) -> str:
    import requests  # pooch's own

    if isinstance(error, requests.Timeout):
        return "no answer in time"
    if isinstance(error, requests.ConnectionError):
        return "no connection"
    return str(error).split("\n")[0][:160] or type(error).__name__


@contextmanager
def _fetched(pooch: ModuleType, folder: Path, url: str) -> Iterator[Path]:
    part = f"{url.split('/')[-1]}-{os.getpid()}.part"
    downloader = pooch.HTTPDownloader(timeout=DOWNLOAD_TIMEOUT_S, progressbar=False)
    temporary = Path(pooch.retrieve(url, known_hash=None, fname=part, path=folder, downloader=downloader))
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _fetch_npz(fetch: Fetch) -> Raw:
    with fetch(KERAS_URL) as file:
        return read_npz(file, "download")


def _fetch_idx(fetch: Fetch) -> Raw:
    raw = {}
    for name, file_name in IDX_FILES.items():
        with fetch(IDX_URL + file_name) as file:
            try:
                raw[name] = read_idx(gzip.decompress(file.read_bytes()))
            except (EOFError, gzip.BadGzipFile, ValueError) as error:
                raise DataError(f"{file_name}: expected a gzipped IDX file, got {_brief(error)}") from error
    return check_arrays(raw, "download")
