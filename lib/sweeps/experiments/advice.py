"""Which device and which way to train takes how long, this machine among them: for a script and for the command."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from lib.formatting import listed
from lib.sweeps.experiments.calibration import WAYS, TrainingWay, near, raced_step_times, recorded_calibrations, stored
from lib.sweeps.experiments.known_devices import known_devices, recorded_devices
from lib.sweeps.experiments.live_calibration import LiveCalibrations, live_in, unasked, ways
from lib.sweeps.experiments.published_figures import LIBRARIES
from lib.sweeps.experiments.recorded_machines import place, recorded_here
from lib.sweeps.experiments.what_would_help import offered
from lib.sweeps.storage.records import Kind
from lib.sweeps.storage.store import Store
from lib.timing.prediction.advise import Advice, advise
from lib.timing.prediction.calibration import LEAST_TOGETHER, Calibration
from lib.timing.prediction.device import FILE, Device, read_devices
from lib.timing.prediction.predict import Calibrated, Question

CALIBRATE = "`python -m lib.cli.advise --calibrate`"


def advise_here(
    question: Question,
    devices: Mapping[str, Device] | None = None,
    store: Store | None = None,
    live: LiveCalibrations | None = None,
    by: str = "",
) -> Advice:
    """Which device and which way to train takes how long, and what it costs; nothing is measured.

    This machine answers where it was calibrated: by a page that predicts, or by `python -m lib.cli.advise --calibrate`,
    which takes some minutes. Why it, or a way to train on it, does not answer is among the advice's `silent`.

    Args:
        question: What is to be trained; it raises ValueError itself for what cannot be.
        devices: Known by their figures, by key; None: `all_devices`.
        store: Where this machine's measured steps lie; None: in the cache folder.
        live: Calibrations that are at hand already; None: those of the store.
        by: Key of the backend that is trained with today.

    Returns:
        All answers, the quickest first. A prediction is of all steps of all networks: `step_s` in seconds, with `low_s`
        and `high_s`, which are its 90 % interval on this machine and the range of the figures elsewhere.

    Raises:
        UnusableDevice: The file of devices cannot be used.

    >>> from lib.model.spec import Network
    >>> advice = advise_here(Question(Network((512, 256)), batch_size=64, epochs=20, networks=32))
    >>> jax = next(one for one in advice.answers if one.library == "JAX" and one.device.startswith("c3"))
    >>> jax.device, jax.way, jax.prediction.low_s < jax.prediction.step_s
    ('c3-highcpu-22: 22 vCPUs', 'compiled step, JAX', True)
    """
    store = store if store is not None else Store()
    live = live if live is not None else live_in(store.path)
    found = known_here(question, live, store)
    here = offered(list(found), found, store.records(Kind.ANATOMY))
    advice = advise(question, here, devices if devices is not None else all_devices(), recorded(), by)
    return replace(advice, silent=tuple(_silent(live, found)))


def known_here(question: Question, live: LiveCalibrations, store: Store) -> dict[TrainingWay, Calibration]:
    """What this machine's ways to train cost: by their calibrations, else by a few steps near the question's."""
    standings = live.view().items
    found = {one.trained: one.calibration for one in standings if one.calibration is not None}
    rest = {one.trained: one.step_times for one in standings if one.calibration is None and not one.trained.together}
    asked = near(question)
    taken = {(one, trial): time for one, of in rest.items() for trial, time in of.items() if trial in asked}
    taken |= stored(list(rest), store, asked)
    good = {key: time for key, time in taken.items() if not time.disturbed}
    enough = {one for one in rest if sum(key[0] == one for key in good) >= LEAST_TOGETHER}
    few = recorded_calibrations(
        {"here": {key: time for key, time in taken.items() if key in good or key[0] not in enough}}
    )
    return found | {trained: known for (_, trained), known in few.items()}


def not_known(question: Question, live: LiveCalibrations, store: Store, by: str = "") -> list[TrainingWay]:
    """The ways to train of which nothing says what the question's step takes here: `by` and others of its library, and
    those that are measured unasked."""
    known = known_here(question, live, store)
    own = [one for one in ways() if by and one.runtime.backend.startswith(by.partition("-")[0]) and not one.together]
    own.sort(key=lambda one: one.runtime.backend != by)
    return [one for one in dict.fromkeys([*own, *unasked()]) if one not in known and not live.of(one).why_not]


def all_devices(path: Path = FILE) -> dict[str, Device]:
    """The devices of a file and of the recorded machines, with what libraries cost there; raises UnusableDevice."""
    return {**known_devices(read_devices(path)), **recorded_devices()}


@cache
def recorded() -> Mapping[str, Mapping[str, Calibrated]]:
    """Ways to train on the recorded machines, by their names for people, of each processor and card: what the epochs
    that were timed there say of their steps, where these are enough."""
    found: dict[str, dict[str, Calibrated]] = {}
    machines = recorded_here().machines
    raced = {number: raced_step_times(machine) for number, machine in enumerate(machines)}
    for (number, trained), known in recorded_calibrations(raced).items():
        runtime = trained.runtime
        library, _ = LIBRARIES.get(runtime.backend, (runtime.process, None))
        of = found.setdefault(place(machines[number], runtime.on_gpu), {})
        of[trained.label] = Calibrated(
            known, WAYS[runtime.backend], library=library, backend=runtime.backend, worker=runtime.process
        )
    return found


def _silent(live: LiveCalibrations, known: Mapping[TrainingWay, Calibration]) -> Iterator[str]:
    standings = live.view().items
    for one in standings:
        if one.why_not:
            label = one.trained.label
            yield one.why_not if one.why_not.startswith(label) else f"{label}: {one.why_not}"
    left = [one.trained.label for one in standings if one.trained not in known and not one.why_not]
    if len(left) == len(standings):
        yield f"this machine is not calibrated, so it does not answer; {CALIBRATE} does that"
    elif left:
        yield f"not calibrated on this machine, so not among the answers: {listed(left)}; {CALIBRATE} does that"
