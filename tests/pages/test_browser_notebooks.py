"""The other notebooks in a real browser: they fill, stop, keep what they measured, and say nothing on the console."""

import re

import pytest

from lib.backends.registry import BACKENDS, Runtime, usable_runtimes, versions
from lib.experiments.backend_race import all_cells, plan
from lib.experiments.claims import CLAIMS, known
from lib.experiments.parallel_sweeps import methods
from lib.storage.records import Kind, Record
from lib.timing.measurement import Ended, Measurement
from lib.views.claims import sentence
from tests.browser import MARKS, PAST_THE_EDGE, assert_accessible, assert_figures_stand_beside_their_labels
from tests.software_adapter import needs_software_adapter

pytestmark = [*MARKS, pytest.mark.release]
REPETITIONS = r"(\d+) of \d+ repetitions"


@pytest.fixture
def race_page(full_site):
    keep_ceilings(full_site.store)
    return full_site.at("notebooks/backend_race.py")


def keep_ceilings(store):
    """As if all libraries had been probed before but those of the race's first two repetitions: no other worker is
    needed for these."""
    first = {BACKENDS[cell.runtime.backend].worker for cell in plan(all_cells(usable_runtimes()), [])[:2]}
    for runtime in usable_runtimes():
        library = BACKENDS[runtime.backend].worker
        if library not in first:
            subject = {"library": library, "device": runtime.device, "name": "dispatch", "work": 1.0}
            measured = Measurement((1e-6,) * 3, 1, Ended.SPREAD)
            store.add(Record.of(Kind.CEILING, subject, measured, versions(runtime)))


def measured(page):
    """How many repetitions the race's line tells of."""
    return int(re.findall(REPETITIONS, page.locator(".lab-state span").inner_text())[0])


def test_the_race_fills_cell_by_cell_stops_and_resumes(page, race_page):
    page.goto(race_page)
    page.wait_for_selector("button:has-text('Race')", timeout=60_000)
    assert "6.26 s" in page.locator(".race-published", has_text="published: ").first.inner_text(), (
        "the published figures are there from the start"
    )
    assert measured(page) == 0
    page.get_by_role("button", name="Race", exact=True).click()
    page.wait_for_function(
        f"() => +document.querySelector('.lab-state span')?.innerText.match(/{REPETITIONS}/)?.[1] >= 2", timeout=120_000
    )
    page.wait_for_selector("button.race-cell", timeout=10_000)
    page.get_by_role("button", name="Stop", exact=True).click()
    page.wait_for_function("() => document.querySelector('.lab-state b')?.innerText === 'Stopped'", timeout=20_000)
    kept = measured(page)
    assert kept >= 2
    assert page.locator("button.race-cell").count() >= 2
    chosen = page.locator("button.race-cell").first
    chosen.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".race-detail svg", timeout=20_000)
    assert "quartiles" in page.locator(".race-detail").inner_text()
    assert chosen.get_attribute("aria-pressed") == "true"
    page.locator(".race-controls select").first.select_option(label="times faster than …")
    page.wait_for_function("() => location.search.includes('race.view=speed-up')", timeout=10_000)
    first = plan(all_cells(usable_runtimes()), [])[0]
    page.locator(".race-controls select").nth(1).select_option(label=first.runtime.label)
    page.locator(".race-published").first.wait_for(state="detached", timeout=10_000)
    page.locator("button.race-cell", has_text="×").first.wait_for()
    page.reload()
    page.wait_for_selector(".lab-state span", timeout=60_000)
    assert measured(page) == kept, "what was measured is kept"
    assert_accessible(page)
    assert_figures_stand_beside_their_labels(page, "table.race")


@needs_software_adapter
def test_long_names_of_ways_to_launch_keep_within_the_race(page, adapter_site):
    page.goto(adapter_site.at("notebooks/backend_race.py"))
    page.get_by_label("… than").wait_for(timeout=60_000)
    assert_accessible(page)
    page.set_viewport_size({"width": 360, "height": 800})  # a narrower phone
    page.wait_for_timeout(300)
    assert page.evaluate(PAST_THE_EDGE) == []


def test_the_claims_stand_at_once_and_are_measured_on_request(page, full_site):
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
    """As if the others had been timed before; that each of them is timed is tested without a browser."""
    for method in methods():
        if method.strategy != "sequential" and method.runtime == Runtime():
            measured = Measurement((0.5,), 1, Ended.CAP)
            subject = {"method": method.key, "epochs": 1}
            store.add(Record.of(Kind.SWEEP, subject, measured, versions(method.runtime)))


def test_the_sweeps_fill_move_stop_and_are_kept(page, site):
    keep_all_but_one_after_another(site.store)
    base = site.at("notebooks/parallel_sweeps.py")
    query = "?compare.epochs=1&count.most=4&count.size=4096&mixed.spread=0.2&mixed.size=4096"
    page.goto(base + query)
    state = "n => document.querySelectorAll('.lab')[n]?.querySelector('.lab-state b')?.innerText"
    for nth in range(3):
        page.wait_for_function(f"n => ({state})(n) === 'Done'", arg=nth, timeout=120_000)
    sentences = page.locator(".lab-sentence")
    assert "Quickest:" in sentences.nth(0).inner_text()
    assert "one after another" in sentences.nth(1).inner_text()
    assert "Padding is" in sentences.nth(2).inner_text()
    assert "about 4 ×" in page.locator(".lab-table:not(.lab-values)", has_text="published").inner_text(), (
        "the article's figures stand beside"
    )
    assert page.locator(".shapes > div").count() == 8
    padding = sentences.nth(2).inner_text()
    page.get_by_role("slider").nth(3).focus()  # how different
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => location.search.includes('mixed.spread=0.3')", timeout=10_000)
    page.wait_for_function(f"n => ({state})(n) === 'Done'", arg=2, timeout=60_000)
    page.wait_for_function(
        "before => document.querySelectorAll('.lab-sentence')[2]?.innerText !== before", arg=padding, timeout=20_000
    )
    page.get_by_role("slider").nth(1).focus()  # how many
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    page.wait_for_function("() => location.search.includes('count.most=256')", timeout=10_000)
    page.wait_for_function(f"n => ({state})(n) === 'Measuring'", arg=1, timeout=60_000)
    page.get_by_role("button", name="Stop", exact=True).nth(1).click()
    page.wait_for_function(f"n => ({state})(n) === 'Stopped'", arg=1, timeout=20_000)
    page.reload()
    page.wait_for_function(f"n => ({state})(n) === 'Saved result'", arg=0, timeout=60_000)
    assert_accessible(page)
