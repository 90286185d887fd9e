"""Draws one trained network once somebody looks: its parameters come from the run that trained it, or a new one."""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial

import marimo as mo

from lib.backends.base import Parameters
from lib.backends.registry import Runtime
from lib.data.mnist import Facts
from lib.pages import figures, layout
from lib.pages.stage import Stage
from lib.pages.streaming import end_script
from lib.spec import Training
from lib.workers.cancel import Cancel
from lib.workers.engine import Engine
from lib.workers.messages import How, Item, Ready, Trained, TrainingFailed, WorkerDied
from lib.workers.queue import Request, Urgency


def show(
    stage: Stage,
    item: Item | None,
    draw_network: Callable[[Item, Parameters, Facts], mo.Html],
    nothing: str,
    when_seen: Callable[[Callable[[], object]], None],
) -> None:
    """Draw one trained network into this cell, once somebody looks at it.

    Its parameters come from the run that trained it (`remember`), or from training it again: they are the same, because
    training is deterministic.

    Args:
        stage: Where it runs.
        item: The training; None where there is none yet.
        draw_network: Draws it, from its parameters and the data that it was trained on.
        nothing: Shown where there is no training.
        when_seen: Calls the function that it is given once somebody looks.
    """
    showing = stage.next_showing()
    if item is None:
        stage.stop()
        mo.output.replace(layout.note(nothing))
        return
    cancel, engine, request = stage.cancel(), stage.engine, Request(stage.viewer, Urgency.LATER)

    def work() -> None:
        output, problem = None, ""
        try:
            known = _parameters.get(item.training) or _train_for_parameters(engine, item.training, cancel, request)
            if known is not None and not cancel.is_set():
                output = draw_network(item, *known)
        except (WorkerDied, TrainingFailed, OSError) as error:
            output, problem = layout.failed(str(error)), str(error)
        if output is not None:
            showing.draw(partial(mo.output.replace, output))
        if problem:
            end_script(problem, 1)

    if not stage.streams:
        return work()
    thread = mo.Thread(target=work, daemon=True)

    def begin() -> None:
        figures.load()
        thread.start()

    when_seen(begin)


# Of the networks looked into last, for all viewers, and the data that they were trained on.
_parameters: OrderedDict[Training, tuple[Parameters, Facts]] = OrderedDict()
_MAX_KEPT_PARAMETERS = 8


def remember(item: Item, parameters: Parameters, data: Facts) -> None:
    """Cache a network's parameters for looking inside it; at most `_MAX_KEPT_PARAMETERS` are cached, the latest."""
    _parameters[item.training] = (parameters, data)
    while len(_parameters) > _MAX_KEPT_PARAMETERS:
        _parameters.popitem(last=False)


def _train_for_parameters(
    engine: Engine, training: Training, cancel: Cancel, request: Request
) -> tuple[Parameters, Facts] | None:
    data: Facts | None = None
    for message in engine.run(Runtime(), [training], cancel, how=How(want_parameters=True), request=request):
        if isinstance(message, Ready):
            data = message.data
        elif isinstance(message, Trained) and message.parameters is not None and data is not None:
            remember(Item(training), message.parameters, data)
            return message.parameters, data
    return None
