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
from tests.browser import MARKS, PAST_THE_EDGE, PHONE, assert_accessible
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


def assert_figures_stand_beside_their_labels(page, table):
    """On a phone: two columns of figures are in sight, and at the table's far end the labels still are."""
    page.set_viewport_size(PHONE)
    row = page.locator(table).locator("tr").nth(1)
    label, figure, last = (row.locator("th, td").nth(n) for n in (0, 2, -1))
    assert right_of(figure) <= PHONE["width"]
    assert right_of(last) > PHONE["width"], "there is something to scroll to"
    left = label.bounding_box()["x"]
    row.evaluate("row => row.closest('.lab-scroll, .race-scroll').scrollBy(1000, 0)")
    assert label.bounding_box()["x"] == pytest.approx(left, abs=5)  # the space between cells
    assert right_of(last) <= PHONE["width"]


def right_of(cell):
    box = cell.bounding_box()
    return box["x"] + box["width"]


def test_the_anatomy_is_measured_kept_and_measured_for_a_moved_slider(page, site):
    page.goto(
        f"{site.at('notebooks/anatomy_of_a_step.py')}/?step.size=256&step.width=16&step.by=numpy/cpu,jax-epoch/cpu"
    )
    state = "() => document.querySelector('.lab-state b')?.innerText"
    page.wait_for_function(f"() => ({state})() === 'Done'", timeout=120_000)
    assert "A step on 256 images takes" in page.locator(".lab-sentence").inner_text()
    rows = page.locator("table.anatomy tr.anatomy-sum")
    assert rows.count() >= 7
    assert "751" in page.locator("table.anatomy").last.inner_text(), "the published total stands beside"
    assert page.locator(".lab-figure svg").count() == 1
    page.locator("summary", has_text="the parts, and how each is known").click()
    assert "unexplained" in page.locator("details[open] table.anatomy").inner_text()
    before = page.locator(".lab-sentence").inner_text()
    slider = page.get_by_role("slider").first
    slider.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function(f"() => ({state})() === 'Measuring'", timeout=60_000)
    page.wait_for_function(
        "() => /[1-9] of \\d+ exam|μs/.test(document.querySelector('table.anatomy')?.innerText)", timeout=60_000
    )
    page.wait_for_function("() => location.search.includes('step.size=')", timeout=10_000)
    page.get_by_role("button", name="Stop", exact=True).click()
    page.wait_for_function(f"() => ({state})() === 'Stopped'", timeout=20_000)
    slider.focus()
    page.keyboard.press("ArrowLeft")
    page.wait_for_function(f"() => ({state})() === 'Saved result'", timeout=20_000)
    assert page.locator(".lab-sentence").inner_text() == before, "a position seen before is not measured again"
    assert_accessible(page)
    assert_figures_stand_beside_their_labels(page, "table.anatomy >> nth=-1")


def test_the_traps_are_measured_and_told(page, site):
    page.goto(f"{site.at('notebooks/traps.py')}/?traps.size=512")
    page.wait_for_function("() => document.querySelector('.lab-state b')?.innerText === 'Done'", timeout=90_000)
    assert page.locator("table.claims tr").count() == 1 + 1 + 6, "one right figure, six wrong ones"
    assert "Largest mistake here" in page.locator(".lab-sentence").inner_text()
    assert_accessible(page)


@needs_software_adapter
def test_webgpus_step_is_mistimed_too_and_a_software_adapter_is_no_gpu(page, adapter_site):
    page.goto(f"{adapter_site.at('notebooks/traps.py')}/?traps.size=1&traps.device=software")
    page.wait_for_function("() => document.querySelector('.lab-state b')?.innerText === 'Done'", timeout=90_000)
    assert page.locator("table.claims tr").count() == 1 + 1 + 6, "one right figure, six wrong ones"
    assert "WebGPU (software adapter)" in page.locator(".lab-figure figcaption").inner_text()
    notes = " ".join(page.locator(".lab-note").all_inner_texts())
    assert "A software adapter computes on the processor, and says nothing of a GPU's speed." in notes
    assert "not timed here" not in notes
    assert_accessible(page)


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
