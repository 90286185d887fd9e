"""The notebook on when a GPU wins in a real browser without any GPU: the surface is there at once, the calibration goes
on and is kept, controls move the border, and nothing is said on the console."""

import pytest

from lib.backends.registry import Runtime, versions
from lib.experiments.calibration import Trained, trials
from lib.experiments.published_predictions import published_rows
from lib.experiments.recorded_machines import recorded_gpus
from lib.experiments.when_does_a_gpu_win import points_elsewhere, published_points
from lib.formatting import seconds
from lib.storage.records import Kind, Record
from lib.storage.store import Store
from lib.timing.measurement import Ended, Measurement
from tests.browser import DESK, MARKS, PHONE, assert_accessible

pytestmark = [*MARKS, pytest.mark.release]
STATE = "document.querySelectorAll('.lab')[1]?.querySelector('.lab-state b')?.innerText"
MEASURED = "+document.querySelectorAll('.lab')[1]?.querySelector('.lab-state span')?.innerText.match(/^\\d+/)?.[0]"
FIRST_SENTENCE = "document.querySelector('.lab .lab-result .lab-sentence')?.innerText"

LEGEND = ("border, predicted", "measured here", "measured elsewhere", "published")
# How many dots, diamonds and rings the first chart has.
POINTS = """[...document.querySelector('.lab marimo-mime-renderer').shadowRoot
    .querySelectorAll('.mark-symbol.role-mark')].map(e => e.childElementCount)"""


def keep_steps(store: Store) -> None:
    """As if NumPy had been calibrated here: a call of 20 μs, and 100 GFLOP/s."""
    numpy = Trained(Runtime("numpy"))
    for trial in trials(numpy):
        step_s = 2e-5 + trial.workload(numpy.runtime).flops / 1e11
        subject = numpy.subject(trial) | {"first_call_s": 0.1}
        store.add(Record.of(Kind.STEP_TIME, subject, Measurement((step_s,), 1, Ended.CAP), versions(numpy.runtime)))


@pytest.fixture
def base(site):
    return site.at("notebooks/when_does_a_gpu_win.py")


def test_a_reader_sees_at_once_what_is_measured_predicted_and_published(base, page, site):
    """Nothing is pressed. The machine's step times are played, so that there are dots beside the article's rings."""
    keep_steps(site.store)
    page.goto(base + "?here.ways=numpy/cpu&win.left=here/numpy/cpu")
    page.wait_for_function(f"() => {FIRST_SENTENCE}?.includes('than NumPy, here in')", timeout=60_000)
    first = page.locator(".lab").first
    for size in (DESK, PHONE):
        page.set_viewport_size(size)
        for words in LEGEND:
            assert first.locator(".win-legend").get_by_text(words, exact=True).is_visible(), words
    page.wait_for_function(f"() => {POINTS}.length === 3", timeout=60_000)  # drawn after the sentence
    said, (measured, elsewhere, published) = first.inner_text(), page.evaluate(POINTS)
    assert measured > 0
    assert elsewhere == len(points_elsewhere(recorded_gpus(), 1, 1)), "nobody has kept any from a browser"
    assert f"other machines, each GPU beside its own machine's processor ({elsewhere})" in said
    assert f"Dots are step times that are stored here ({measured})" in said
    assert f"rings are the first article's batch sizes ({published})" in said
    assert published == len(published_points(1, 1))
    assert "is predicted to be faster than NumPy, here" in said


def test_the_articles_figures_stand_beside_what_is_predicted_for_them(base, page):
    page.goto(base + "?here.ways=numpy/cpu")
    table = page.locator("table", has=page.get_by_role("columnheader", name="published", exact=True))
    table.wait_for(timeout=60_000)
    head, *rows = [row.locator("th, td").all_inner_texts() for row in table.locator("tr").all()]
    assert head == ["figure", "published", "predicted", "from – to", "error", "remark"]
    expected = published_rows()
    assert [row[0] for row in rows] == [one.name for one in expected]
    assert [row[1:3] for row in rows] == [[seconds(one.published_s), seconds(one.predicted_s)] for one in expected]
    errors = [abs(one.error) for one in expected]
    assert errors == sorted(errors, reverse=True), "bad ones first"
    assert page.get_by_text(f"Of {len(expected)} figures that the articles print").is_visible()


def test_the_border_is_there_moves_and_the_calibration_is_kept(base, page):
    page.goto(base + "?here.ways=jax-step/cpu&win.left=i9-10885h/epoch")
    page.wait_for_function(f"() => {FIRST_SENTENCE}?.includes('L4')", timeout=60_000)
    assert "The articles' rule" in page.locator(".lab").first.inner_text()
    page.wait_for_function(f"() => {MEASURED} >= 2", timeout=120_000)
    page.get_by_role("button", name="Stop", exact=True).first.click()
    page.wait_for_function(f"() => {STATE} === 'Stopped'", timeout=20_000)
    before = page.locator(".lab .lab-sentence").first.inner_text()
    page.get_by_role("slider").first.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => location.search.includes('win.depth=2')", timeout=10_000)
    page.wait_for_function(f"before => {FIRST_SENTENCE} !== before", arg=before, timeout=10_000)
    assert "2 hidden layers" in page.locator(".lab .lab-sentence").first.inner_text()
    page.get_by_role("button", name="What would have to be true?").click()
    page.wait_for_function(
        "() => document.querySelectorAll('.lab')[2].innerText.includes('at batch size 32')", timeout=10_000
    )
    kept = page.evaluate(MEASURED)
    page.reload()
    page.wait_for_function(f"() => {MEASURED} >= {kept}", timeout=60_000)
    page.get_by_role("button", name="Stop", exact=True).first.click()
    page.wait_for_function(f"() => {STATE} === 'Stopped'", timeout=20_000)
    page.set_viewport_size(PHONE)
    assert_accessible(page)
