"""What is asked of a prediction: networks that are to be trained, and the ways in which they can be."""

import math
from dataclasses import dataclass

from lib.prediction.calibration import Calibration
from lib.prediction.device import Device, DoesNotFit
from lib.prediction.workload import Way, Workload
from lib.spec import Network, Training
from lib.timing.latency import Cost

MOST_NETWORKS = 100_000
THERE = "the images lie where they are computed with already"


@dataclass(frozen=True)
class Question:
    """Networks of one shape that are to be trained; raises ValueError with a sentence for what cannot be."""

    network: Network
    batch_size: int = 32
    epochs: int = 1
    networks: int = 1

    def __post_init__(self) -> None:
        Training(self.network, batch_size=self.batch_size, epochs=self.epochs)  # says what is wrong with them
        if isinstance(self.networks, bool) or not 1 <= self.networks <= MOST_NETWORKS:
            raise ValueError(
                f"networks: expected 1 to {MOST_NETWORKS:,}, got {self.networks}; choose how many are to be trained"
            )

    @property
    def steps(self) -> int:
        """Steps that each network makes."""
        return self.epochs * Training(batch_size=self.batch_size).steps_per_epoch()


@dataclass(frozen=True)
class Calibrated:
    """A way to train, and what its steps cost: calibrated on this machine, or by the figures of a device.

    Attributes:
        calibration: What predicts its steps; None where it exists and is not calibrated.
        way: How it runs a step.
        together: Networks that one program takes, at most.
        library: What trains, and on which device; ways of one library can be exchanged without rewriting a program.
        batches: What it costs to bring a batch from the host's memory, which each step does, though the images could
            lie on the device; or why nothing can be gained there.
        memory_bytes: That a step may use.
    """

    calibration: Calibration | Device | None
    way: Way
    together: int = 1
    library: str = ""
    batches: Cost | str = THERE
    memory_bytes: float = math.inf

    def check(self, workload: Workload) -> None:
        """Raises DoesNotFit, with a sentence for the person, where the memory cannot hold a step."""
        if workload.working_bytes > self.memory_bytes:
            raise DoesNotFit(
                f"{workload.name}: expected a step of at most {self.memory_bytes / 1e9:.3g} GB, the free memory, got"
                f" at least {workload.working_bytes / 1e9:.3g} GB for batch size {workload.batch_size:,} and"
                f" {workload.networks:,} at once; choose a smaller batch, fewer networks or smaller ones"
            )
