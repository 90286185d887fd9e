"""The other notebooks in a real browser: they fill, stop and keep results, with a silent console."""

import pytest

from lib.labs.claims import CLAIMS, known, sentence
from lib.model.backends.registry import Runtime, usable_runtimes, versions
from lib.sweeps.experiments.parallel_sweeps import methods
from lib.sweeps.storage.records import Kind, Record
from lib.timing.measurement import Ended, Measurement
from tests.browser import MARKS, assert_accessible, begin, wait_for_state

pytestmark = [*MARKS, pytest.mark.release]


def test_claims_are_shown_at_once_and_measured_on_request(page, full_site):
    page.goto(full_site.at("notebooks/claims.py"))
    page.wait_for_selector("table.claims", timeout=60_000)
    assert page.locator(".claim").count() == len(CLAIMS)
    assert page.locator(".claim-corrected").count() == 7, "corrections are arithmetic, and need no measurement"
    here = known(usable_runtimes(), full_site.store.records())
    assert page.locator(".lab-sentence").first.inner_text() == sentence([claim.judge(here) for claim in CLAIMS])
    page.get_by_role("button", name="Measure what is missing").click()
    page.wait_for_function("() => document.querySelector('.lab-state b')?.innerText === 'Measuring'", timeout=60_000)
    page.wait_for_function("() => document.querySelector('.lab-state progress')?.value > 0.1", timeout=90_000)
    page.get_by_role("button", name="Stop", exact=True).click()
    page.wait_for_function("() => document.querySelector('.lab-state b')?.innerText === 'Stopped'", timeout=20_000)
    assert_accessible(page)


def keep_all_but_one_after_another(store):
    """Mark the other methods as timed; a test without a browser times each of them."""
    for method in methods():
        if method.strategy != "sequential" and method.runtime == Runtime():
            measured = Measurement((0.5,), 1, Ended.CAP)
            subject = {"method": method.key, "epochs": 1}
            store.add(Record.of(Kind.SWEEP, subject, measured, versions(method.runtime)))


def test_sweeps_fill_react_to_sliders_stop_and_keep_results(page, site):
    keep_all_but_one_after_another(site.store)
    base = site.at("notebooks/many_networks.py")
    query = "?compare.epochs=1&count.most=4&count.size=4096&mixed.spread=0.2&mixed.size=4096"
    page.goto(base + query)
    for nth in range(3):
        begin(page, nth)
        wait_for_state(page, "Done", nth, 120_000)
    sentences = page.locator(".lab-sentence")
    assert "Fastest:" in sentences.nth(0).inner_text()
    assert "one after another" in sentences.nth(1).inner_text()
    assert "Padding is" in sentences.nth(2).inner_text()
    assert "about 4 times" in page.locator(".lab-note", has_text="Published, on 8 cores").inner_text(), (
        "the article's figures stand beside"
    )
    assert page.locator(".shapes > div").count() == 8
    padding = sentences.nth(2).inner_text()
    page.get_by_role("slider").nth(3).focus()  # how different
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => location.search.includes('mixed.spread=0.3')", timeout=10_000)
    wait_for_state(page, "Done", 2)
    page.wait_for_function(
        "before => document.querySelectorAll('.lab-sentence')[2]?.innerText !== before", arg=padding, timeout=20_000
    )
    page.get_by_role("slider").nth(1).focus()  # how many
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    page.wait_for_function("() => location.search.includes('count.most=256')", timeout=10_000)
    wait_for_state(page, "Measuring", 1)
    page.locator(".lab").nth(1).get_by_role("button", name="Stop", exact=True).click()
    wait_for_state(page, "Stopped", 1, 20_000)
    page.reload()
    wait_for_state(page, "Saved result")
    assert_accessible(page)
