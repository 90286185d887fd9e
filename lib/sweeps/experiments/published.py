"""Figures quoted from the articles, with their sources; none is measured here."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from lib import ROOT

OVERHEAD_ARTICLE = "GPU overhead: why our MNIST model trains faster on CPU"
MACHINES_ARTICLE = "Why a bigger GPU is not always faster"
OPERATIONS_ARTICLE = "GPU vs CPU: Matmul, Sine Waves, and the Myth of Speed"
# On input pipelines and on creating models; without figures.
SLOWER_ARTICLE = "Keras Tensorflow backend slower on GPU than on CPU when training certain networks"
CREATING_ARTICLE = "Why is TensorFlow GPU slower than CPU when creating and training models?"
ADDRESSES = {
    OVERHEAD_ARTICLE: "https://indepth.dev/posts/2006/en/gpu-overhead-why-mnist-trains-faster-on-cpu",
    MACHINES_ARTICLE: "https://indepth.dev/posts/1016/en/why-bigger-gpu-not-always-faster",
    OPERATIONS_ARTICLE: "https://allenphilip93.github.io/blog/gpu-faster-than-cpu-right",
}

FILE = ROOT / "recorded" / "published.json"


@dataclass(frozen=True)
class PublishedMachine:
    """A machine in the articles. Seconds are by (backend, device), then by batch size or experiment."""

    name: str
    source: str
    epoch_s: Mapping[tuple[str, str], Mapping[int, float]]
    experiment_s: Mapping[tuple[str, str], Mapping[str, float]]


def _machine(row: dict) -> PublishedMachine:
    epochs, experiments = (
        {tuple(runtime.split("/")): figures for runtime, figures in row[table].items()}
        for table in ("epoch_s", "experiment_s")
    )
    by_size = {runtime: {int(size): s for size, s in figures.items()} for runtime, figures in epochs.items()}
    return PublishedMachine(row["name"], row["source"], by_size, experiments)


MACHINES = tuple(_machine(row) for row in json.loads(FILE.read_text())["machines"])
# Seconds per epoch of 784→128→10 by backend and batch size, on the first article's workstation (its table).
EPOCH_S = MACHINES[0].epoch_s

# Seconds per operation of one step at batch size 32, synchronized after each: NumPy on the CPU, TensorFlow on the GPU.
OPERATION_S = MappingProxyType(
    {
        "forward: hidden layer": (162e-6, 541e-6),
        "forward: ReLU": (9e-6, 173e-6),
        "forward: output layer": (19e-6, 478e-6),
        "softmax and loss": (30e-6, 780e-6),
        "backward": (188e-6, 1271e-6),
        "update": (345e-6, 1204e-6),
        "total": (751e-6, 4447e-6),
    }
)
LAUNCH_S = (5e-6, 15e-6)  # of a kernel on a GPU
BATCH_TRANSFER = (100e3, 32e9, (10, 20))  # bytes, bytes per second, and setup time as a multiple of transfer time
PRODUCT_TRANSFER_SHARE = 0.5  # of large products on an A100, the third article
SINE_S = (100e-6, 50e-6)  # four nested sines on an A100: four kernels, and compiled into one; the third article
PRODUCT_S = (272e-6, 109e-6)  # X @ W1 alone: CPU, GPU
COMPILED_S = (1.30e-3, 1.27e-3)  # one compiled training step: CPU, GPU

# CUDA calls in one epoch of Keras on TensorFlow, counted by Nsight Systems: call, kind, number, total seconds.
# The epoch of 6.5 s includes validation: its 1,875 graph launches are 1,500 steps and 375 validation batches.
CUDA_CALLS = (
    ("cuCtxSetCurrent", "launch", 98_168, 0.87),
    ("cuEventRecord", "launch", 22_786, 0.57),
    ("cuMemcpyDtoHAsync", "transfer", 6_144, 0.56),
    ("cuMemcpyHtoDAsync", "transfer", 5_678, 0.27),
    ("cuGraphLaunch", "launch", 1_875, 0.16),
    ("cuLaunchKernel", "launch", 1_080, 0.02),
)
CUDA_EPOCH_S, CUDA_OVERHEAD_S = 6.5, 2.7
CPU_EPOCH_S = 4.4  # the same on the CPU, from the text; the table says 11.31
CUPY_EPOCH_S = 443 / 5  # NumPy's training run by CuPy on the GPU, image by image: 443 s for five epochs

ARTICLE_ARCHITECTURES = ("128", "256", "128→64", "256→128→64")  # the depth experiment's

# Seconds of the second article's three experiments: NVIDIA L4 (g2-standard-4) and 22 cores (c3-highcpu-22).
_ON_L4, _ON_22_CORES = (next(iter(machine.experiment_s.values())) for machine in MACHINES[1:])
EXPERIMENT_S = MappingProxyType({name: (_ON_L4[name], _ON_22_CORES[name]) for name in _ON_L4})


def epoch_s(backend: str, device: str, batch_size: int) -> float | None:
    """Return the first article's seconds per epoch of 784→128→10; None if it has no figure for this combination."""
    return EPOCH_S.get((backend, device), {}).get(batch_size)


# Speedup over sequential Keras: five learning rates for ten epochs on eight cores.
SWEEP_TIMES_FASTER = MappingProxyType({"keras-processes": 4.0, "vmap": 6.0})
SWEEP_S = (28.0, 5.0)  # the learning-rate experiment before and after; the article says “under” 5
