"""A digest of the code that figures depend on: results are stored under it, and workers with older code replaced."""

import dis
import hashlib
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import CodeType

from lib import ROOT
from lib.model.backends.registry import BACKENDS

# Entry points of the processes that train or measure: an engine's worker, an executor's. The rest follows from imports.
ENTRIES = ("lib.sweeps.workers.worker", "lib.sweeps.executor")

PACKAGES = ("lib",)
MEASURING = ("benchmarks", "notebooks", "mnist_training")  # what benchmarks are made of besides
NOT_MEASURED = "benchmarks.report"  # how rows are written changes none of them

State = tuple[int, int]  # of a file or folder: time of its last change, size
LOOK_EVERY_S = 0.1
LOOK_SHARE = 0.1  # of the time, at most: beside hundreds of threads a look of 1 ms takes a second
_known: tuple[dict[Path, State], str] = ({}, "")
_look_at = 0.0  # when to look again, a time of `time.monotonic`
_looking = threading.Lock()


def source_digest() -> str:
    """SHA-256, cut to 16 hex digits, of the modules of `lib` that such a process can import.

    They are read again only when one has changed: 0.1 s of CPU time the first time, 0.1 ms after that, as every key of
    the store needs it. Whether one has changed is looked at every `LOOK_EVERY_S`, and by one thread at a time: each
    look at a file lets another thread go on, of which the server of a class has hundreds.
    """
    global _known, _look_at
    states, digest = _known
    if states and (time.monotonic() < _look_at or not _looking.acquire(blocking=False)):
        return digest  # another thread looks just now
    if not states:
        _looking.acquire()  # nothing is known yet: wait for whoever reads
    try:
        states, digest = _known
        began = time.monotonic()
        if not states or any(_state(path) != state for path, state in states.items()):
            _known = states, digest = _read()
        else:
            now = time.monotonic()
            _look_at = now + max(LOOK_EVERY_S, (now - began) / LOOK_SHARE)
        return digest
    finally:
        _looking.release()


def package_digest(package: str) -> str:
    """The same of one package's modules, for what is compiled from them alone; they are few, and read each time."""
    return _digest({path: path.read_bytes() for path in ROOT.joinpath(*package.split(".")).glob("*.py")})


def benchmark_digest(name: str) -> str:
    """The same of a benchmark: of its module, of what trains and measures, and of what its texts name to be started."""
    return _read([*ENTRIES, f"benchmarks.{name}"], (*PACKAGES, *MEASURING))[1]


def _state(path: Path) -> State | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_size


def _read(entries: Sequence[str] = ENTRIES, packages: Sequence[str] = PACKAGES) -> tuple[dict[Path, State], str]:
    """File states and digest of all modules that the entries import, directly or not, at the top or in a function."""
    states: dict[Path, State | None] = {}
    contents: dict[Path, bytes] = {}
    waiting = list(entries)
    while waiting:
        for path in _files_of(waiting.pop(), packages):
            if path not in contents:
                states[path] = _state(path)  # before it is read, so that a change meanwhile is noticed
                states.setdefault(path.parent, _state(path.parent))  # a new module may appear in it
                contents[path] = path.read_bytes()
                waiting += _imports_in(contents[path], packages)
    return {path: state for path, state in states.items() if state is not None}, _digest(contents)


def _digest(contents: Mapping[Path, bytes]) -> str:
    total = hashlib.sha256()
    for path in sorted(contents):
        total.update(f"{path.relative_to(ROOT).as_posix()} {len(contents[path])}\n".encode() + contents[path])
    return total.hexdigest()[:16]


def _files_of(module: str, packages: Sequence[str]) -> list[Path]:
    """A module's file, its parent packages', which are imported first, and the kernels that lie in these; none if
    outside these packages, or in `NOT_MEASURED`."""
    names = module.split(".")
    if names[0] not in packages or f"{module}.".startswith(f"{NOT_MEASURED}."):
        return []
    places = [ROOT.joinpath(*names[:depth]) for depth in range(1, len(names) + 1)]
    files = [*(place / "__init__.py" for place in places), places[-1].with_suffix(".py")]
    kernels = [
        kernel for place in places if place.is_dir() for end in ("wgsl", "c") for kernel in place.glob(f"*.{end}")
    ]
    return [file for file in files if file.is_file()] + kernels


@lru_cache(maxsize=1000)  # a file belongs to many benchmarks
def _imports_in(content: bytes, packages: Sequence[str]) -> tuple[str, ...]:
    """What a file's content imports; nothing where it is half-edited or a kernel, as a change is in its content."""
    try:
        return tuple(_imports(compile(content, "module", "exec"), packages))
    except SyntaxError:
        return ()


def _imports(code: CodeType, packages: Sequence[str]) -> Iterator[str]:
    """Names of everything that a module imports, anywhere in it; a name imported from a package may be a module.

    They are read from bytecode, because in Python 3.11 threads that build syntax trees at the same time interfere.
    """
    package = ""
    imports = any(name.split(".")[0] in packages for name in code.co_names)
    for step in dis.get_instructions(code) if imports else ():
        if step.opname == "IMPORT_NAME":
            yield (package := step.argval)
        elif step.opname == "IMPORT_FROM":
            yield f"{package}.{step.argval}"
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _imports(constant, packages)
        elif isinstance(constant, str) and constant.startswith("lib.") and constant.endswith("."):
            # f"lib.timing.profiling.{…}": the part that is filled in at run time is a backend's module.
            yield from (constant + backend.module for backend in BACKENDS.values())
        elif isinstance(constant, str) and constant.startswith(("benchmarks.", "lib.cli.")):
            yield constant  # what a benchmark starts as a process of its own
        elif isinstance(constant, str) and constant.endswith(".py"):
            yield constant.removesuffix(".py").replace("/", ".")  # a notebook that the server opens
