"""The colours of charts: marks and labels have enough contrast on the light and on the dark background."""

import re

import pytest

from lib.labs.inside_a_step import anatomy, trace
from lib.model.backends.registry import TRAINERS
from lib.sweeps.experiments.parallel_sweeps import methods
from lib.sweeps.sweep import STRATEGIES
from lib.timing.profiling.request import PARTS
from lib.ui.views.chart import ink, ordered_palette
from tests.contrast import channels, contrast

# marimo 0.25's own colours, light and dark: background and text.
GROUNDS = (("#ffffff", "#0f172a"), ("#181c1a", "#eceeed"))
PALETTE = sorted(
    {
        *(trainer.color for trainer in TRAINERS.values()),
        *(strategy.color for strategy in STRATEGIES.values()),
        *(method.color for method in methods()),
        *(part.color for part in PARTS),
        anatomy.UNEXPLAINED_COLOR,
        anatomy.WRONG,
        anatomy.RIGHT,
        *trace.COLORS.values(),
        *(color for count in range(2, 17) for color in ordered_palette(count)),
    }
)


def test_contrast_matches_the_standard():
    assert contrast("#000000", "rgb(255, 255, 255)") == pytest.approx(21)
    assert contrast("#767676", "color(srgb 1 1 1)") == pytest.approx(4.54, abs=0.01)  # WebAIM's example


@pytest.mark.parametrize(("ground", "text"), GROUNDS, ids=["light", "dark"])
@pytest.mark.parametrize("color", PALETTE)
def test_marks_and_labels_have_enough_contrast(color, ground, text):
    assert contrast(color, ground) >= 3
    mixed = re.fullmatch(r"color-mix\(in srgb, (#\w{6}) (\d+)%, currentColor\)", ink(color))
    assert mixed, ink(color)
    share = int(mixed[2]) / 100
    label = [share * a + (1 - share) * b for a, b in zip(channels(mixed[1]), channels(text), strict=True)]
    assert contrast(label, ground) >= 4.5
