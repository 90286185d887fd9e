"""The comparison of machines in a real browser: files dropped on it, sound and not; prices, the accuracy, and a
phone."""

import pytest

from lib.backends.registry import Runtime, versions
from lib.storage.records import Kind, Record
from lib.timing.measurement import Ended, Measurement
from tests.browser import MARKS, assert_accessible
from tests.machines import CARD, PROCESSOR, write

THIRD = "Zuse · 2 cores · AVX2 · 4 GiB · no GPU"

pytestmark = [*MARKS, pytest.mark.release]


@pytest.fixture(scope="module")
def server(site):
    subject = {"backend": "numpy", "device": "cpu", "hidden": "128", "evaluation_s": 0.01, "first_call_s": 0.0}
    for size in (1, 32):
        measured = Measurement((7.0, 7.1, 7.2), 1, Ended.CAP)
        site.store.add(Record.of(Kind.RACE, subject | {"batch_size": size}, measured, versions(Runtime("numpy"))))
    return site.at("notebooks/compare_machines.py")


def drop(page, *paths):
    page.locator("input[type=file]").first.set_input_files([str(path) for path in paths])


def test_machines_are_dropped_compared_and_priced(page, server, tmp_path):
    card = write(tmp_path / "card.json", CARD, 0.002, [Runtime("jax-epoch", "gpu")])
    processor = write(tmp_path / "processor.json", PROCESSOR, 0.001, [Runtime("jax-epoch")], curves=True)
    broken = tmp_path / "broken.json"
    broken.write_text(card.read_text()[:-300])
    page.goto(server)
    page.wait_for_selector(".lab-sentence", timeout=60_000)
    assert page.get_by_text("published: GCP g2-standard-4: NVIDIA L4").count() >= 1
    assert page.get_by_text(CARD).count() == 0
    drop(page, card, processor, broken)
    page.wait_for_selector(f"text={CARD}", timeout=20_000)
    problem = page.locator("p.lab-problem").inner_text()
    assert "broken.json is no JSON or was cut off" in problem
    assert "export it again" in problem
    page.wait_for_function(
        "() => [...document.querySelectorAll('.lab-sentence')].some(e => e.innerText.includes('Colossus · 4 cores is"
        " surely the quickest'))",
        timeout=20_000,
    )
    assert page.locator(".compare-grid figure svg").count() >= 3, "a chart for each machine with a race"
    prices = page.locator("details:has-text('prices') summary").first
    prices.click()
    price = page.get_by_label(f"$ per hour: {CARD.split(' · ')[0]}").first
    if price.count() == 0:
        price = page.locator("details:has-text('prices') input").first
    price.fill("500")
    price.press("Enter")
    page.wait_for_function("() => document.body.innerText.includes('500 (entered here)')", timeout=20_000)
    drop(page, card, processor, write(tmp_path / "third.json", THIRD, 0.004, [Runtime("numpy")]))
    page.wait_for_selector(f"text={THIRD}", timeout=20_000)
    assert "500 (entered here)" in page.locator(".lab-table.compare").first.inner_text(), "another file loses no price"
    page.get_by_label("Target accuracy").select_option(label="94%")
    page.wait_for_function("() => location.search.includes('compare.target=0.94')", timeout=10_000)
    page.wait_for_selector("text=to 94% accuracy", timeout=10_000)
    assert_accessible(page)


def test_this_machine_stands_beside_the_others_with_a_price_and_nothing_is_cut_off(page, server):
    page.goto(server)
    row = page.locator(".lab-table.compare >> nth=0").locator("tr", has_text="this machine: ")
    row.wait_for(timeout=60_000)
    assert "live, 20" in row.inner_text()
    assert "assumed: " in row.inner_text()
    page.locator(".compare-grid figcaption", has_text="this machine (live, 20").first.wait_for(timeout=60_000)
    page.locator("summary", has_text="prices").click()
    page.get_by_role("textbox", name="$ per hour: this machine", exact=True).fill("2.5")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.body.innerText.includes('2.5 (entered here)')", timeout=20_000)
    cut = (
        "[...document.querySelectorAll('.lab-scroll')].filter(box => box.checkVisibility() && box.scrollWidth >"
        " box.clientWidth).map(box => box.innerText)"
    )
    assert page.evaluate(cut) == [], "at this width every table is whole"
