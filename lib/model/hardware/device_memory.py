"""How much memory a training may use: a processor's is the machine's, a graphics card's is its own."""

import os

from lib.model.hardware.nvidia_smi import cards
from lib.model.hardware.optional import free_memory_bytes

JAX_SHARE = 0.75  # of a card's memory, which JAX takes at most (JAX, GPU memory allocation)


def usable_memory_bytes(device: str) -> int:
    """Bytes that a training can use: on a CPU what is free now, on a GPU what JAX may have of the smallest card.

    Of a card it is not what is free now: the workers keep what they once had, and use it again. Where the driver does
    not tell a card's memory, the machine's has to stand for it.

    Args:
        device: "cpu" or "gpu".
    """
    on_card = min((card.memory_bytes for card in cards() if card.memory_bytes), default=0) if device == "gpu" else 0
    return int(_jax_share() * on_card) or free_memory_bytes()


def _jax_share() -> float:
    try:
        return float(os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"])
    except (KeyError, ValueError):
        return JAX_SHARE
