"""An offline stand-in for MNIST: scikit-learn's 1,797 handwritten digits, enlarged to MNIST's shapes.

Shapes and sizes match MNIST's, so times are valid; the images differ, so accuracies are not comparable. The originals
are split into training and test before they are varied, so variants of one original are never in both.
"""

import numpy as np

N_TRAIN_ORIGINALS = 1_540  # 6/7 of 1,797, as MNIST splits 60,000 from 10,000
MAX_ROTATION_RAD = 0.2
MAX_SHIFT_PIXELS = 2.5
SIDE = 28
_CHUNK = 5_000


def enlarged_digits(
    n_train: int = 60_000,
    n_test: int = 10_000,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Return arrays with MNIST's names, shapes and type (uint8), drawn from the seed."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.asarray(digits.images, np.float32)  # (1797, 8, 8), 0 to 16
    images *= np.float32(255 / 16)
    labels = np.asarray(digits.target, np.uint8)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(images))
    train = rng.choice(order[:N_TRAIN_ORIGINALS], n_train)
    test = rng.choice(order[N_TRAIN_ORIGINALS:], n_test)
    return {
        "x_train": vary(images, train, rng),
        "y_train": labels[train],
        "x_test": vary(images, test, rng),
        "y_test": labels[test],
    }


def vary(
    images: np.ndarray,
    picked: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Enlarge each picked 8×8 image to 20×20 of 28×28 pixels, slightly rotated and shifted; uint8 (n, 28, 28)."""
    result = np.empty((len(picked), SIDE, SIDE), np.uint8)
    # In chunks, because the coordinates of 60,000 images would take 1 GB.
    for first in range(0, len(picked), _CHUNK):
        part = picked[first : first + _CHUNK]
        angle = rng.uniform(-MAX_ROTATION_RAD, MAX_ROTATION_RAD, len(part))
        shift = rng.uniform(-MAX_SHIFT_PIXELS, MAX_SHIFT_PIXELS, (len(part), 2))
        result[first : first + len(part)] = _sample(images, part, angle, shift)
    return result


def _sample(
    images: np.ndarray,
    part: np.ndarray,
    angle: np.ndarray,
    shift: np.ndarray,
) -> np.ndarray:
    """Sample the originals bilinearly on the rotated and shifted grid; uint8 (n, 28, 28)."""
    centre = (SIDE - 1) / 2
    grid = np.arange(SIDE) - centre
    row, column = np.meshgrid(grid, grid, indexing="ij")  # (28, 28)
    cos, sin = np.cos(angle)[:, None, None], np.sin(angle)[:, None, None]
    scale = 8 / 20  # MNIST's digits fill 20×20 of 28×28 pixels; the originals are 8×8
    y = (cos * row - sin * column - shift[:, :1, None]) * scale + 3.5  # (n, 28, 28)
    x = (sin * row + cos * column - shift[:, 1:, None]) * scale + 3.5
    padded = np.pad(images, ((0, 0), (2, 2), (2, 2)))  # background outside
    y, x = np.clip(y + 2, 0, 10.999), np.clip(x + 2, 0, 10.999)
    top, left = y.astype(np.intp), x.astype(np.intp)
    down, right = (y - top).astype(np.float32), (x - left).astype(np.float32)
    which = part[:, None, None]
    upper = padded[which, top, left] * (1 - right)
    upper += padded[which, top, left + 1] * right
    lower = padded[which, top + 1, left] * (1 - right)
    lower += padded[which, top + 1, left + 1] * right
    mixed = upper * (1 - down) + lower * down
    return np.clip(np.rint(mixed), 0, 255).astype(np.uint8)
