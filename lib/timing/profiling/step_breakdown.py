"""The parts of a step's time, from the experiments of `lib.timing.profiling.run`. Pure: numbers in, numbers out."""

from collections.abc import Mapping
from dataclasses import dataclass

from lib.model.backends.registry import Runtime

ON_DEVICE = "many-on-device"  # an experiment that no part needs: `many` by the device's own clock
EXPLAINED = 0.15  # of the step: how far the parts may be from adding up


@dataclass(frozen=True)
class StepPart:
    """One part of a step, and how it is derived from the experiments."""

    name: str
    color: str
    how: str


PARTS = (
    StepPart(
        "arithmetic",
        "#0b7a57",
        "many steps on one batch with nobody asked in between (NumPy, and PyTorch on a processor: the call on one batch"
        " that is there already, with the waking of the library’s threads), less the same for one neuron and one image",
    ),
    StepPart("transfer", "#c48600", "fetching a batch as this backend does, less the same with nothing to fetch"),
    StepPart(
        "launch and wait",
        "#3a72d8",
        "the call on one batch that is there already, less its arithmetic and its dispatch: handing over to threads or"
        " card, and waking up; none where the library works in the caller’s thread: all of that is in its call",
    ),
    StepPart("dispatch", "#8d6fd1", "the call for one neuron and one image, until it returns"),
    StepPart(
        "Python", "#d1623a", "the loop with the call left out; for Keras, fit of the tiny network less its bare call"
    ),
    StepPart("idle", "#8a8f98", "wall time of the training in which none of its cores worked, beyond launch and wait"),
)

ONE_CALL = ("jax-epoch", "numba")  # backends that make many steps in one call
IN_CALLER = (Runtime("numpy"), Runtime("numba"), Runtime("torch"))  # work in the caller's thread: they launch nothing


@dataclass(frozen=True)
class Split:
    """A step's time in parts, all in seconds."""

    step_s: float
    parts_s: Mapping[str, float]

    @property
    def unexplained_s(self) -> float:
        """What the parts leave of the measured step; negative where they overlap in time, as on two cores."""
        return self.step_s - sum(self.parts_s.values())

    @property
    def adds_up(self) -> bool:
        """Whether the parts make up the measured step to within `EXPLAINED`."""
        return abs(self.unexplained_s) <= EXPLAINED * self.step_s

    @property
    def drawn_s(self) -> float:
        """The longer of step and parts: as far as a bar reaches."""
        return max(self.step_s, sum(self.parts_s.values()))

    def share(self, part: str) -> float | None:
        """The part's share of the whole bar, 0 to 1; None where the parts do not add up to the step."""
        return self.parts_s[part] / self.drawn_s if self.adds_up else None


def split(runtime: Runtime, found: Mapping[str, float]) -> Split | None:
    """The parts of a step's time, from the experiments.

    Args:
        runtime: What makes the step.
        found: Seconds of one training step by experiment, as `lib.timing.profiling.run` names them.

    Returns:
        All of `PARTS` that such a step has, none below 0; None while an experiment is missing.
    """
    keras, in_one_call, in_caller = "fit-tiny" in found, runtime.backend in ONE_CALL, runtime in IN_CALLER
    whole, tiny = ("call", "returns") if in_caller and not in_one_call else ("many", "many-tiny")
    needed = {"step", "busy", "returns", "transfer", whole, tiny}
    needed |= {"fit-tiny", "call-tiny"} if keras else {"python"}
    if not needed <= found.keys() or not (in_one_call or "call" in found):
        return None
    arithmetic_s = max(0.0, found[whole] - found[tiny])
    # Inside one call nobody is called, but each operation costs something, however small it is.
    rest_s = found["many-tiny"] if in_one_call else max(0.0, found["call"] - arithmetic_s - found["returns"])
    wait_s, dispatch_s = (0.0, found["returns"] + rest_s) if in_caller else (rest_s, found["returns"])
    parts = {
        "arithmetic": arithmetic_s,
        "transfer": max(0.0, found["transfer"] - found.get("transfer-base", 0.0)),
        "launch and wait": wait_s,
        "dispatch": dispatch_s,
        "Python": max(0.0, found["fit-tiny"] - found["call-tiny"]) if keras else found["python"],
        "idle": max(0.0, found["step"] - found["busy"] - wait_s),
    }
    if in_caller:  # whose call contains whatever it waits for
        del parts["launch and wait"], parts["idle"]
    return Split(found["step"], parts)
