"""Operations and feeds in a real browser, on one page: they fill, stop, and keep their results."""

import pytest

from benchmarks.browser import begin_all
from lib.labs.operations_and_feeds.feeds import MODELS, NETWORK, TENSORFLOW, subject_of
from lib.model.backends.registry import Runtime, unavailable, versions
from lib.sweeps.experiments.single_operations import pipeline_tasks
from lib.sweeps.storage.records import Kind, Record
from lib.timing.measurement import Ended, Measurement
from lib.timing.profiling.first_use import FRESH, REPEATED
from lib.timing.profiling.harness import QUANTITIES
from lib.timing.profiling.request import Pipeline
from tests.browser import MARKS, assert_accessible

pytestmark = [
    *MARKS,
    pytest.mark.release,
    pytest.mark.timeout(400),
    pytest.mark.skipif(unavailable(Runtime(TENSORFLOW)) is not None, reason="TensorFlow is not installed"),
]
MINE = Pipeline(rows=100, batch_size=10, preprocessing_ms=0.02)
QUERY = "?product.largest=16&sine.largest=64&transfer.largest=64&overlap.size=65536"
QUERY += "&feed.rows=100&feed.size=10&feed.ms=0.02"
STATE = "n => document.querySelectorAll('.lab')[n]?.querySelector('.lab-state b')?.innerText"
FEED = 6  # index of the section


def keep_all_but(store, *left_out):
    """Store 50 ms per batch, slower than any measured feed, for all feeds but `left_out`; fill other sections too."""

    def keep(subject, name, seconds):
        measured = Measurement((seconds,) * 9, 1, Ended.CAP)
        of = {**subject, "name": name, "work": 1.0}
        store.add(Record.of(Kind.PIPELINE, of, measured, versions(Runtime(TENSORFLOW))))

    for task in pipeline_tasks(MINE, "cpu"):
        if task.pipeline.feed not in left_out and task.runtime.backend == TENSORFLOW:
            for name in QUANTITIES:
                keep(task.subject, f"0/{name}", 0.001 if name == "step" else 0.05)
    for name in ("MatMul/CPU/CPU", "gpus"):
        keep(subject_of("placement", NETWORK, "cpu"), name, 5.0)
    for network in MODELS:
        for name in (*FRESH, *REPEATED):
            keep(subject_of("model", network, "cpu"), name, 0.1)


def wait_for(page, nth, state, seconds=60):
    page.wait_for_function(f"n => ({STATE})(n) === '{state}'", arg=nth, timeout=1000 * seconds)


def wait_for_sentence(page, nth, words, seconds=60):
    page.wait_for_function(
        "([n, words]) => [...document.querySelectorAll('.lab')[n].querySelectorAll('.lab-sentence')]"
        ".some(e => e.innerText.includes(words))",
        arg=[nth, words],
        timeout=1000 * seconds,
    )


def test_sections_fill_react_to_sliders_stop_and_keep_results(page, full_site):
    keep_all_but(full_site.store, "prefetch")
    served = full_site.at("notebooks/operations_and_feeds.py") + QUERY
    page.goto(served)
    wait_for(page, 0, "Done", 180)
    begin_all(page, FEED + 3)
    assert "At n = 16" in page.locator(".lab-sentence").first.inner_text()
    assert page.locator(".lab-note", has_text="on an A100").count() >= 1, "the published figures"
    wait_for(page, FEED, "Done", 120)  # the other sections are measured first
    feed = page.locator(".lab").nth(FEED)
    sentence = feed.locator(".lab-sentence").first.inner_text()
    assert "for 100% of that" in sentence
    assert "What would help: “tf.data + prefetch”" in sentence
    assert feed.locator(".lab-figure svg:visible").count() == 1
    assert page.locator("table.claims tr").count() == 1 + 6
    page.wait_for_function("() => document.querySelector('table.claims').innerText.includes('tf.data + prefetch')")
    page.get_by_role("slider").first.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => location.search.includes('product.largest=32')", timeout=10_000)
    wait_for_sentence(page, 0, "At n = 32")
    feed.get_by_role("slider").first.focus()
    page.keyboard.press("End")
    page.wait_for_function("() => location.search.includes('feed.ms=5')", timeout=10_000)
    wait_for(page, FEED, "Measuring")
    feed.get_by_role("button", name="Stop", exact=True).click()
    wait_for(page, FEED, "Stopped", 20)
    page.goto(served)
    wait_for(page, 0, "Saved result")
    begin_all(page, FEED + 3)
    for nth in (FEED, FEED + 1, FEED + 2):
        wait_for(page, nth, "Saved result")
    assert_accessible(page)
