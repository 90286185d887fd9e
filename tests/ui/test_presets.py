"""Each preset opens a page with exactly its settings, and its result is what its title says."""

from typing import Any
from urllib.parse import parse_qsl

import pytest

from lib.labs.when_a_gpu_wins import border
from lib.model.spec import Network
from lib.ui.notebooks import SERVED
from lib.ui.presets import PRESETS, listed_presets
from lib.ui.url_state import Address
from tests.ui.test_opened import PAGES

IDS = [title for title, _, _ in PRESETS]


@pytest.mark.parametrize(("_title", "notebook", "query"), PRESETS, ids=IDS)
def test_a_preset_has_valid_settings_that_change_its_page(_title, notebook, query):
    said = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=True))
    settings, address = PAGES[notebook], Address(arguments=said)
    address.check(settings)
    assert address.problems == []
    assert [name for name in said if address.read(settings[name]) != settings[name].usual], "not the usual page"


def test_presets_are_distinct_and_have_short_titles():
    assert len(set(IDS)) == len({query for _, _, query in PRESETS}) == len(PRESETS)
    assert max(map(len, IDS)) <= 60


@pytest.mark.parametrize(
    ("served", "start"),
    [
        ("run", "/mnist_training/?rate.range=0.05,10&amp;"),
        ("edit", "/?file=notebooks/when_a_gpu_wins.py&amp;view-as=present&amp;win."),
    ],
)
def test_presets_are_listed_as_links_if_served(served, start):
    shown = listed_presets({SERVED: served})
    assert shown.count("<a href=") == len(PRESETS)
    assert f'<a href="{start}' in shown
    assert listed_presets({}) == "", "an exported page has none"


def test_the_gpu_loses_in_all_published_points():
    published = border.published_points()
    assert len(published) >= 3
    assert all(point.left_s < point.right_s for point in published), "the processor took less, at every batch size"


def test_the_preset_where_the_gpu_wins_is_predicted_so():
    notebook, query = next(one for title, *one in PRESETS if title.startswith("The GPU wins"))
    address, settings = Address(arguments=dict(parse_qsl(query))), PAGES[notebook]
    said = {name.partition(".")[2]: address.read(one) for name, one in settings.items() if name.startswith("win.")}
    unused: Any = None  # no calibration of this machine is needed
    left, right = (border.side(said[name], border.WAYS[said["way"]], unused) for name in ("left", "right"))
    depth = len(Network.parse(said["hidden"]).hidden)
    assert said["networks"] == 128
    shown = border.Surface(*(border.surface_s(side, depth, 128) for side in (left, right) if side is not None))
    assert shown.wins.mean() > 0.5
    assert not shown.loses.any()
