"""Images: PNG or JPEG, a folder for each class, in a ZIP archive or a folder; and IDX files, as MNIST's are."""

import gzip
import io
import math
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from lib.data.mnist_arrays import DataError
from lib.data.own.prepared import MAX_NUMBERS
from lib.data.own.rows import Rows, shortened

MAX_SIDE = 64
MAX_IMAGES = 100_000
MAX_UNPACKED_BYTES = 512 << 20
MAX_RATIO = 200  # of an entry's size to its packed size: PNG and JPEG hardly shrink
SUFFIXES = (".png", ".jpg", ".jpeg")
_ARCHIVES = (b"PK\x03\x04", b"\x1f\x8b")
Named = tuple[str, Callable[[], bytes]]  # path from the root, and what reads the file


def read_zip(path: Path) -> Rows:
    """A ZIP archive with a folder of images for each class.

    Raises:
        DataError: It holds something else, or too much; the text says what. Nothing was unpacked to a disk.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [one for one in archive.infolist() if not one.is_dir() and not _is_clutter(one.filename)]
            _check_entries(entries)
            return _read([(one.filename, lambda one=one: archive.read(one)) for one in entries])
    except (zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise DataError(f"expected a ZIP archive, got a damaged or locked one ({shortened(str(error))})") from error


def _check_entries(entries: Sequence[zipfile.ZipInfo]) -> None:
    if len(entries) > MAX_IMAGES:
        raise DataError(f"expected at most {MAX_IMAGES:,} images, got {len(entries):,} files; bring fewer")
    unpacked_bytes = sum(one.file_size for one in entries)
    if unpacked_bytes > MAX_UNPACKED_BYTES:
        raise DataError(
            f"expected at most {MAX_UNPACKED_BYTES >> 20} MiB once unpacked, got {unpacked_bytes >> 20:,} MiB"
        )
    for one in entries:
        if one.filename.startswith(("/", "\\")) or ".." in PurePosixPath(one.filename.replace("\\", "/")).parts:
            raise DataError(
                f"expected names inside the archive, got “{shortened(one.filename)}”, which leads out of it"
            )
        if one.file_size > MAX_RATIO * max(one.compress_size, 100):
            raise DataError(
                f"expected images, got “{shortened(one.filename)}”, which unpacks to {one.file_size:,} bytes from"
                f" {one.compress_size:,}"
            )


def read_folder(path: Path) -> Rows:
    """A folder of this machine with a folder of images for each class; links are not followed.

    Raises:
        DataError: It holds something else, or too much; the text says what.
    """
    found: list[Path] = []
    for one in path.rglob("*"):
        if one.is_file() and not one.is_symlink() and not _is_clutter(one.relative_to(path).as_posix()):
            found.append(one)
        if len(found) > MAX_IMAGES:
            raise DataError(f"expected at most {MAX_IMAGES:,} images, got more files; bring fewer")
    if (n_bytes := sum(one.stat().st_size for one in found)) > MAX_UNPACKED_BYTES:
        raise DataError(f"expected at most {MAX_UNPACKED_BYTES >> 20} MiB of images, got {n_bytes >> 20:,} MiB")
    return _read([(one.relative_to(path).as_posix(), one.read_bytes) for one in sorted(found)])


def _is_clutter(name: str) -> bool:
    """What systems put beside files by themselves."""
    parts = PurePosixPath(name).parts
    return "__MACOSX" in parts or (bool(parts) and parts[-1] in (".DS_Store", "Thumbs.db", "desktop.ini"))


def _read(files: Sequence[Named]) -> Rows:
    if not files:
        raise DataError("expected a folder of images for each class, got no file")
    pixels, labels = [], []
    for name, pixel in _decoded(files):
        pixels.append(pixel)
        labels.append(PurePosixPath(name).parent.name)
    return Rows(np.stack(pixels), np.array(labels, object), is_image=True)


def _decoded(files: Sequence[Named]) -> Iterator[tuple[str, np.ndarray]]:
    """Each image as grey levels, (height, width) uint8, all of one size."""
    size: tuple[int, int] | None = None
    for name, read in files:
        shown = shortened(name)
        if not PurePosixPath(name).parent.name:
            raise DataError(f"expected every image in a folder named after its class, got “{shown}” outside of any")
        if not name.lower().endswith(SUFFIXES):
            raise DataError(f"expected only PNG and JPEG files, got “{shown}”; take it out")
        content = read()
        if content.startswith(_ARCHIVES):
            raise DataError(f"expected images, got another archive in “{shown}”; unpack it first")
        pixel, got = _grey(shown, content, size)
        size = size or got
        if got[0] * got[1] * len(files) > MAX_NUMBERS:
            raise DataError(f"expected at most {MAX_NUMBERS:,} pixels in all, got {got[0] * got[1] * len(files):,}")
        yield name, pixel


def _grey(name: str, content: bytes, size: tuple[int, int] | None) -> tuple[np.ndarray, tuple[int, int]]:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=("PNG", "JPEG")) as image:
            if max(image.size) > MAX_SIDE:
                raise DataError(
                    f"expected images of at most {MAX_SIDE} × {MAX_SIDE} pixels, got {image.width} × {image.height} in"
                    f" “{name}”; make them smaller"
                )
            if size is not None and image.size != size:
                raise DataError(
                    f"expected all images to be {size[0]} × {size[1]} pixels, as the first is, got {image.width} ×"
                    f" {image.height} in “{name}”; give them one size"
                )
            return np.asarray(image.convert("L"), np.uint8).copy(), image.size
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"expected PNG or JPEG, got a broken image in “{name}”; save it again") from error


def read_idx(files: Sequence[tuple[str, Path]]) -> Rows:
    """Two IDX files, images and labels, or four, of which two have “test” or “t10k” in their names.

    Raises:
        DataError: They are damaged, or do not belong together; the text says which.
    """
    if len(files) not in (2, 4):
        raise DataError(f"expected two IDX files (images and labels) or four (the same for test), got {len(files)}")
    tests = [(name, path) for name, path in files if "test" in name.lower() or "t10k" in name.lower()]
    if len(files) == 4 and len(tests) != 2:
        raise DataError("expected two of the four IDX files to have “test” or “t10k” in their names; rename them")
    test = tests if len(files) == 4 else []
    x, labels = _pair([one for one in files if one not in test])
    if not test:
        return Rows(x, labels, is_image=True)
    x_test, labels_test = _pair(test)
    if x.shape[1:] != x_test.shape[1:]:
        raise DataError(f"expected training and test images of one size, got {x.shape[1:]} and {x_test.shape[1:]}")
    return Rows(np.concatenate([x, x_test]), np.concatenate([labels, labels_test]), len(x_test), is_image=True)


def _pair(files: Sequence[tuple[str, Path]]) -> tuple[np.ndarray, np.ndarray]:
    arrays = sorted(((_idx(name, path), name) for name, path in files), key=lambda one: -one[0].ndim)
    (x, x_name), (labels, labels_name) = arrays
    both = f"“{shortened(x_name)}” and “{shortened(labels_name)}”"
    if x.ndim != 3 or labels.ndim != 1:
        raise DataError(f"expected images (3 axes) and labels (1 axis), got {x.ndim} and {labels.ndim} axes in {both}")
    if len(x) != len(labels):
        raise DataError(f"{both} do not belong together: they hold {len(x):,} images and {len(labels):,} labels")
    return x, labels


def _idx(name: str, path: Path) -> np.ndarray:
    """The array of an IDX file of unsigned bytes (yann.lecun.com/exdb/mnist), also gzipped."""
    shown, limit = f"“{shortened(name)}”", MAX_NUMBERS + 64
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        try:
            content = gzip.GzipFile(fileobj=file).read(limit + 1) if packed else file.read(limit + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"expected a gzipped IDX file in {shown}, got a damaged one; download it again") from error
    if len(content) > limit:
        raise DataError(f"expected at most {MAX_NUMBERS >> 20} MiB in {shown}, got more; bring fewer images")
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != 8 or content[3] not in (1, 3):
        raise DataError(
            f"expected an IDX file of unsigned bytes in {shown}, which begins with 0, 0, 8 and its 1 or 3 axes, got"
            f" {list(content[:4])}; bring another file"
        )
    first = 4 + 4 * content[3]
    shape = np.frombuffer(content[:first], ">u4", offset=4).tolist() if len(content) >= first else []
    if len(shape) != content[3] or len(content) != first + math.prod(shape):
        wanted = f"{first + math.prod(shape):,} bytes for {' × '.join(map(str, shape))}" if shape else "a whole header"
        raise DataError(f"expected {wanted} in {shown}, got {len(content):,} bytes; download it again")
    return np.frombuffer(content, np.uint8, offset=first).reshape(shape)
