"""The notebook on input pipelines in a browser: feeds are measured, what would help is applied, a run is stopped."""

import pytest

from lib.backends.registry import Runtime, unavailable, versions
from lib.experiments.input_pipeline import MODELS, TENSORFLOW, _model_subject, _placement_subject, tasks
from lib.profiling.fresh_model import FRESH, REPEATED
from lib.profiling.input_pipeline import QUANTITIES
from lib.profiling.request import Pipeline
from lib.storage.records import Kind, Record
from lib.timing.measurement import Ended, Measurement
from tests.browser import MARKS, assert_accessible

pytestmark = [
    *MARKS,
    pytest.mark.release,
    pytest.mark.skipif(unavailable(Runtime(TENSORFLOW)) is not None, reason="TensorFlow is not installed"),
]
MINE = Pipeline(rows=100, batch_size=10, preprocessing_ms=0.02)
QUERY = "?feed.rows=100&feed.size=10&feed.ms=0.02"
STATE = "n => document.querySelectorAll('.lab')[n]?.querySelector('.lab-state b')?.innerText"


def keep_all_but(store, *left_out):
    """As if the others had been measured before, each of them in 50 ms a batch: slower than any that is measured."""

    def keep(subject, name, seconds):
        measured = Measurement((seconds,) * 9, 1, Ended.CAP)
        store.add(
            Record.of(Kind.PIPELINE, {**subject, "name": name, "work": 1.0}, measured, versions(Runtime(TENSORFLOW)))
        )

    for task in tasks(MINE, "cpu"):
        if task.pipelines[0].feed not in left_out and task.runtime.backend == TENSORFLOW:
            for name in QUANTITIES:
                keep(task.subject, f"0/{name}", 0.001 if name == "step" else 0.05)
    for name in ("MatMul/CPU/CPU", "gpus"):
        keep(_placement_subject("cpu"), name, 5.0)
    for network in MODELS:
        for name in (*FRESH, *REPEATED):
            keep(_model_subject(network, "cpu"), name, 0.1)


@pytest.fixture
def served(full_site):
    keep_all_but(full_site.store, "prefetch")
    return full_site.at("notebooks/input_pipeline.py")


def test_feeds_are_measured_applied_stopped_and_kept(served, page):
    page.goto(served + QUERY)
    page.wait_for_function(f"() => ({STATE})(0) === 'Done'", timeout=120_000)
    sentence = page.locator(".lab-sentence").first
    assert "for 100% of that" in sentence.inner_text()
    assert "What would help: “tf.data + prefetch”" in sentence.inner_text()
    assert page.locator(".lab-figure svg").count() == 1
    assert page.locator("table.claims tr").count() == 1 + 6
    page.get_by_role("button", name="Apply what would help").click()
    page.wait_for_function(
        "() => [...document.querySelectorAll('.lab-sentence')].some(e => e.innerText.startsWith('Applied:'))",
        timeout=60_000,
    )
    page.wait_for_function(f"() => ({STATE})(0) === 'Done'", timeout=20_000)
    page.get_by_role("slider").first.focus()
    page.keyboard.press("End")
    page.wait_for_function("() => location.search.includes('feed.ms=5')", timeout=10_000)
    page.wait_for_function(f"() => ({STATE})(0) === 'Measuring'", timeout=60_000)
    page.get_by_role("button", name="Stop", exact=True).first.click()
    page.wait_for_function(f"() => ({STATE})(0) === 'Stopped'", timeout=20_000)
    page.goto(served + QUERY)
    for nth in range(3):
        page.wait_for_function(f"n => ({STATE})(n) === 'Saved result'", arg=nth, timeout=60_000)
    assert_accessible(page)
