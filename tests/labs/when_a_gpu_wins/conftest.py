"""The notebook's lab on a store of the test's own, and the output of its sections."""

import pytest

from lib.labs.when_a_gpu_wins.work import PANELS
from lib.sweeps.experiments import calibration
from lib.sweeps.storage.store import Store
from lib.ui import lab as lab_module
from lib.ui.lab import Lab
from lib.ui.url_state import Address
from tests.sweeps.experiments.test_calibration import fake_trials


@pytest.fixture
def opened(monkeypatch, tmp_path):
    """Open the lab with settings, given as `prefix_name`; calibration is instant."""
    monkeypatch.setattr(calibration, "measure_trials", fake_trials)
    monkeypatch.setattr(lab_module, "shared_engine", lambda: None)
    monkeypatch.setattr(lab_module, "Store", lambda: Store(tmp_path / "results.sqlite"))

    def make(**settings):
        said = {name.replace("_", ".", 1): value for name, value in settings.items()}
        monkeypatch.setattr(lab_module, "opened", lambda *_: Address(arguments=said))
        lab = Lab("when_a_gpu_wins", **PANELS)
        for section in lab.page.sections.values():
            section.stage.streams = False
        return lab

    return make


@pytest.fixture
def live(tmp_path):
    return calibration.live_in(tmp_path / "results.sqlite")


class Panel:
    def __init__(self, lab, prefix):
        self._panel = lab.controls(prefix)
        self.value = dict(self._panel.value)
        lab.page.sections[prefix].panel = self

    def __getitem__(self, name):
        return self._panel[name]

    def set(self, **values):
        self.value |= values
        return self


@pytest.fixture
def panel():
    return Panel
