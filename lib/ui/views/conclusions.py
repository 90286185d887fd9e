"""What each of the four experiments shows, in words, computed only from its rows.

Each function takes the label and the training of each finished line, at least one, and the target accuracy, 0 to 1.
The imports are light, because this also runs in readers' browsers.
"""

from collections.abc import Sequence

import numpy as np

from lib.formatting import counted, listed, percent, seconds
from lib.model.spec import CHANCE_ACCURACY, MAX_RATE
from lib.sweeps.experiments.lines import TrainedEpochs


def best_rate(done: Sequence[tuple[str, TrainedEpochs]], _target: float) -> str:
    learnt = [
        (label, line)
        for label, line in done
        if line.diverged_step is None and (line.accuracy or 0) > line.training.data.chance
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
            parts.append(f"{label} diverged: its loss stopped being a number at step {line.diverged_step:,}.")
        elif (line.accuracy or 0) <= (data := line.training.data).chance:
            blind = (
                "guessing gives 10\u202f%"
                if data.chance == CHANCE_ACCURACY
                else "always picking the most common class does no worse"
            )
            parts.append(f"{label} did not learn: {percent(line.accuracy or 0)}, while {blind}.")
    if best is not None and done[-1][1] is best and best.training.learning_rate < MAX_RATE:
        parts.append("The best is at the upper end: try larger rates.")
    return " ".join(parts)


def first_to_the_target(done: Sequence[tuple[str, TrainedEpochs]], target: float) -> str:
    fastest = min(done, key=lambda pair: np.median(pair[1].epoch_s))
    best = max(done, key=lambda pair: pair[1].accuracy or 0)
    text = (
        f"Batch size {fastest[0]} had the fastest epochs ({seconds(float(np.median(fastest[1].epoch_s)))}), "
        f"batch size {best[0]} the highest accuracy ({percent(best[1].accuracy or 0)} after {_epochs(best[1])})."
    )
    reached = [(label, spent) for label, line in done if (spent := line.seconds_to(target)) is not None]
    if not reached:
        short = 100 * (target - (best[1].accuracy or 0))
        nearly = f" ({short:.2f} points short)" if percent(best[1].accuracy or 0) == percent(target) else ""
        return f"{text} None reached {percent(target)}{nearly}; try more epochs or a larger learning rate."
    label, spent = min(reached, key=lambda pair: pair[1])
    text += f" Batch size {label} was quickest to {percent(target)}, in {seconds(spent)}"
    missed = [label for label, line in done if line.seconds_to(target) is None]
    return text + (f"; {listed(missed)} did not reach it." if missed else ".")


def best_network(done: Sequence[tuple[str, TrainedEpochs]], _target: float) -> str:
    ok = [(label, line) for label, line in done if line.diverged_step is None] or done
    best = max(ok, key=lambda pair: pair[1].accuracy or 0)
    quickest = min(ok, key=lambda pair: pair[1].train_s)
    text = (
        f"{best[0]} was best: {percent(best[1].accuracy or 0)} with"
        f" {best[1].training.network.n_parameters:,} parameters in {seconds(best[1].train_s)}."
    )
    if quickest[0] != best[0]:
        ends = best[1].accuracy or 0, quickest[1].accuracy or 0
        gap, by_chance = ends[0] - ends[1], best[1].training.data.gap_by_chance(*ends)
        text += (
            f" {quickest[0]} was {best[1].train_s / quickest[1].train_s:.1f} times faster and {100 * gap:.1f} points"
            " behind" + ("; one seed cannot tell such a gap from chance." if gap <= by_chance else ".")
        )
    diverged = [label for label, line in done if line.diverged_step is not None]
    return text + (f" {listed(diverged)} diverged." if diverged else "")


def fastest_backend(done: Sequence[tuple[str, TrainedEpochs]], _target: float) -> str:
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


def _epochs(line: TrainedEpochs) -> str:
    return counted(len(line.epochs), "epoch")
