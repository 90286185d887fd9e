"""The sentences of the four experiments. Each is computed from the rows, and states only what they show."""

import numpy as np

from lib.experiments.mnist_training import Experiment
from lib.experiments.published import EXPERIMENT_S
from lib.experiments.results import Line, Results
from lib.formatting import listed, percent, seconds
from lib.spec import MAX_RATE, MNIST
from lib.workers.notes import State


def sentence(experiment: Experiment, results: Results, target: float = 0.95) -> str:
    """The run's result in words, or why it failed; empty while it is running.

    Args:
        experiment: What was trained.
        results: Of its run.
        target: Validation accuracy, 0 to 1, for the experiment on batch sizes.
    """
    if results.state is State.FAILED:
        return results.failure
    done = [(results.labels[i], results.lines[i]) for i in experiment.compared if results.lines[i].curve is not None]
    if results.state is State.STOPPED:
        return f"Stopped: {len(done)} of {experiment.n_compared} trainings were finished and are saved."
    if not results.over or not done:
        return ""
    tell = {"learning-rate": _tell_rates, "batch-size": _tell_sizes, "depth": _tell_depths, "backend": _tell_backends}
    text = tell[experiment.name](done, target)
    return f"{text} {_tell_wait(experiment, results)}".strip()


def _tell_rates(done: list[tuple[str, Line]], _target: float) -> str:
    learnt = [
        (label, line)
        for label, line in done
        if line.diverged_step is None and (line.accuracy or 0) > line.item.training.data.chance
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
        elif (line.accuracy or 0) <= (data := line.item.training.data).chance:
            blind = "guessing gives 10\u202f%" if data == MNIST else "always saying the most common class gives no less"
            parts.append(f"{label} did not learn: {percent(line.accuracy or 0)}, and {blind}.")
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
        short = 100 * (target - (best[1].accuracy or 0))
        nearly = f" ({short:.2f} points short)" if percent(best[1].accuracy or 0) == percent(target) else ""
        return f"{text} None reached {percent(target)}{nearly}; more epochs or a larger learning rate would."
    label, spent = min(reached, key=lambda pair: pair[1])
    text += f" To {percent(target)} the quickest was batch size {label}, in {seconds(spent)}"
    missed = [label for label, line in done if seconds_to(line, target) is None]
    return text + (f"; {listed(missed)} did not reach it." if missed else ".")


def _tell_depths(done: list[tuple[str, Line]], _target: float) -> str:
    ok = [(label, line) for label, line in done if line.diverged_step is None] or done
    best = max(ok, key=lambda pair: pair[1].accuracy or 0)
    quickest = min(ok, key=lambda pair: pair[1].train_s)
    text = (
        f"{best[0]} was best: {percent(best[1].accuracy or 0)} with"
        f" {best[1].item.training.network.n_parameters:,} parameters in {seconds(best[1].train_s)}."
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
        f"The same training, the same accuracy ({percent(min(accuracies))} to {percent(max(accuracies))}):"
        f" {first} takes {seconds(float(fast_s))} per epoch, {last} {seconds(float(slow_s))},"
        f" {slow_s / fast_s:.1f} times as long."
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
        f"{chosen[0].item.runtime.label} took {seconds(chosen_s)} for what {usual[0].item.runtime.label} does in"
        f" {seconds(usual_s)}: {chosen_s / usual_s:.1f} times as long."
    )


def seconds_to(line: Line, target: float) -> float | None:
    """Seconds of training and evaluation until the validation accuracy first reached the target; None if it did not.

    The accuracy is evaluated only at the end of an epoch, so this is an upper bound. Evaluation counts, model creation
    does not (MLPerf's rule).
    """
    spent_s = 0.0
    for epoch in line.epochs:
        spent_s += epoch.train_s + epoch.evaluation_s
        if epoch.validation_accuracy >= target:
            return spent_s
    return None


def published_note(name: str) -> str:
    """The articles' own seconds for an experiment's default settings; empty where they have none."""
    if name not in EXPERIMENT_S:
        return ""
    gpu_s, cpu_s = EXPERIMENT_S[name]
    return f"Published: {gpu_s:.0f}\u202fs on an NVIDIA L4, {cpu_s:.0f}\u202fs on 22 cores, with Keras on TensorFlow."


def _epochs(line: Line) -> str:
    n = len(line.epochs)
    return f"{n} epoch{'s' if n != 1 else ''}"
