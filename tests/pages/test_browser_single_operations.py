"""The notebook on single operations in a real browser: it fills point by point, stops, and keeps what it measured."""

import pytest

from tests.browser import MARKS, assert_accessible

pytestmark = [*MARKS, pytest.mark.release]
STATE = "n => document.querySelectorAll('.lab')[n]?.querySelector('.lab-state b')?.innerText"


def test_products_fill_move_and_are_kept(page, site):
    page.goto(
        site.at("notebooks/single_operations.py")
        + "?product.largest=16&sine.largest=64&transfer.largest=64&overlap.size=65536"
    )
    page.wait_for_function(f"n => ({STATE})(n) === 'Done'", arg=0, timeout=120_000)
    assert "At n = 16" in page.locator(".lab-sentence").first.inner_text()
    assert "A100" in page.locator(".lab-table:not(.lab-values)", has_text="published").first.inner_text()
    page.get_by_role("slider").first.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => location.search.includes('product.largest=32')", timeout=10_000)
    page.wait_for_function(
        "() => document.querySelector('.lab-sentence')?.innerText.includes('At n = 32')", timeout=60_000
    )
    page.reload()
    page.wait_for_function(f"n => ({STATE})(n) === 'Saved result'", arg=0, timeout=60_000)
    assert_accessible(page)
