"""The four experiments of the notebook: from the values of the controls to trainings, and from rows to a sentence.

Knows nothing of marimo: the notebook, the script and the benchmarks all use these functions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lib.backends.registry import BACKENDS, DEFAULT, Way, all_ways, unavailable
from lib.formatting import format_rate, listed, percent, seconds
from lib.experiments.published import EXPERIMENT_S
from lib.spec import CHANCE_ACCURACY
from lib.experiments.results import Line, Results
from lib.workers.notes import State
from lib.spec import Network, Training
from lib.sweeps.strategies import AUTO
from lib.sweeps.events import Item

MIN_RATE, MAX_RATE = 1e-4, 10.0
RATE_STEPS = tuple(float(f"{digit}e{power}") for power in range(-4, 1) for digit in (1, 2, 5)) + (10.0,)
BATCH_SIZES = (1, 8, 32, 128, 256, 512, 1024, 2048, 4096)
MAX_LINES = 16


@dataclass(frozen=True)
class Experiment:
    """What is trained, how each line is called, and what the lines differ in (for the charts)."""

    name: str
    items: tuple[Item, ...]
    labels: tuple[str, ...]
    ordered_by: str
    n_compared: int  # the lines after these are the same trainings by the default way, for their seconds
    strategy: str = "sequential"  # of the sweep: where seconds are shown side by side, each is trained by itself

    @property
    def compared(self) -> range:
        return range(self.n_compared)


def rates_between(low: float, high: float, count: int) -> tuple[float, ...]:
    """`count` learning rates evenly spaced on a log scale, to two digits; ends included.

    >>> rates_between(0.001, 1, 4)
    (0.001, 0.01, 0.1, 1.0)
    """
    if not MIN_RATE <= low <= high <= MAX_RATE:
        raise ValueError(
            f"learning rates: expected {MIN_RATE:g} to {MAX_RATE:g}, got {low:g} to {high:g}; move the range inside"
        )
    if not 2 <= count <= MAX_LINES:
        raise ValueError(f"number of learning rates: expected 2 to {MAX_LINES}, got {count}; choose one in between")
    if low == high:
        raise ValueError(f"learning rates: expected a range, got only {low:g}; move the two ends of the slider apart")
    return tuple(dict.fromkeys(float(f"{rate:.2g}") for rate in np.geomspace(low, high, count)))


def learning_rate(
    rates: Sequence[float], epochs: int, batch_size: int, hidden: str, backend: str = DEFAULT
) -> Experiment:
    network = Network.parse(hidden)
    trainings = [Training(network, rate, batch_size, epochs) for rate in rates]
    return _experiment(
        "learning-rate", trainings, [format_rate(rate) for rate in rates], "learning rate", backend, AUTO
    )


def batch_size(sizes: Sequence[int], epochs: int, rate: float, hidden: str, backend: str = DEFAULT) -> Experiment:
    if not sizes:
        raise ValueError("batch sizes: expected at least one, got none; choose some from the list")
    network = Network.parse(hidden)
    trainings = [Training(network, rate, size, epochs) for size in sorted(set(sizes))]
    return _experiment("batch-size", trainings, [f"{t.batch_size}" for t in trainings], "batch size", backend)


def depth(chosen: Sequence[str], own: str, epochs: int, rate: float, size: int, backend: str = DEFAULT) -> Experiment:
    """`own` holds further architectures as `parse_networks` reads them."""
    networks = list(dict.fromkeys([*map(Network.parse, chosen), *parse_networks(own)]))
    if not networks:
        raise ValueError(
            "hidden layers: expected at least one network, got none; choose one or write its widths, such as 256, 128, 64"
        )
    if len(networks) > MAX_LINES:
        raise ValueError(f"networks: expected at most {MAX_LINES}, got {len(networks)}; remove some")
    trainings = [Training(network, rate, size, epochs) for network in networks]
    return _experiment("depth", trainings, [network.label for network in networks], "hidden layers", backend)


def parse_networks(text: str) -> list[Network]:
    """Networks separated by semicolons; `none` is the one without a hidden layer.

    >>> [network.hidden for network in parse_networks("256, 64; none")]
    [(256, 64), ()]
    """
    parts = [part.strip() for part in text.split(";") if part.strip()]
    return [Network.parse("" if part.lower() == "none" else part) for part in parts]


def backends(size: int, epochs: int, rate: float, hidden: str) -> Experiment:
    """The same training by every way that can run here."""
    training = Training(Network.parse(hidden), rate, size, epochs)
    ways = [way for way in all_ways() if unavailable(way) is None and BACKENDS[way.backend].whole_epochs]
    items = tuple(Item(training, way) for way in ways)
    return Experiment("backend", items, tuple(way.label for way in ways), "backend", len(items))


def missing_backends() -> list[tuple[Way, str, str]]:
    """The ways that cannot run here, each with the reason and the remedy."""
    return [(way, gap.reason, gap.remedy) for way in all_ways() if (gap := unavailable(way)) is not None]


def _experiment(
    name: str, trainings: list[Training], labels: list[str], ordered_by: str, backend: str, strategy: str = "sequential"
) -> Experiment:
    if len(labels) != len(set(labels)):
        raise ValueError(f"{ordered_by}: expected different values, got {', '.join(labels)}; widen the range")
    way = Way(backend)
    if (gap := unavailable(way)) is not None:
        raise ValueError(f"{way.label} cannot run here: {gap.reason}; {gap.remedy}, or choose another backend")
    items = tuple(Item(training, way) for training in trainings)
    if backend != DEFAULT:  # the same trainings by the default way, for the seconds side by side
        items += tuple(Item(training, Way()) for training in trainings)
        labels = labels + [f"{label} ({BACKENDS[DEFAULT].label})" for label in labels]
        strategy = "sequential"
    return Experiment(name, items, tuple(labels), ordered_by, len(trainings), strategy)


# Sentences. Each is computed from the rows, and says only what they show.


def _finished(experiment: Experiment, results: Results) -> list[tuple[str, Line]]:
    lines = [(results.labels[i], results.lines[i]) for i in experiment.compared]
    return [(label, line) for label, line in lines if line.curve is not None]


def sentence(experiment: Experiment, results: Results, target: float = 0.95) -> str:
    """What the run showed, in words; empty while it is running."""
    if results.state is State.FAILED:
        return results.failure
    done = _finished(experiment, results)
    if results.state is State.STOPPED:
        return f"Stopped: {len(done)} of {experiment.n_compared} trainings were finished and are kept."
    if not results.over or not done:
        return ""
    tell = {"learning-rate": _tell_rates, "batch-size": _tell_sizes, "depth": _tell_depths, "backend": _tell_backends}
    text = tell[experiment.name](done, target)
    return f"{text} {_tell_wait(experiment, results)}".strip()


def _tell_rates(done: list[tuple[str, Line]], _target: float) -> str:
    learnt = [
        (label, line) for label, line in done if line.diverged_step is None and (line.accuracy or 0) > CHANCE_ACCURACY
    ]
    parts, best = [], None
    if learnt:
        label, best = max(learnt, key=lambda pair: pair[1].accuracy or 0)
        total_s = sum(line.train_s for _, line in done)
        parts.append(
            f"Learning rate {label} was best: {percent(best.accuracy or 0)} after {_epochs(best)}; "
            f"all {len(done)} trainings together took {seconds(total_s)}."
        )
    for label, line in done:
        if line.diverged_step is not None:
            parts.append(f"{label} diverged: its loss was no longer a number in step {line.diverged_step:,}.")
        elif (line.accuracy or 0) <= CHANCE_ACCURACY:
            parts.append(f"{label} did not learn: {percent(line.accuracy or 0)}, and guessing gives 10\u202f%.")
    if best is not None and done[-1][1] is best and best.item.training.learning_rate < MAX_RATE:
        parts.append("The best is at the upper end: try larger rates.")
    return " ".join(parts)


def _tell_sizes(done: list[tuple[str, Line]], target: float) -> str:
    fastest = min(done, key=lambda pair: np.median(pair[1].epoch_s))
    best = max(done, key=lambda pair: pair[1].accuracy or 0)
    text = (
        f"Batch size {fastest[0]} had the fastest epochs ({seconds(float(np.median(fastest[1].epoch_s)))}), "
        f"batch size {best[0]} the highest accuracy ({percent(best[1].accuracy or 0)} after {_epochs(best[1])})."
    )
    reached = [(label, spent) for label, line in done if (spent := seconds_to(line, target)) is not None]
    if not reached:
        return f"{text} None reached {percent(target)}; more epochs or a larger learning rate would."
    label, spent = min(reached, key=lambda pair: pair[1])
    text += f" To {percent(target)} the quickest was batch size {label}, in {seconds(spent)}"
    missed = [label for label, line in done if seconds_to(line, target) is None]
    return text + (f"; {listed(missed)} did not reach it." if missed else ".")


def _tell_depths(done: list[tuple[str, Line]], _target: float) -> str:
    ok = [(label, line) for label, line in done if line.diverged_step is None] or done
    best = max(ok, key=lambda pair: pair[1].accuracy or 0)
    quickest = min(ok, key=lambda pair: pair[1].train_s)
    text = (
        f"{best[0]} was best: {percent(best[1].accuracy or 0)} with {best[1].item.training.network.n_parameters:,} parameters "
        f"in {seconds(best[1].train_s)}."
    )
    if quickest[0] != best[0]:
        gap = 100 * ((best[1].accuracy or 0) - (quickest[1].accuracy or 0))
        text += (
            f" {quickest[0]} was {best[1].train_s / quickest[1].train_s:.1f} times faster and {gap:.1f} points behind"
            + ("; one seed cannot tell such a gap from chance." if gap < 0.5 else ".")
        )
    diverged = [label for label, line in done if line.diverged_step is not None]
    return text + (f" {listed(diverged)} diverged." if diverged else "")


def _tell_backends(done: list[tuple[str, Line]], _target: float) -> str:
    ranked = sorted(done, key=lambda pair: np.median(pair[1].epoch_s))
    (first, fast), (last, slow) = ranked[0], ranked[-1]
    fast_s, slow_s = np.median(fast.epoch_s), np.median(slow.epoch_s)
    if first == last:
        return f"{first}: {seconds(float(fast_s))} per epoch."
    accuracies = [line.accuracy or 0 for _, line in done]
    return (
        f"The same training, the same accuracy ({percent(min(accuracies))} to {percent(max(accuracies))}): {first} takes "
        f"{seconds(float(fast_s))} per epoch, {last} {seconds(float(slow_s))}, {slow_s / fast_s:.1f} times as long."
    )


def _tell_wait(experiment: Experiment, results: Results) -> str:
    """The chosen backend's seconds beside the default's, where another than the default was chosen."""
    if len(results.lines) == experiment.n_compared:
        return ""
    chosen, usual = results.lines[: experiment.n_compared], results.lines[experiment.n_compared :]
    if any(line.curve is None for line in usual):
        return ""
    chosen_s, usual_s = sum(line.train_s for line in chosen), sum(line.train_s for line in usual)
    return (
        f"{chosen[0].item.way.label} took {seconds(chosen_s)} for what {usual[0].item.way.label} does in {seconds(usual_s)}: "
        f"{chosen_s / usual_s:.1f} times as long."
    )


def seconds_to(line: Line, target: float) -> float | None:
    """Seconds of training and evaluation until the validation accuracy first reached the target; None if it did not.

    Seen only at the end of an epoch, so it is an upper bound. Evaluation counts, model creation does not (MLPerf's rule).
    """
    spent_s = 0.0
    for epoch in line.epochs:
        spent_s += epoch.train_s + epoch.evaluation_s
        if epoch.validation_accuracy >= target:
            return spent_s
    return None


def published_note(name: str) -> str:
    """The articles' own seconds for an experiment's default settings."""
    if name not in EXPERIMENT_S:
        return ""
    gpu_s, cpu_s = EXPERIMENT_S[name]
    return f"Published: {gpu_s:.0f}\u202fs on an NVIDIA L4, {cpu_s:.0f}\u202fs on 22 cores, with Keras on TensorFlow."


def _epochs(line: Line) -> str:
    n = len(line.epochs)
    return f"{n} epoch{'s' if n != 1 else ''}"
