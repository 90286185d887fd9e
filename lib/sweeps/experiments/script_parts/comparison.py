"""The end of all scripts: whether the curve is the exported one."""

from collections.abc import Callable, Iterator

import numpy as np

from lib.sweeps.experiments.script_parts.settings import DIVERGED_AT, EXPECTED, TOLERANCE

# Validation loss and accuracy of each epoch, and the step in which it diverged.
Curve = tuple[list[tuple[float, float]], int | None]


def loss_and_accuracy(logits: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Mean cross-entropy, and the share of right answers, of logits (n, classes)."""
    logits = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    right = logits[np.arange(len(labels)), labels]
    loss = np.mean(np.log(np.exp(logits).sum(axis=1)) - right)
    return float(loss), float(np.mean(logits.argmax(axis=1) == labels))


def curve_of(
    epochs: Iterator[tuple[np.ndarray, np.ndarray]],
    labels: np.ndarray,
) -> Curve:
    """Print loss and accuracy of each epoch; return them, and where it diverged."""
    curve, steps = [], 0
    print("epoch  training loss  validation loss  accuracy")
    for epoch, (losses, logits) in enumerate(epochs, 1):
        if not np.isfinite(losses).all():
            diverged_at = steps + int(np.argmin(np.isfinite(losses))) + 1
            print(f"{epoch:5}  the loss is no longer a number in step {diverged_at}")
            return curve, diverged_at
        steps += len(losses)
        curve.append(loss_and_accuracy(logits, labels))
        loss, accuracy = curve[-1]
        print(f"{epoch:5}  {losses.mean():13.5f}  {loss:15.5f}  {accuracy:8.2%}")
    return curve, None


def apart(one: Curve, other: Curve) -> np.ndarray:
    """By how much two curves differ: share of the loss, accuracy, steps; (3,)."""
    shared = min(len(one[0]), len(other[0]))
    a = np.array(one[0][:shared]).reshape(shared, 2)
    b = np.array(other[0][:shared]).reshape(shared, 2)
    loss = np.max(np.abs(a[:, 0] / b[:, 0] - 1), initial=0)
    accuracy = np.max(np.abs(a[:, 1] - b[:, 1]), initial=0)
    steps = abs((one[1] or 0) - (other[1] or 0))
    only_one_diverged = (one[1] is None) != (other[1] is None)
    return np.array([loss, accuracy, np.inf if only_one_diverged else steps])


def compare(curve_from: Callable[[int], Curve]) -> int:
    """Say whether the curve is the expected one: exit status 0 if it is, 1 if not.

    Where it is not within the tolerance, this asks what rounding alone does: from a
    start that is off by one rounding error, how far apart do two curves end?
    """
    curve, limits = curve_from(0), np.array(TOLERANCE)
    off = apart(curve, (EXPECTED, DIVERGED_AT))
    if not (off <= limits).all():
        print("Not within the tolerance. Twice more, each weight rounded otherwise:")
        limits = limits + 4 * np.max([apart(curve_from(n), curve) for n in (1, 2)], 0)
    same = bool((off <= limits).all())
    numbers = "{:.2%} of the loss, {:.2%} of accuracy, {:g} steps"
    print("same curve within" if same else "another curve, not within", end=" ")
    print(f"{numbers.format(*limits)}: off by {numbers.format(*off)}")
    return 0 if same else 1
