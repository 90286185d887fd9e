"""Python and NumPy for a browser: the files of one version of Pyodide, each verified, kept in the cache folder.

They come from Pyodide's own page host or, where that is out of reach, from a package on PyPI that carries the same
files; what is in them is decided by their digests, which are those of Pyodide's package on npm and of its lock file.
Pyodide is under the Mozilla Public License 2.0, NumPy under the BSD licence.
"""

import hashlib
import io
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from pathlib import Path

from lib.cache_folder import cache_dir, replaced

VERSION, NUMPY_VERSION = "0.29.0", "2.2.5"
DIGESTS = {  # SHA-256
    "pyodide.mjs": "31afa960fdf68333de6f3f0513bad154495c8fc635a66b7e58ab9cf356a76501",
    "pyodide.asm.js": "f1e70077bd701757b2798fc57f540fe39cf23d36ee5cd7c1a9b3a6f35cf500a7",
    "pyodide.asm.wasm": "615172c6b2f5efe53e41d0201a98eb37c1f3aa7675d11cb06b6079b3a6b2bef5",
    "python_stdlib.zip": "e389fbdc394a00d31ff0624386c9e3e52e04727130ac73597a99c477afe4f1ca",
    "pyodide-lock.json": "701557726114e9a968d2088153414b2f126b8631aa734ed98eaf1797d4e4d087",
    f"numpy-{NUMPY_VERSION}-cp313-cp313-pyodide_2025_0_wasm32.whl": (
        "2ca46b70661caea8f9f8089d22495c7a24c120fc5881e68934ac3a04d3fc8a02"
    ),
}
_HOST = f"https://cdn.jsdelivr.net/pyodide/v{VERSION}/full/"
_PACKAGE = "gbdraw==0.14.2"
_TIMEOUT_S, _PIP_TIMEOUT_S = 30, 300


class NoRuntime(ValueError):
    """Python for a browser is not to be had; the text says what was tried and what to do."""


def runtime_files() -> dict[str, Path]:
    """The files by their names, fetched where they are not in the cache yet.

    Raises:
        NoRuntime: No source could be reached, or what it gave is something else, or the cache folder cannot be written.
    """
    try:
        folder = cache_dir() / f"pyodide-{VERSION}"
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise NoRuntime(str(error)) from error
    tried = []
    for name, source in (("Pyodide's host", _from_host), ("PyPI", _from_package)):
        missing = [one for one in DIGESTS if not _is_sound(folder / one)]
        if not missing:
            break
        try:
            _keep(source(missing), folder)
        except (OSError, ValueError, zipfile.BadZipFile, subprocess.SubprocessError) as error:
            tried.append(f"{name}: {' '.join(str(error).split())[:120]}")
    if missing := [one for one in DIGESTS if not _is_sound(folder / one)]:
        raise NoRuntime(
            f"expected Python for the browser (Pyodide {VERSION}), but {missing[0]} could not be fetched"
            f" ({'; '.join(tried)}); connect to the network once, or put its files into {folder}"
        )
    return {name: folder / name for name in DIGESTS}


def _is_sound(file: Path) -> bool:
    return file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == DIGESTS[file.name]


def _keep(found: dict[str, bytes], folder: Path) -> None:
    for name, content in found.items():
        if hashlib.sha256(content).hexdigest() != DIGESTS[name]:
            raise ValueError(f"{name} has another digest than Pyodide's")
        with replaced(folder / name) as temporary:
            temporary.write_bytes(content)


def _from_host(names: list[str]) -> dict[str, bytes]:
    def read(name: str) -> bytes:
        with urllib.request.urlopen(_HOST + name, timeout=_TIMEOUT_S) as answer:
            return answer.read()

    return {name: read(name) for name in names}


def _from_package(names: list[str]) -> dict[str, bytes]:
    words = ["download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "pip", *words, "--python-version", "3.13", "--dest", folder, _PACKAGE],
            check=True,
            capture_output=True,
            timeout=_PIP_TIMEOUT_S,
        )
        content = next(Path(folder).glob("*.whl")).read_bytes()
    return members(content, names)


def members(archive: bytes, names: list[str]) -> dict[str, bytes]:
    """The files of these names from anywhere in a ZIP archive; a name that several have gives any of them."""
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        paths = {path.rpartition("/")[2]: path for path in opened.namelist()}
        return {name: opened.read(paths[name]) for name in names if name in paths}
