"""The notebook on when a GPU wins, in a real browser without a GPU."""

import pytest

from benchmarks.browser import begin_all
from lib.labs.when_a_gpu_wins.border import points_elsewhere, published_points
from lib.model.backends.registry import Runtime, versions
from lib.sweeps.experiments.calibration import ROUNDS, TrainingWay, trials
from lib.sweeps.experiments.recorded_machines import recorded_gpus
from lib.sweeps.storage.records import Kind, Record
from lib.timing.measurement import Ended, Measurement
from tests.browser import DESK, MARKS, PHONE, assert_accessible
from tests.sweeps.experiments.test_calibration import exact_s

pytestmark = [*MARKS, pytest.mark.release]
FIRST, HERE, REMEDY = 0, 1, 5  # indices of sections
SAID = "document.querySelectorAll('.lab')[0]?.innerText"
STATE = "document.querySelectorAll('.lab')[{}]?.querySelector('.lab-state b')?.innerText"
MEASURED = "+document.querySelectorAll('.lab')[1]?.querySelector('.lab-state span')?.innerText.match(/^\\d+/)?.[0]"
LEGEND = ("border, predicted", "measured here: ", "recorded: ", "published: ")
# The numbers of discs, rings and ticks in the first chart.
POINTS = """[...document.querySelector('.lab marimo-mime-renderer').shadowRoot
    .querySelectorAll('.mark-symbol.role-mark')].map(e => e.childElementCount)"""


@pytest.fixture
def base(site):
    """The notebook's address, on a machine with calibrations of two ways to train."""
    for one in (TrainingWay(Runtime(key)) for key in ("jax-epoch", "jax-step")):
        for trial in trials(one):
            subject = one.subject(trial) | {"first_call_s": 0.1}
            for steps in range(1, ROUNDS + 1):  # distinct records, one per round
                measured = Measurement((steps * exact_s(one, trial),), steps, Ended.CAP)
                site.store.add(Record.of(Kind.STEP_TIME, subject, measured, versions(one.runtime)))
    return site.at("notebooks/when_a_gpu_wins.py")


def stop(page):
    page.locator(".lab").nth(HERE).get_by_role("button", name="Stop", exact=True).click()
    page.wait_for_function(f"() => {STATE.format(HERE)} === 'Stopped'", timeout=20_000)


def test_the_border_moves_calibration_persists_and_remedies_are_applied(base, page):
    page.goto(base + "?win.left=here/jax-epoch/cpu&here.ways=numpy/cpu&remedy.hidden=16&remedy.size=128")
    page.wait_for_function(f"() => {SAID}?.includes('beats JAX, one call an epoch, here ')", timeout=60_000)
    first = page.locator(".lab").nth(FIRST)
    for size in (PHONE, DESK):
        page.set_viewport_size(size)
        for words in LEGEND:
            assert first.locator(".win-legend").get_by_text(words).is_visible(), words
    page.wait_for_function(f"() => {POINTS}.length === 3", timeout=60_000)  # drawn after the sentence
    said, (measured, elsewhere, published) = first.inner_text(), page.evaluate(POINTS)
    assert measured > 0
    assert elsewhere == len(points_elsewhere(recorded_gpus(), 1)), "nobody has kept any from a browser"
    assert published == len(published_points())
    assert all(f"of {n}\n" in f"{said}\n" for n in (measured, elsewhere, published))
    assert "The articles' rule" in said

    page.wait_for_function(f"() => {MEASURED} >= 2", timeout=120_000)
    stop(page)
    kept = page.evaluate(MEASURED)
    page.get_by_label("Hidden layers", exact=True).first.fill("64, 64")
    page.wait_for_function("() => location.search.includes('win.hidden=64')", timeout=10_000)
    page.wait_for_function(f"() => {SAID}.includes('2 hidden layers')", timeout=10_000)

    begin_all(page, REMEDY + 1)
    row = page.locator(".remedies tr", has_text="one call an epoch instead of")
    row.wait_for(timeout=60_000)
    assert row.locator("td").all_inner_texts()[-2:] == ["–", "–"], "nothing is measured before it is asked for"
    page.get_by_role("button", name="Compile the epoch").focus()
    page.keyboard.press("Enter")
    page.wait_for_function(f"() => {STATE.format(REMEDY)} === 'Done'", timeout=150_000)
    assert row.locator("td").last.inner_text().endswith("%")
    assert "Of those measured" in page.locator(".lab").nth(REMEDY).locator(".lab-sentence").inner_text()

    page.reload()
    page.wait_for_function(f"() => {MEASURED} >= {kept}", timeout=60_000)
    begin_all(page, REMEDY + 1)
    page.wait_for_function(f"() => {STATE.format(REMEDY)} === 'Saved result'", timeout=60_000)
    assert row.locator("td").last.inner_text().endswith("%"), "and the link restores what it was about"
    stop(page)
    assert_accessible(page)
