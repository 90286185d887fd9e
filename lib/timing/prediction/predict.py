"""How long a step takes: on a device that was calibrated here, or on one that is known by its figures."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lib.timing.prediction.calibration import Calibration
from lib.timing.prediction.device import PARTS, Device, Needs
from lib.timing.prediction.workload import Workload


@dataclass(frozen=True)
class Prediction:
    """Seconds of a step, their 90 % interval or the range of the device's figures, and the parts they are made of."""

    step_s: float
    low_s: float
    high_s: float
    parts_s: Mapping[str, float]
    warning: str = ""  # why it may be further off than its interval says

    def of(self, steps: float) -> "Prediction":
        """The seconds of so many steps."""
        parts = {name: steps * seconds for name, seconds in self.parts_s.items()}
        return Prediction(steps * self.step_s, steps * self.low_s, steps * self.high_s, parts, self.warning)


def predict(workload: Workload, device: Device | Calibration) -> Prediction:
    """How long a step of a workload takes on a device.

    Args:
        workload: For a calibration, run in the way that was calibrated.
        device: Calibrated on this machine, or known by its figures: then the ends are those of the figures' ranges, and
            as many times wider as the device says.

    Raises:
        DoesNotFit: The memory of a device that is known by its figures cannot hold it.
    """
    if isinstance(device, Calibration):
        seconds, low, high = (float(end[0]) for end in device.predicted([workload]))
        outside = "" if device.is_known(workload) else "far from every step that was measured for the calibration"
        return Prediction(seconds, low, high, device.parts(workload), outside)
    device.check(workload)
    parts, low, high = (parts_on(workload, device, end) for end in ("value", "low", "high"))
    named = {PARTS[name]: float(seconds) for name, seconds in parts.items() if seconds}
    return Prediction(*(float(sum(end.values())) for end in (parts, low, high)), named, device.warning)


def parts_on(needs: Needs, device: Device, end: str) -> dict[str, Any]:
    """Seconds of each part of a step on a device whose memory holds it: numbers, or arrays as `needs` has them."""
    amounts = device.amounts_of(needs, end)
    return {name: amounts[name] * cost for name, cost in device.costs(end).items()}
