"""The traces in a real browser: one that is recorded, files dropped on the page, sound and not, and two compared."""

from pathlib import Path

import pytest

from tests.browser import MARKS, PHONE, assert_accessible
from tests.profiling.traces.files import API_SUM, nsight
from tests.software_adapter import needs_software_adapter

TORCH = Path(__file__).parents[1] / "profiling" / "traces" / "torch_step.json"
pytestmark = [*MARKS, pytest.mark.release]


@pytest.fixture(scope="module")
def server(site):
    return site.at("notebooks/trace_of_a_step.py")


def said(page, words, timeout=60_000):
    page.wait_for_function(
        "words => [...document.querySelectorAll('.lab-sentence, .lab-problem, .lab-note')]"
        ".some(e => e.innerText.includes(words))",
        arg=words,
        timeout=timeout,
    )


def test_a_step_is_profiled_files_are_read_and_traces_compared(page, server, tmp_path):
    page.goto(f"{server}/?live.hidden=16")
    state = "document.querySelector('.lab-state b')?.innerText"
    page.wait_for_function(f"() => {state} === 'Done'", timeout=90_000)
    said(page, "under the profiler")
    assert page.locator(".lab-figure svg").count() >= 4, "lanes and shares, of the live trace and of a shipped one"
    before = page.locator(".lab-sentence").first.inner_text()
    page.get_by_role("slider").nth(1).focus()  # where the part begins
    page.keyboard.press("ArrowLeft")
    page.wait_for_function(
        "before => document.querySelector('.lab-sentence')?.innerText !== before", arg=before, timeout=10_000
    )
    page.wait_for_function("() => location.search.includes('live.part=40')", timeout=10_000)
    assert page.evaluate(f"() => {state}") == "Done", "a part is drawn, not measured again"
    page.get_by_role("slider").first.focus()  # the batch size: until there is a new profile, the last one stays
    page.keyboard.press("ArrowRight")
    page.wait_for_function(f"() => {state} !== 'Done'", timeout=10_000)
    page.wait_for_selector(".trace-before figure", timeout=10_000)
    page.wait_for_function(f"() => {state} === 'Done'", timeout=90_000)
    assert page.locator(".trace-before").count() == 0
    assert page.get_by_label("or the path of a larger file").count() == 0, "a viewer names no path"
    said(page, "recorded by this project")

    report, broken = tmp_path / "report.csv", tmp_path / "broken.json"
    report.write_text(API_SUM)
    broken.write_text(TORCH.read_text()[:5000])
    export = nsight(tmp_path / "export.sqlite", 200)
    page.locator("input[type=file]").first.set_input_files([str(one) for one in (export, TORCH, report, broken)])
    said(page, "broken.json: it is cut off at character 5,000")
    said(page, "Nsight Systems · 1,400 rows")
    page.get_by_label("Trace", exact=True).select_option(label="report.csv")
    said(page, "cuCtxSetCurrent alone takes 61%")
    page.locator("summary", has_text="all calls").last.click()
    assert page.locator("table.trace-calls", has_text="published calls").count() == 1
    page.get_by_label("Second", exact=True).select_option(label="torch_step.json")
    said(page, "The profile of the second takes")
    assert_accessible(page)


@needs_software_adapter
def test_webgpus_step_is_traced_and_a_software_adapter_is_no_gpu(page, adapter_site):
    page.goto(
        f"{adapter_site.at('notebooks/trace_of_a_step.py')}/?live.hidden=16&live.size=8&live.by=webgpu-step/software&live.part=0,100"
    )
    page.wait_for_function("() => document.querySelector('.lab-state b')?.innerText === 'Done'", timeout=90_000)
    said(page, "A software adapter computes on the processor, and says nothing of a GPU's speed.")
    state = page.locator(".lab-state").first.inner_text()
    assert "WebGPU's timestamps" in state
    lanes = page.locator(".lab-figure svg").first.text_content()
    assert "Python" in lanes
    assert ("software adapter" in lanes) is ("aligned with" in state)
    assert "queue.submit" in page.locator(".trace-dearest").first.inner_text()
    assert_accessible(page)
    page.set_viewport_size(PHONE)
    page.wait_for_timeout(500)  # the chart takes its new width
    assert "e+" not in page.locator(".lab-figure svg").first.text_content(), "milliseconds are written out"
