"""Inside a step in a real browser: an old address, its parts, a profile, dropped files, and the traps."""

from pathlib import Path

import pytest

from tests.browser import MARKS, assert_accessible, assert_figures_stand_beside_their_labels, wait_until
from tests.software_adapter import needs_software_adapter
from tests.timing import profiling
from tests.timing.profiling.traces.files import API_SUM, nsight

TORCH = Path(profiling.__file__).parent / "traces" / "torch_step.json"
PARTS, PROFILE, FILE, TRAPS = 0, 1, 2, 4  # sections with controls; after the file come two traces side by side
pytestmark = [*MARKS, pytest.mark.release]


def wait_for_state(page, section, *states, timeout=120_000):
    at = "document.querySelectorAll('.lab')[n]?.querySelector('.lab-state b')?.innerText"
    wait_until(page, f"([n, states]) => states.includes({at})", [section, states], timeout)


def wait_for_words(page, words, timeout=60_000):
    shown = "[...document.querySelectorAll('.lab-sentence, .lab-problem, .lab-note')]"
    wait_until(page, f"words => {shown}.some(e => e.innerText.includes(words))", words, timeout)


def section(page, number):
    return page.locator(".lab").nth(number)


def press(page, number, key):
    page.get_by_role("slider").nth(number).focus()
    page.keyboard.press(key)


@pytest.mark.timeout(600)
def test_parts_profile_and_traps_of_a_step(page, site, tmp_path):
    settings = "step.size=256&step.hidden=16&step.by=numpy/cpu,jax-epoch/cpu&live.hidden=16&traps.size=512"
    page.goto(f"{site.base}/trace_of_a_step/?{settings}")
    assert page.url.startswith(f"{site.base}/inside_a_step/?step.size=256&")
    page.locator("[data-out-of-sight=traps]").scroll_into_view_if_needed(timeout=60_000)
    for one in (PARTS, PROFILE, TRAPS):
        wait_for_state(page, one, "Done")

    sentence = section(page, PARTS).locator(".lab-sentence")
    before = sentence.inner_text()
    assert before.startswith("A step on 256 images takes")
    assert page.locator("table.anatomy tr.anatomy-sum").count() >= 5
    assert "751" in page.locator("table.anatomy").first.inner_text(), "the published total stands beside"
    press(page, 0, "ArrowRight")
    wait_for_state(page, PARTS, "Measuring")
    page.wait_for_function("() => location.search.includes('step.size=512')", timeout=10_000)
    section(page, PARTS).get_by_role("button", name="Stop", exact=True).click()
    wait_for_state(page, PARTS, "Stopped")
    press(page, 0, "ArrowLeft")
    wait_for_state(page, PARTS, "Saved result", timeout=20_000)
    assert sentence.inner_text() == before, "a position seen before is not measured again"

    assert page.locator("table.claims tr").count() == 1 + 1 + 6, "one right figure, six wrong ones"
    assert "Largest mistake here" in section(page, TRAPS).locator(".lab-sentence").inner_text()

    wait_for_words(page, "under the profiler")
    sentence = section(page, PROFILE).locator(".lab-sentence")
    before = sentence.inner_text()
    press(page, 2, "ArrowLeft")  # the slider for the start of the part
    wait_until(page, "said => ![...document.querySelectorAll('p')].some(e => e.innerText === said)", before, 10_000)
    page.wait_for_function("() => location.search.includes('live.part=40')", timeout=10_000)
    wait_for_state(page, PROFILE, "Done", timeout=1000)  # a part is drawn, not measured again
    press(page, 1, "ArrowRight")  # the batch size: the last profile stays until there is a new one
    page.wait_for_selector(".trace-before figure", timeout=10_000)
    wait_for_state(page, PROFILE, "Done")
    assert page.locator(".trace-before").count() == 0

    assert page.get_by_label("or the path of a larger file").count() == 0, "a viewer names no path"
    wait_for_words(page, "recorded by this project")
    report, broken = tmp_path / "report.csv", tmp_path / "broken.json"
    report.write_text(API_SUM)
    broken.write_text(TORCH.read_text()[:5000])
    export = nsight(tmp_path / "export.sqlite", 200)
    page.locator("input[type=file]").first.set_input_files([str(one) for one in (export, TORCH, report, broken)])
    wait_for_words(page, "broken.json: it is cut off at character 5,000")
    wait_for_words(page, "Nsight Systems · 1,400 rows")
    page.get_by_label("Trace", exact=True).select_option(label="report.csv")
    wait_for_words(page, "cuCtxSetCurrent alone takes 61%")
    page.locator("summary", has_text="all calls").last.click()
    assert page.locator("table.trace-calls", has_text="published calls").count() == 1
    page.get_by_label("Second", exact=True).select_option(label="torch_step.json")
    wait_for_words(page, "The profile of the second takes")
    page.get_by_role("slider").nth(4).focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => location.search.includes('file.part=5')", timeout=10_000)
    wait_for_words(page, "The profile of the second takes")
    assert page.get_by_label("Trace", exact=True).input_value() == "report.csv", "what was chosen stays"
    assert_accessible(page)
    assert_figures_stand_beside_their_labels(page, "table.anatomy >> nth=0")


@needs_software_adapter
@pytest.mark.timeout(600)
def test_traps_on_a_software_adapter_which_is_not_called_a_gpu(page, adapter_site):
    live = "live.hidden=16&live.size=8&live.by=jax-step/cpu"
    page.goto(
        f"{adapter_site.base}/inside_a_step/?step.by=numpy/cpu&step.hidden=16&{live}&traps.size=1&traps.device=software"
    )
    page.locator("[data-out-of-sight=traps]").scroll_into_view_if_needed(timeout=60_000)
    wait_for_state(page, TRAPS, "Done")
    assert page.locator("table.claims tr").count() == 1 + 1 + 6
    assert "WebGPU (software adapter)" in section(page, TRAPS).locator("figcaption").inner_text()
    notes = [
        one for one in page.locator(".lab-note").all_inner_texts() if one.startswith("A software adapter computes")
    ]
    assert sum(one.startswith("A software adapter computes") for one in notes) == 1, "of the traps"
    assert "not timed here" not in page.locator("body").inner_text()
    assert_accessible(page)
