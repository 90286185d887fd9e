"""Data that a reader brings to the first notebook: reading them, and whether they change what MNIST's results say."""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lib.formatting import listed
from lib.model.backends.registry import Runtime, unsuited, versions
from lib.model.data.mnist import Facts
from lib.model.data.prepared import Prepared
from lib.model.spec import MNIST, Network, Training
from lib.sweeps.experiments.lines import epoch_s
from lib.sweeps.experiments.mnist_training import Experiment
from lib.sweeps.experiments.results import Results
from lib.sweeps.storage.records import Curve, Key
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import read
from lib.sweeps.workers.messages import Item, Note, TrainingFailed
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.comparison import Verdict, compared


def bring(
    files: Sequence[tuple[str, bytes | Path]],
    built_in: str,
    label: str,
    cancel: Cancel,
    request: Request | None = None,
    niceness: int = 0,
) -> Iterator[Prepared | Note]:
    """Read what was brought, or a set of scikit-learn's, in a process of its own, and save it ready to be trained on.

    Args:
        files: Name, and content or path, of each file.
        built_in: Name of scikit-learn's set, where there are no files.
        label: The column of labels of a table; empty to have it guessed.
        cancel: Ends the reading.
        request: For whom; None: a viewer of its own.
        niceness: Of the process, above this one's.

    Raises:
        TrainingFailed: It cannot be trained on; the text says why.
    """
    what = listed([name for name, _ in files]) if files else built_in.replace("_", " ")
    with tempfile.TemporaryDirectory(prefix="own-") as folder:
        named = []
        for number, (name, content) in enumerate(files):
            path = content if isinstance(content, Path) else Path(folder) / str(number)
            if not isinstance(content, Path):
                path.write_bytes(content)
            named.append((name, str(path)))
        try:
            found = yield from read(
                "lib.model.data.reading",
                named,
                built_in,
                label,
                cancel=cancel,
                request=request,
                niceness=niceness,
                doing=f"reading {what}",
            )
        except TrainingFailed as why:
            raise TrainingFailed(f"{what} cannot be trained on: {why}.") from None
        if isinstance(found, Prepared):
            yield found


def on(own: Prepared | None, training: Training) -> Training:
    """The same training on these data; as it is where there are none.

    Raises:
        ValueError: Its batch size is larger than the data.
    """
    if own is None:
        return training
    return replace(training, network=own.network(training.network.hidden), data=own.data_set)


def experiment_on(own: Prepared | None, experiment: Experiment) -> Experiment:
    """The same experiment on these data, without the lines of runtimes that they do not suit; as it is where there are
    none.

    Raises:
        ValueError: As `on`; or the data suit none of the runtimes that are compared.
    """
    moved = replace(experiment, items=tuple(Item(on(own, one.training), one.runtime) for one in experiment.items))
    gaps = not_used(own, [item.runtime for item in moved.items])
    kept = moved.kept(lambda item: item.runtime not in {runtime for runtime, _, _ in gaps})
    if own is not None and not kept.n_compared:
        runtime, reason, remedy = gaps[0]
        raise ValueError(f"“{runtime.label}” is not used on {own.about.name}: {reason}; {remedy}")
    return kept


def not_used(own: Prepared | None, runtimes: Iterable[Runtime]) -> list[tuple[Runtime, str, str]]:
    zeros = own.about.zeros if own is not None else None
    return [(one, gap.reason, gap.remedy) for one in dict.fromkeys(runtimes) if (gap := unsuited(one, zeros))]


def that_fit(own: Prepared | None, batch_sizes: Sequence[int]) -> tuple[int, ...]:
    """The batch sizes for which these data have enough rows.

    Raises:
        ValueError: None of them fits.
    """
    most = MNIST.n_train if own is None else own.about.n_train
    if batch_sizes and min(batch_sizes) > most:
        raise ValueError(
            f"batch sizes: expected one of at most {most:,} (the number of training rows), got only larger ones; choose"
            " a smaller one"
        )
    return tuple(size for size in batch_sizes if size <= most)


def winners(experiment: Experiment, curves: Sequence[Curve], n_validation: int) -> list[str]:
    """Labels of who wins: the quickest epochs where backends are compared, else the highest accuracy.

    They are those that nothing measured shows to be worse than the best; several where it is undecided.

    Times are judged by `lib.timing.comparison`. Of accuracies, those within a standard error of the best count as equal
    to it (the one-standard-error rule: Breiman et al., Classification and Regression Trees, 1984, section 3.4.3).

    Args:
        experiment: What was trained.
        curves: Of each line that is compared, in their order.
        n_validation: Rows that the accuracies are of.
    """
    labels = [experiment.labels[index] for index in experiment.compared]
    if experiment.name == "backend":
        times = [epoch_s(curve.epochs) for curve in curves]
        best = min(range(len(times)), key=lambda one: float(np.median(times[one])))
        tied = [
            one == best or compared(times[best], times[one], paired=False).verdict is not Verdict.FASTER
            for one in range(len(times))
        ]
        return [label for label, is_tied in zip(labels, tied, strict=True) if is_tied]
    diverged = [curve.epochs[-1].diverged_step is not None for curve in curves]
    found = np.where(diverged, 0.0, [curve.epochs[-1].validation_accuracy for curve in curves])
    top = float(found.max())
    error = (top * (1 - top) / n_validation) ** 0.5
    return [labels[place] for place in np.flatnonzero(found >= top - error)]


def on_mnist(experiment: Experiment, store: Store, mnist: Facts | None) -> list[Curve] | None:
    """What is stored for MNIST at the same settings: a curve for each line that is compared; None where one is missing.

    Args:
        experiment: On other data.
        store: Where results are looked up; nothing is trained.
        mnist: Which images MNIST's results are of; None while that is not known.
    """
    if mnist is None:
        return None
    found = []
    for item in moved_to_mnist(experiment).items:
        curve = store.get(Key(item.training, item.runtime, mnist.digest, versions(item.runtime)))
        if curve is None:
            return None
        found.append(curve)
    return found


def moved_to_mnist(experiment: Experiment) -> Experiment:
    """The lines that an experiment on other data is about, at the same settings on MNIST."""
    items = []
    for index in experiment.compared:
        training, runtime = experiment.items[index].training, experiment.items[index].runtime
        items.append(Item(replace(training, network=Network(training.network.hidden), data=MNIST), runtime))
    labels = tuple(experiment.labels[index] for index in experiment.compared)
    return replace(experiment, items=tuple(items), labels=labels, n_compared=len(items))


def both_winners(
    experiment: Experiment, results: Results, store: Store, mnist: Facts | None
) -> tuple[list[str], list[str] | None] | None:
    """Who wins on the data of this experiment, and who on MNIST at the same settings, where that is stored.

    None while a line is not finished.
    """
    curves = [results.lines[index].curve for index in experiment.compared]
    if any(curve is None for curve in curves):
        return None
    own = winners(experiment, [curve for curve in curves if curve is not None], experiment.data.n_validation)
    stored = on_mnist(experiment, store, mnist)
    return own, winners(experiment, stored, MNIST.n_validation) if stored is not None else None
