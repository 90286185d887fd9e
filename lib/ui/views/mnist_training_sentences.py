"""The sentences below the four experiments: what a run came to, or how it ended."""

from lib.formatting import seconds
from lib.sweeps.experiments.mnist_training import Experiment
from lib.sweeps.experiments.published import EXPERIMENT_S
from lib.sweeps.experiments.results import Results
from lib.sweeps.workers.messages import State


def sentence(experiment: Experiment, results: Results) -> str:
    """The run's result in words, or why it failed; empty while it is running.

    Args:
        experiment: What was trained.
        results: Of its run.
    """
    if results.state is State.FAILED:
        return results.failure
    done = [(results.labels[i], results.lines[i]) for i in experiment.compared if results.lines[i].curve is not None]
    if results.state is State.STOPPED:
        said = f"Stopped: {len(done)} of {experiment.n_compared} trainings were finished and are saved."
        return f"{said} {results.failure}".strip()
    if not results.over or not done:
        return ""
    said = experiment.say(done, experiment.target) if experiment.say is not None else ""
    return f"{said} {_tell_wait(experiment, results)}".strip()


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


def published_note(name: str) -> str:
    """The articles' own seconds for an experiment's default settings; empty where they have none."""
    if name not in EXPERIMENT_S:
        return ""
    gpu_s, cpu_s = EXPERIMENT_S[name]
    return f"Published: {gpu_s:.0f}\u202fs on an NVIDIA L4, {cpu_s:.0f}\u202fs on 22 cores, with Keras on TensorFlow."
