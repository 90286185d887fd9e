"""The other notebooks in a real browser: each opens, shows something, is accessible, with a silent console."""

import pytest

from benchmarks.browser import begin_all
from lib.ui.notebooks import NOTEBOOKS
from tests.browser import MARKS, assert_accessible

pytestmark = MARKS


@pytest.mark.parametrize("notebook", NOTEBOOKS[1:], ids=[one.name for one in NOTEBOOKS[1:]])
def test_each_notebook_opens_and_is_accessible(page, site, notebook):
    page.goto(site.at(notebook.file))
    page.wait_for_selector(".lab-nav", timeout=60_000)
    page.locator(".lab-sentence:visible, .lab-figure:visible, .lab-state:visible, table:visible").first.wait_for(
        timeout=60_000
    )
    begin_all(page)
    assert page.get_by_text("An internal error occurred").count() == 0
    # Click all at once: a run that ends meanwhile removes its button. Other tests cover the measurements.
    stops = page.get_by_role("button", name="Stop", exact=True, disabled=False)
    stops.evaluate_all("buttons => buttons.forEach(button => button.click())")
    assert_accessible(page)
