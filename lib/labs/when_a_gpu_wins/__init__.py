"""When a GPU wins: the border between a processor and a card, what moves it, what it costs, and what would help."""

from lib.labs.when_a_gpu_wins.border import Border, DrivenCard, ImaginedCard
from lib.labs.when_a_gpu_wins.calibration import CalibratedWays
from lib.labs.when_a_gpu_wins.remedies import Remedies
from lib.labs.when_a_gpu_wins.work import Costs, LargerWork

PANELS = {
    "win": Border,
    "here": CalibratedWays,
    "what": ImaginedCard,
    "move": DrivenCard,
    "larger": LargerWork,
    "cost": Costs,
    "remedy": Remedies,
}
