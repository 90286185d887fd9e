"""Which library is fastest here, and which machine for which work?"""

import marimo as mo

from lib.labs.which_library.machines import MachineChoice, Machines
from lib.labs.which_library.race import Race
from lib.ui.lab import Lab
from lib.ui.widgets import RaceTable


class WhichLab(Lab):
    """The race's table and the machines that a session compares."""

    def __init__(self) -> None:
        self.table, self.machines = mo.ui.anywidget(RaceTable()), MachineChoice()
        super().__init__("which_library", [self.machines], race=Race, compare=Machines)
