"""Operations by themselves, and what feeds a training step: sections, and a checklist of the articles' advice."""

from collections.abc import Callable
from functools import partial
from typing import Any

import marimo as mo

from lib.labs.operations_and_feeds import feeds, operations, programs, tensorflow
from lib.labs.operations_and_feeds.checklist import Checklist
from lib.model.backends.registry import Runtime
from lib.sweeps.experiments.single_operations import OperationTask
from lib.ui.lab import Drawing, Lab, Shown

OPERATIONS = {
    "product": operations.Product,
    "sine": operations.Sine,
    "transfer": operations.Transfer,
    "first": programs.FirstUse,
    "fusion": programs.Fusion,
    "overlap": programs.Overlap,
}
PANELS = OPERATIONS | {"feed": feeds.Feeds, "placement": tensorflow.Placement, "models": tensorflow.Models}


class OperationsAndFeeds(Lab):
    def __init__(self) -> None:
        self.checklist = Checklist()
        super().__init__("operations_and_feeds", [self.checklist], **PANELS)

    def time(
        self,
        panel: mo.ui.dictionary,
        tasks: Callable[[Any, list[Runtime]], list[OperationTask]],
        draw: Callable[[Shown], Drawing],
    ) -> None:
        """Measure operations, small sizes first, and draw them into this cell."""
        self.work(panel, partial(operations.asked, self.page.store, tasks), draw)
