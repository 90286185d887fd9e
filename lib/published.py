"""Figures that the articles published, quoted with their source and never measured here."""

from types import MappingProxyType

OVERHEAD_ARTICLE = "GPU overhead: why our MNIST model trains faster on CPU"
MACHINES_ARTICLE = "Why a bigger GPU is not always faster"
WORKSTATION = "Core i9-10885H, Quadro RTX 5000"

# Seconds an epoch of 784→128→10 by backend and batch size: the first article's table, on its workstation.
EPOCH_S = MappingProxyType(
    {
        ("keras-tensorflow", "gpu"): {32: 6.26, 128: 2.74, 512: 2.64, 1024: 2.47, 2048: 2.32, 4096: 2.32},
        ("keras-tensorflow", "cpu"): {32: 11.31, 128: 2.21, 512: 1.80, 1024: 1.43, 2048: 1.42, 4096: 1.39},
        ("numpy", "cpu"): {32: 2.71, 128: 4.70, 512: 1.30, 1024: 0.87, 2048: 0.84, 4096: 1.03},
        ("jax-step", "cpu"): {32: 2.37, 128: 1.03, 512: 0.64, 1024: 0.63, 2048: 0.48, 4096: 0.14},
    }
)

# Seconds of one step's operations at batch size 32: NumPy on the processor, TensorFlow on the card, waited for one by one.
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
PRODUCT_S = (272e-6, 109e-6)  # X @ W1 alone: processor, card
COMPILED_S = (1.30e-3, 1.27e-3)  # one compiled training step: processor, card

ARTICLE_ARCHITECTURES = ("128", "256", "128→64", "256→128→64")  # of its depth experiment

# Seconds of the second article's three experiments: NVIDIA L4 (g2-standard-4) and 22 cores (c3-highcpu-22).
EXPERIMENT_S = MappingProxyType({"learning-rate": (63.0, 28.0), "batch-size": (423.0, 164.0), "depth": (76.0, 31.0)})


def epoch_s(backend: str, device: str, batch_size: int) -> float | None:
    """The published seconds an epoch, where the article has this batch size."""
    return EPOCH_S.get((backend, device), {}).get(batch_size)


# Five learning rates for ten epochs on eight cores: how many times faster than Keras one after another, and the seconds it speaks of.
SWEEP_TIMES_FASTER = MappingProxyType({"keras-processes": 4.0, "vmap": 6.0})
SWEEP_S = (28.0, 5.0)  # of the learning-rate experiment, before and “under” after
