"""A training step taken apart: operation by operation (`operations`), and into the parts of its time (`parts`).

The experiments run in the workers, each with its own library: `with_numpy`, `with_jax`, `with_keras`.
"""

from dataclasses import dataclass, field

from lib.spec import Network

REFERENCE = "reference"  # the step timed well, beside which each trap is measured
TRAPS = ("synchronisation", "first call counted", "one sample", "best of n", "transfer inside", "busy is not working")
TRAP_EPOCHS = 5  # short ones, whose average counts the first call
TRAP_SAMPLES = 20  # single steps, of which the best is taken


@dataclass(frozen=True)
class Examination:
    """What a worker shall measure other than a training: `kind` is `ceilings`, `operations`, `parts` or `traps`."""

    kind: str
    network: Network = field(default_factory=Network)
    batch_size: int = 32
