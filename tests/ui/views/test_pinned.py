"""A pinned run next to the current one: the same axes, and what differs."""

import pytest

from lib.ui.views import mnist_training as view
from lib.ui.views.pinned import difference, with_same_axes
from tests import made
from tests.sweeps.experiments.test_results import filled


def rates(epochs=3, size=32, rates=(0.01, 0.1)):
    return made.learning_rate(rates, epochs=epochs, batch_size=size, hidden="128")


def ends(chart, channel):
    scales = [layer.get("encoding", {}).get(channel, {}).get("scale") for layer in chart.spec["layer"]]
    return {tuple(scale["domain"]) for scale in scales if isinstance((scale or {}).get("domain"), list)}


@pytest.mark.parametrize(
    "make",
    [
        rates,
        lambda epochs, size: made.depth(("128", "256→128→64"), epochs=epochs, rate=0.1, batch_size=size),
        lambda epochs, size: made.batch_size((32, size), epochs=epochs, rate=0.1, hidden="128"),
    ],
    ids=["learning-rate", "depth", "batch-size"],
)
def test_pinned_and_current_charts_share_their_axes(make):
    short, long = make(epochs=2, size=64), make(epochs=5, size=512)
    drawn = (view.charts(one, filled(one, [0.9, 0.95])) for one in (short, long))
    for pair in zip(*drawn, strict=True):
        before = [one.spec for one in pair]
        one, other = with_same_axes(*pair)
        for channel in ("x", "y"):
            found = ends(one, channel)
            assert found == ends(other, channel)
            assert len(found) <= 1, one.title
            for was in [end for chart in pair for domain in ends(chart, channel) for end in domain]:
                assert all(min(domain) <= was <= max(domain) for domain in found)
        assert [one.spec for one in pair] == before, "copies"
        assert (one.spec["datasets"], other.spec["datasets"]) == tuple(spec["datasets"] for spec in before)


def test_the_difference_names_changed_settings_and_outcome():
    was, now = rates(), rates(epochs=5, size=512)
    told = difference((was, filled(was, [0.9, 0.95])), (now, filled(now, [0.9, 0.93])))
    assert told.startswith("Batch size 32 pinned, 512 now and epochs 3 pinned, 5 now. Best pinned: 95.0\u202f% (0.1)")
    assert told.endswith("of training in all, 2.0 points less than the pinned run.")
    close = difference((was, filled(was, [0.9, 0.95])), (now, filled(now, [0.9, 0.952])))
    assert close.endswith("0.2 points more than the pinned run; one seed cannot tell such a gap from chance.")
