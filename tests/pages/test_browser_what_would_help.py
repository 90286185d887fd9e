"""The notebook on remedies in a real browser: it predicts, a press applies one, and its miss is kept."""

import pytest

from lib.backends.registry import Runtime, versions
from lib.experiments.calibration import ROUNDS, Trained, trials
from lib.storage.records import Kind, Record
from lib.timing.measurement import Ended, Measurement
from tests.browser import MARKS, assert_accessible
from tests.experiments.test_live_calibration import exact_s

pytestmark = [*MARKS, pytest.mark.release]
STATE = "() => document.querySelector('.lab-state b')?.innerText"


@pytest.fixture
def base(site):
    """The notebook's address, on a machine that was calibrated before."""
    for one in (Trained(Runtime(key)) for key in ("jax-epoch", "jax-step", "numpy")):
        for trial in trials(one):
            subject = one.subject(trial) | {"first_call_s": 0.1}
            for steps in range(1, ROUNDS + 1):  # as many records, none like another
                measured = Measurement((steps * exact_s(one, trial),), steps, Ended.CAP)
                site.store.add(Record.of(Kind.STEP_TIME, subject, measured, versions(one.runtime)))
    return site.at("notebooks/what_would_help.py")


def test_a_press_applies_a_remedy_and_its_miss_is_kept(base, page):
    page.goto(base + "?remedy.hidden=16&remedy.size=128")
    button = page.get_by_role("button", name="Compile the epoch")
    button.wait_for(timeout=60_000)
    row = page.locator(".remedies tr", has_text="one call an epoch in place of")
    assert row.locator("td").all_inner_texts()[-2:] == ["–", "–"], "nothing is measured before it is asked for"
    page.wait_for_function(f"({STATE})() === 'Not running'", timeout=60_000)
    button.focus()
    page.keyboard.press("Enter")
    page.wait_for_function(f"({STATE})() === 'Done'", timeout=90_000)
    assert row.locator("td").last.inner_text().endswith("%")
    assert "Largest miss" in page.locator(".lab-sentence").first.inner_text()
    page.reload()
    page.wait_for_function(f"({STATE})() === 'Saved result'", timeout=60_000)
    assert row.locator("td").last.inner_text().endswith("%"), "and the link restores what it was about"
    assert_accessible(page)
