"""What a training step calls of CUDA: how often each function of the runtime and of the driver, in a fresh process.

Counts, not seconds. A library of CUPTI's callbacks (`cuda_calls.c`) is compiled, and loaded by CUDA's driver when a
fresh process initialises it; an epoch warms up, and the calls of the next one's steps count, without its evaluation.

A worker runs it: `python -m lib.timing.profiling.cuda_calls BACKEND BATCH_SIZE HIDDEN LIBRARY FILE`.
"""

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lib.model.backends.base import Epoch, Steps
from lib.model.backends.registry import load_train
from lib.model.data.mnist import Data, aligned
from lib.model.spec import N_PIXELS, N_TRAIN, Network, Training
from lib.timing.profiling.harness import Row, Subject, row_of
from lib.timing.profiling.request import NotMeasured

SOURCE = Path(__file__).with_name("cuda_calls.c")
LIMIT_S = 90.0  # of a process
POLL_S = 0.02
NOT_BUILT = "what a step calls of CUDA cannot be counted: "
# Where CUPTI lies: in CUDA's own folder, in the wheels of CUDA 13 that PyTorch and JAX bring, in Triton.
_IN_CUDA = ("include", "extras/CUPTI/include", "lib64", "extras/CUPTI/lib64", "lib")
_IN_WHEELS = ("nvidia/cu13/include", "nvidia/cu13/lib", "nvidia/cuda_cupti/include", "nvidia/cuda_cupti/lib")
_IN_TRITON = ("backends/nvidia/include", "backends/nvidia/lib/cupti")


def counted(backend: str, subject: Subject) -> Iterator[Row | None]:
    """Count the calls of an epoch's steps in a fresh process.

    Args:
        backend: Key of the backend, which trains on a card.
        subject: The step.

    Yields:
        None while it runs, so that it can be stopped; then a row for each function, `runtime/cudaLaunchKernel` and so
        on: how often it was called, and in how many steps.

    Raises:
        NotMeasured: The library cannot be built, CUPTI does not count, or the process failed; the text says why.
    """
    with tempfile.TemporaryDirectory() as folder:
        library, counts = build(Path(folder)), Path(folder) / "counts"
        yield None
        hidden = subject.network.label
        arguments = (backend, str(subject.batch_size), hidden, str(library), str(counts))
        yield from _run([sys.executable, "-m", "lib.timing.profiling.cuda_calls", *arguments], library)
        steps = N_TRAIN // subject.batch_size
        for line in counts.read_text().splitlines():
            interface, name, calls = line.split()
            yield row_of(f"{interface}/{name}", [float(calls)], steps)


def build(folder: Path) -> Path:
    """The library, compiled into a folder.

    Raises:
        NotMeasured: There is no compiler, or no CUPTI, or they do not fit.
    """
    compiler = shutil.which("nvcc") or shutil.which("gcc")
    if compiler is None:
        raise NotMeasured(f"{NOT_BUILT}expected nvcc or gcc on the path, got neither; install one")
    places = _places()
    headers = [place for place in places if (place / "cupti.h").is_file()]
    libraries = [file for place in places for file in sorted(place.glob("libcupti.so*"))]
    if not headers or not libraries:
        raise NotMeasured(
            f"{NOT_BUILT}expected CUPTI's header and library beside CUDA's, got {len(headers)} and {len(libraries)};"
            " install cuda-cupti"
        )
    made, here = folder / "libcuda_calls.so", libraries[0]
    linked = ["-fPIC", f"-Wl,-rpath,{here.parent}"]
    if Path(compiler).name == "nvcc":
        linked = [word for option in linked for word in ("-Xcompiler", f'"{option}"')]
    includes = [f"-I{place}" for place in places if any((place / name).is_file() for name in ("cupti.h", "cuda.h"))]
    command = [compiler, "-shared", "-O2", *linked, *includes, "-o", str(made), str(SOURCE), str(here)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing was written"])[-1]
        raise NotMeasured(f"{NOT_BUILT}{Path(compiler).name} ended with {done.returncode} ({last}); install CUDA again")
    return made


def _places() -> list[Path]:
    """Folders in which CUPTI's header and library may lie, those of CUDA itself first."""
    homes = [os.environ.get("CUDA_HOME", ""), *(f"/usr/local/cuda{end}" for end in ("", "-13", "-13.0"))]
    triton = importlib.util.find_spec("triton")
    of_triton = list(triton.submodule_search_locations or []) if triton else []
    within = [(homes, _IN_CUDA), (sys.path, _IN_WHEELS), (of_triton, _IN_TRITON)]
    found = [Path(root, part) for roots, parts in within for root in roots if root for part in parts]
    return [place for place in found if place.is_dir()]


def _run(command: list[str], library: Path) -> Iterator[None]:
    with tempfile.TemporaryFile("w+") as said:  # no pipe: nobody reads before the end
        began_s = time.monotonic()
        environment = os.environ | {"CUDA_INJECTION64_PATH": str(library)}
        with subprocess.Popen(command, env=environment, stdout=said, stderr=said) as process:
            try:
                while process.poll() is None:
                    if time.monotonic() - began_s > LIMIT_S:
                        raise NotMeasured(f"counting what a step calls of CUDA took more than {LIMIT_S:.0f} s")
                    yield None
                    time.sleep(POLL_S)
            finally:
                process.kill()
        if process.returncode:
            said.seek(0)
            last = (said.read().strip().splitlines() or ["nothing was written"])[-1]
            raise NotMeasured(f"{NOT_BUILT}its process ended with {process.returncode}: {last}")


def steps_of_an_epoch(backend: str, batch_size: int, hidden: str, device: str = "gpu") -> Iterator[str]:
    """Train two epochs; `begins` before the second, `ends` after the last of its steps."""
    rng = np.random.default_rng(0)
    x, y = aligned((N_TRAIN, N_PIXELS), np.float32), rng.integers(0, 10, N_TRAIN, np.int32)
    x[:] = rng.random((1, N_PIXELS), np.float32)
    data = Data(x, y, x[:1000], y[:1000], x[:1000], y[:1000], source="made up", digest="made up")
    training, steps = Training(Network.parse(hidden), 1e-6, batch_size, 2), None
    for event in load_train(backend)(training, data, device):
        if isinstance(event, Epoch):
            steps = 0
            yield "begins"
        elif isinstance(event, Steps) and steps is not None:
            steps += len(event.losses)
            if steps >= N_TRAIN // batch_size:
                yield "ends"
                return


def main(backend: str, batch_size: str, hidden: str, library: str, path: str) -> None:
    """Train, and write the counts."""
    calls = ctypes.CDLL(library)
    for moment in steps_of_an_epoch(backend, int(batch_size), hidden):
        if moment == "begins" and not calls.InitializeInjection():  # which the driver has called already, usually
            raise SystemExit("expected CUPTI to count, but it refuses; end other profilers, or run as root")
        if moment == "begins":
            calls.clear_counts()
        elif calls.write_counts(path.encode()):
            raise SystemExit(f"expected to write {os.path.basename(path)}, and it cannot be written; free the disk")


if __name__ == "__main__":
    main(*sys.argv[1:])
