"""Sentences about the reader's own data: what was loaded, and whether it changes the winner."""

from lib.formatting import listed
from lib.model.data.prepared import DataSummary
from lib.sweeps.experiments.mnist_training import Experiment

COMPARE, COMPARE_MEANS = (
    "Train on MNIST for comparison",
    "The same settings on MNIST; the sentence above then names the winner",
)
_CALLED = {"learning-rate": "learning rate", "batch-size": "batch size", "depth": "hidden layers", "backend": "library"}


def loaded(about: DataSummary) -> str:
    image = f" (images of {about.image[1]} × {about.image[0]})" if about.image is not None else ""
    names = about.classes
    parts = [
        f"{about.name}: {about.n_train + about.n_validation + about.n_test:,} rows, {about.n_inputs:,}"
        f" input{'s' if about.n_inputs != 1 else ''}{image} scaled to [0, 1], {len(about.classes)} classes"
        f" ({', '.join(names if len(names) <= 5 else (*names[:3], '…', names[-1]))})",
        f"{about.n_train:,} rows for training, {about.n_validation:,} for validation, {about.n_test:,} for “Look"
        f" inside”; {about.split}",
        *(note[:1].upper() + note[1:] for note in about.notes),
    ]
    return ". ".join(parts) + "."


def left_out(asked: list[int], fitting: tuple[int, ...]) -> str:
    missing = [f"{size:,}" for size in asked if size not in fitting]
    return f"Left out, for lack of training rows: batch size {listed(missing)}." if missing else ""


def winner_sentence(experiment: Experiment, name: str, own: list[str], mnist: list[str] | None) -> str:
    """Whether these data change the winner.

    Args:
        experiment: The experiment on the data.
        name: Name of the data.
        own: Winners on the data.
        mnist: Winners on MNIST with the same settings; None if those results are not stored.
    """
    here = f"On {name} {_best(own, experiment)}"
    if mnist is None:
        return f"{here}. Whether MNIST has the same winner is unknown: no MNIST results for these settings are stored."
    there = f"on MNIST {_best(mnist, experiment)}"
    common = [label for label in own if label in mnist]
    if not common:
        return f"{name} changes the winner. {here}; {there}."
    if len(own) == len(mnist) == 1:
        return f"{name} does not change the winner: {listed(common)}, as on MNIST."
    return f"No change of winner is certain: {listed(common)} may be best on both. {here}; {there}."


def _best(found: list[str], experiment: Experiment) -> str:
    quick = experiment.name == "backend"
    if len(found) == 1:
        return f"{_CALLED[experiment.name]} {found[0]} {'is quickest' if quick else 'is most accurate'}"
    return f"{listed(found)} are {'equally quick' if quick else 'equally accurate'} as far as this shows"
