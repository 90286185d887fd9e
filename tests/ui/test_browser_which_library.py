"""The race and the machines in a real browser: cells fill, stop and are saved; valid and broken files are dropped."""

import re

import pytest

from lib.model.backends.registry import BACKENDS, Runtime, usable_runtimes, versions
from lib.sweeps.experiments.backend_race import all_cells, plan
from lib.sweeps.storage.records import Kind, Record
from lib.timing.measurement import Ended, Measurement
from tests.browser import MARKS, PAST_THE_EDGE, assert_accessible, assert_figures_stand_beside_their_labels
from tests.machines import CARD, PROCESSOR, write
from tests.software_adapter import needs_software_adapter

THIRD = "Zuse · 2 cores · AVX2 · 4 GiB · no GPU"
REPETITIONS = r"(\d+) of \d+ repetitions"
CUT = (
    "[...document.querySelectorAll('.lab-scroll')].filter(box => box.checkVisibility() && box.scrollWidth >"
    " box.clientWidth).map(box => box.innerText)"
)

pytestmark = [*MARKS, pytest.mark.release]


@pytest.fixture(scope="module")
def address(full_site):
    """Store probes of all libraries except those of the race's first two repetitions, so that no other worker starts.
    Also store a time of NumPy at batch size 1, so that this machine is among those compared."""
    cells = all_cells(usable_runtimes())
    first = {BACKENDS[cell.runtime.backend].worker for cell in plan(cells, [])[:2]}
    for runtime in usable_runtimes():
        library = BACKENDS[runtime.backend].worker
        if library not in first:
            subject = {"library": library, "device": runtime.device, "name": "dispatch", "work": 1.0}
            measured = Measurement((1e-6,) * 3, 1, Ended.SPREAD)
            full_site.store.add(Record.of(Kind.CEILING, subject, measured, versions(runtime)))
    subject = {"backend": "numpy", "device": "cpu", "hidden": "16", "batch_size": 1}
    measured = Measurement((7.0, 7.1, 7.2), 1, Ended.CAP)
    full_site.store.add(Record.of(Kind.RACE, subject, measured, versions(Runtime("numpy"))))
    return full_site.at("notebooks/which_library.py")


def measured(page):
    return int(re.findall(REPETITIONS, page.locator(".race-head .lab-state span").inner_text())[0])


def select(page, label):
    return page.locator(".lab-controls").first.get_by_label(label)


def drop(page, *paths):
    page.locator("input[type=file]").first.set_input_files([str(path) for path in paths])


def test_the_race_stops_and_resumes_and_machines_are_compared(page, address, tmp_path):
    page.goto(address)
    page.get_by_role("button", name="Race", exact=True).wait_for(timeout=60_000)
    published = page.locator("tr", has_text="published").first
    published.wait_for(timeout=60_000)
    assert "6.26 s" in page.locator("table.race").inner_text(), "the published figures are there from the start"
    before = measured(page)
    page.get_by_role("button", name="Race", exact=True).click()
    state = "document.querySelector('.race-head .lab-state')?.innerText"
    page.wait_for_function(f"() => +{state}.match(/{REPETITIONS}/)?.[1] >= {before + 2}", timeout=120_000)
    page.get_by_role("button", name="Stop", exact=True).click()
    page.wait_for_function(f"() => {state}.startsWith('Stopped')", timeout=20_000)
    kept = measured(page)
    chosen = page.locator("button.race-cell").first
    chosen.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".race-detail svg", timeout=20_000)
    assert "quartiles" in page.locator(".race-detail").inner_text()
    assert chosen.get_attribute("aria-pressed") == "true"
    page.wait_for_function("() => location.search.includes('race.cell=')", timeout=10_000)
    page.reload()  # the address keeps the chosen cell
    page.wait_for_selector(".race-detail svg", timeout=60_000)
    select(page, "Show").select_option(label="seconds to the target accuracy")
    page.wait_for_function("() => location.search.includes('race.view=target')", timeout=10_000)
    page.locator("table.race .race-others").first.wait_for(state="detached", timeout=10_000)

    drop_machines(page, tmp_path)
    assert_accessible(page)
    page.reload()
    page.wait_for_selector(".race-head .lab-state span", timeout=60_000)
    assert measured(page) == kept, "what was measured is kept"
    assert_figures_stand_beside_their_labels(page, "table.race")


def drop_machines(page, folder):
    card = write(folder / "card.json", CARD, 0.002, [Runtime("jax-epoch", "gpu")])
    processor = write(folder / "processor.json", PROCESSOR, 0.001, [Runtime("jax-epoch")], curves=True)
    broken = folder / "broken.json"
    broken.write_text(card.read_text()[:-300])
    assert page.locator(".machines li", has_text="live, ").count() == 1
    assert page.get_by_text("GCP g2-standard-4: NVIDIA L4").count() >= 1
    assert page.get_by_text(CARD).count() == 0
    drop(page, card, processor, broken)
    page.wait_for_selector(f"text={CARD}", timeout=20_000)
    problem = page.locator("p.lab-problem").inner_text()
    assert "broken.json is not JSON or was cut off" in problem
    page.locator(".lab-sentence", has_text="Surely the fastest: Colossus · 4 cores").wait_for(timeout=20_000)
    assert page.locator(".compare-grid figure svg").count() >= 3, "a chart for each machine with a race"
    drop(page, card, processor, write(folder / "third.json", THIRD, 0.004, [Runtime("numpy")]))
    page.wait_for_selector(f"text={THIRD}", timeout=20_000)
    page.locator(".lab-controls").nth(1).get_by_label("Target accuracy").select_option(label="94%")
    page.wait_for_function("() => location.search.includes('compare.target=0.94')", timeout=10_000)
    page.wait_for_selector("text=to 94% accuracy", state="attached", timeout=10_000)  # in the chart's text
    assert page.evaluate(CUT) == [], "at this width every table is whole"


@needs_software_adapter
def test_long_names_fit_into_the_race(page, adapter_site):
    page.goto(adapter_site.at("notebooks/which_library.py"))
    page.get_by_label("Show").wait_for(timeout=60_000)
    assert_accessible(page)
    page.set_viewport_size({"width": 360, "height": 800})  # a narrower phone
    page.wait_for_timeout(300)
    assert page.evaluate(PAST_THE_EDGE) == []
