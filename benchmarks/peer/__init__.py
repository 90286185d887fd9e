"""The participants of the benchmark `peers`: our backends and other people's, in one table.

Each trains by the contract of `lib.model.backends.base`, in a process of its own (`process.py` asks, `__main__.py`
answers).
This module imports none of the libraries.
"""

import importlib.util
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType

from lib.model.backends.registry import BACKENDS, COMPILERS, Unavailable


@dataclass(frozen=True)
class Peer:
    """One participant: the function that trains, and what it needs."""

    key: str
    label: str
    module: str
    function: str
    needs: tuple[str, ...]  # modules that must be installed
    ours: bool = False
    programs: tuple[str, ...] = ()  # one of these must be there: the library compiles at run time
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def versions(self) -> str:
        """Of the libraries that its seconds depend on, without importing them."""
        found = []
        for name in self.needs:
            for package in (name, {"sklearn": "scikit-learn"}.get(name, f"{name}-cpu")):
                try:
                    found.append(f"{name} {version(package)}")
                    break
                except PackageNotFoundError:
                    continue
        return ", ".join(found)


def _keras(backend: str, label: str, needs: tuple[str, ...]) -> list[Peer]:
    """The articles' form, and the quickest that Keras documents."""
    known = BACKENDS.get(f"keras-{backend}")
    environment = {"KERAS_BACKEND": backend} | dict(known.environment if known else {})
    forms = (("", "", "train"), ("-quickest", ", quickest form", "train_quickest"))
    return [
        Peer(
            f"keras-{backend}{key}",
            label + words,
            "benchmarks.peer.with_keras",
            function,
            needs,
            environment=environment,
        )
        for key, words, function in forms
    ]


_OURS = [
    Peer(b.key, b.label, f"lib.model.backends.{b.module}", b.function, b.needs, ours=True, environment=b.environment)
    for b in BACKENDS.values()
    # The others train as other people's users do, or for minutes an epoch.
    if b.module in ("with_numpy", "with_numba", "with_jax") and b.whole_epochs
]

PEERS: Mapping[str, Peer] = MappingProxyType(
    {
        peer.key: peer
        for peer in (
            *_OURS,
            *_keras("tensorflow", "Keras on TensorFlow", ("keras", "tensorflow")),
            *_keras("jax", "Keras on JAX", ("keras", "jax")),
            *_keras("torch", "Keras on PyTorch", ("keras", "torch")),
            Peer("torch-eager", "PyTorch, eager", "lib.model.backends.with_torch", "train", ("torch",)),
            Peer(
                "torch-compiled",
                "PyTorch, compiled model",
                "benchmarks.peer.with_torch",
                "train_compiled",
                ("torch",),
                programs=COMPILERS,
            ),
            Peer(
                "torch-step",
                "PyTorch, compiled step",
                "lib.model.backends.with_torch",
                "train_compiled",
                ("torch",),
                programs=COMPILERS,
            ),
            Peer("numba-dense", "Numba, dense", "benchmarks.peer.with_numba_dense", "train", ("numba", "scipy")),
            Peer("sklearn", "scikit-learn", "benchmarks.peer.with_sklearn", "train", ("sklearn",)),
            Peer("flax", "Flax and Optax", "benchmarks.peer.with_flax", "train", ("flax", "optax")),
            Peer(
                "tinygrad",
                "tinygrad",
                "benchmarks.peer.with_tinygrad",
                "train",
                ("tinygrad",),
                programs=("clang",),
                environment={"DEV": "CPU"},
            ),
        )
    }
)


def unavailable(peer: Peer) -> Unavailable | None:
    """None where the peer can run here. Looks for modules without importing them."""
    missing = [name for name in peer.needs if importlib.util.find_spec(name) is None]
    if missing:
        return Unavailable(f"{', '.join(missing)} is not installed", "make bench BENCH=peers, which installs it")
    if peer.programs and not any(map(shutil.which, peer.programs)):
        return Unavailable(f"it compiles with {' or '.join(peer.programs)}, which is not installed", "install one")
    return None
