"""Which experiments take a step apart, and what runs them in a worker. `lib.anatomy.parts` puts their results together.

* `step`: the training as it is, from the backend's own loop; `busy`: processor seconds of all cores in it, a step.
* `python`: the loop and what it does around the library's call, with that call left out.
* `call`: the library's call for a step, on one batch that is there already, again and again; waited for only as training does.
* `returns`: the call for one hidden neuron and one image, until it returns.
* `fit-tiny`, `call-tiny`: training of that tiny network by `fit`, and the bare call in it: there the loop is the library's own,
  and cannot be run without the call.
* `transfer`, `transfer-base`: bringing a batch to where the arithmetic wants it, and the same with nothing to bring.
* `many`, `many-tiny`: many steps on one batch without anybody being asked in between, of this network and of the tiny one.
"""

import importlib
from collections.abc import Iterator

from lib.anatomy import Examination
from lib.anatomy.subject import Row, Subject, real_steps
from lib.backends import BACKENDS
from lib.data import Data


def examine(backend: str, device: str, examination: Examination, data: Data) -> Iterator[Row]:
    """Measure what is asked, one row after another."""
    subject = Subject(examination.network, examination.batch_size, data, device)
    if examination.kind == "ceilings":
        from lib.probes import probe

        yield from probe(backend, device)
    elif examination.kind == "parts":
        wall, busy = real_steps(backend, subject)
        yield "step", wall, 1.0
        yield "busy", busy, 1.0
        module = importlib.import_module(f"lib.anatomy.{BACKENDS[backend].module}")
        yield from module.experiments(backend, subject)
    elif examination.kind == "operations":
        from lib.anatomy.operations import measure_operations

        yield from measure_operations(BACKENDS[backend].worker, subject)
    else:
        from lib.anatomy.traps import measure_traps

        yield from measure_traps(subject)
