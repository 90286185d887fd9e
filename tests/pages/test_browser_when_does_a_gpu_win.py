"""The notebook on when a GPU wins in a real browser without any GPU: the surface is there at once, the calibration goes
on and is kept, controls move the border, and nothing is said on the console."""

import pytest

from tests.browser import MARKS, PHONE, assert_accessible, serving

pytestmark = MARKS
STATE = "document.querySelectorAll('.lab')[1]?.querySelector('.lab-state b')?.innerText"
MEASURED = "+document.querySelectorAll('.lab')[1]?.querySelector('.lab-state span')?.innerText.match(/^\\d+/)?.[0]"
FIRST_SENTENCE = "document.querySelector('.lab .lab-result .lab-sentence')?.innerText"


@pytest.fixture
def base(tmp_path):
    with serving(tmp_path, "notebooks/when_does_a_gpu_win.py") as (address, _):
        yield address


def test_the_border_is_there_moves_and_the_calibration_is_kept(base, page):
    page.goto(base + "?here.ways=numpy/cpu&win.left=i9-10885h/epoch")
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
