"""The page in a real browser: it fills, follows its sliders, stops, keeps its address, and says nothing on the console."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack, contextmanager

import numpy as np
import psutil
import pytest

from tests.conftest import ROOT

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None and os.environ.get("CI"):
    pytest.fail("CI has no Chromium: install Debian's package chromium", pytrace=False)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium found: install one (on Debian: apt install chromium)"),
]
# Chromium's own calls home would fail here and be reported as errors of the page.
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
FIRST = ".lab >> nth=0 >> "


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("cache"), "mnist_training.py") as served:
        yield served


@pytest.fixture(scope="module")
def race_server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("cache"), "notebooks/backend_race.py") as served:
        yield served


@contextmanager
def serving(cache, notebook):
    """`make class` on a free port with this folder as its cache; ended with all its children."""
    port = free_port()
    environment = os.environ | {"MNIST_CACHE_DIR": str(cache)}
    process = subprocess.Popen(
        [sys.executable, "-m", "lib.launch", "run", "--port", str(port), "--headless", "1", "--notebook", notebook],
        cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    base = f"http://127.0.0.1:{port}"
    for _ in range(200):
        try:
            urllib.request.urlopen(f"{base}/health", timeout=1)
            break
        except OSError:
            time.sleep(0.1)
    try:
        yield base, process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


@pytest.fixture(scope="module")
def chromium():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(server, chromium):
    """A page that fails the test if anything is said on the console."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    tab = context.new_page()
    said: list[str] = []
    tab.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    tab.on("requestfailed", lambda request: said.append(f"{request.url}: {request.failure}"))
    tab.on("pageerror", lambda error: said.append(str(error)))
    yield tab
    context.close()
    # marimo preloads two pictures that this page does not show.
    assert [text for text in said if "was preloaded using link preload" not in text] == []


def open_page(page, server, query=""):
    page.goto(server[0] + query)
    page.wait_for_selector(FIRST + ".lab-sentence", timeout=60_000)


def wait_over(page, nth=0, timeout=60_000):
    page.wait_for_function(
        "n => ['Done', 'From store', 'Stopped', 'Failed'].includes(document.querySelectorAll('.lab')[n]?.querySelector('.lab-state b')?.innerText)",
        arg=nth, timeout=timeout,
    )  # fmt: skip


def sentence(page, nth=0):
    return page.locator(f".lab >> nth={nth} >> .lab-sentence").inner_text()


def thumb(page, label, nth=0):
    return page.locator(f".lab >> nth={nth} >> .lab-controls > div", has_text=label).locator("[role=slider]")


def test_all_experiments_fill_in_turn(page, server):
    open_page(page, server, "?backend.size=256")  # at 32 Keras alone takes half a minute
    for nth in range(4):
        wait_over(page, nth, 120_000)
        assert page.locator(f".lab >> nth={nth} >> .lab-figure svg").count() >= 1
    assert "was best" in sentence(page, 0)
    assert "fastest epochs" in sentence(page, 1)
    assert "parameters" in sentence(page, 2)
    assert re.search(r"Keras on TensorFlow .* times as long", sentence(page, 3))
    assert "no NVIDIA driver" in page.locator(".lab-missing").inner_text() or page.locator(".lab-missing").count() == 0
    page.wait_for_selector(".draw canvas", timeout=60_000)


def test_moving_a_slider_trains_anew_and_changes_the_address(page, server):
    open_page(page, server)
    wait_over(page)
    before, chart = sentence(page), page.locator(FIRST + ".lab-figure svg >> nth=0").inner_html()
    slider = thumb(page, "Epochs")
    slider.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function(
        "old => document.querySelector('.lab .lab-sentence')?.innerText !== old", arg=before, timeout=30_000
    )
    wait_over(page)
    assert "after 4 epochs" in sentence(page) or "4 epochs" in sentence(page)
    assert "rate.epochs=4" in page.url
    assert page.locator(FIRST + ".lab-figure svg >> nth=0").inner_html() != chart
    assert slider.evaluate("element => element.getRootNode().activeElement === element"), "the slider keeps the focus"


# Small settings, so that each move is trained quickly; the first two of an experiment's lines are enough.
QUICK = "&".join((
    "rate.count=2&rate.size=512&rate.epochs=2", "size.sizes=512,4096&size.epochs=2",
    "depth.networks=128,256&depth.size=512&depth.epochs=2", "backend.size=2048&backend.epochs=2",
))  # fmt: skip
SLIDERS = (
    (0, "rate", ("Learning rates", "How many rates", "Epochs", "Batch size")),
    (1, "size", ("Epochs", "Learning rate", "Target accuracy")),
    (2, "depth", ("Epochs", "Learning rate", "Batch size")),
    (3, "backend", ("Batch size", "Epochs", "Learning rate")),
)


@pytest.mark.parametrize(("nth", "name", "labels"), SLIDERS, ids=[name for _, name, _ in SLIDERS])
def test_every_slider_changes_the_chart_the_sentence_and_the_address(page, server, nth, name, labels):
    open_page(page, server, "?" + QUICK)
    wait_over(page, nth, 90_000)
    for label in labels:
        address, before = page.url, look(page, nth)
        thumb(page, label, nth).last.focus()  # of a range the upper end, at which the best rate of this page is
        page.keyboard.press("ArrowRight")
        page.wait_for_function("old => location.href !== old", arg=address, timeout=10_000)
        assert f"{name}." in page.url
        page.wait_for_function(
            "([nth, old]) => { const lab = document.querySelectorAll('.lab')[nth]; return lab.querySelector('.lab-sentence')"
            " && ['Done', 'From store'].includes(lab.querySelector('.lab-state b')?.innerText)"
            " && lab.querySelector('.lab-result').innerText !== old }",
            arg=[nth, before["text"]], timeout=90_000,
        )  # fmt: skip
        page.wait_for_timeout(300)  # the charts follow their frame
        after = look(page, nth)
        assert after["charts"] != before["charts"], label
        assert after["sentence"] != before["sentence"], label


def look(page, nth):
    """What an experiment shows: all its text, its sentence, its charts."""
    return page.evaluate(
        """nth => { const lab = document.querySelectorAll('.lab')[nth];
        const charts = [...lab.querySelectorAll('marimo-mime-renderer')].map(e => e.shadowRoot?.querySelector('svg')?.innerHTML);
        return {text: lab.querySelector('.lab-result').innerText, sentence: lab.querySelector('.lab-sentence')?.innerText,
                charts: charts.join('')} }""",
        nth,
    )


def test_a_moved_slider_does_not_wait_for_the_experiments_below(page, server):
    """While the fourth experiment trains for many seconds, the first answers at once, and the fourth goes on afterwards."""
    open_page(
        page, server, "?" + QUICK.replace("backend.size=2048&backend.epochs=2", "backend.size=32&backend.epochs=12")
    )
    state = "n => document.querySelectorAll('.lab')[n]?.querySelector('.lab-state b')?.innerText"
    page.wait_for_function(f"() => ({state})(3) === 'Training'", timeout=120_000)
    before = sentence(page)
    thumb(page, "Batch size").focus()
    page.keyboard.press("ArrowLeft")
    page.wait_for_function(
        "old => document.querySelector('.lab .lab-sentence') && document.querySelector('.lab .lab-sentence').innerText !== old",
        arg=before, timeout=8_000,
    )  # fmt: skip
    assert page.evaluate(state, 3) in ("Waiting", "Training"), "the fourth is not over yet"
    page.wait_for_function(f"() => ({state})(3) === 'Training'", timeout=10_000)
    page.locator(".lab >> nth=3 >> button", has_text="Stop").click()
    wait_over(page, 3, 10_000)


def test_a_link_restores_the_state(page, server):
    open_page(page, server, "?rate.count=3&rate.range=0.01,1&rate.hidden=64&size.sizes=512,4096")
    wait_over(page)
    page.locator(FIRST + "summary", has_text="Table").click()
    table = page.locator(FIRST + ".lab-table").inner_text()
    assert [line.split()[0] for line in table.splitlines()[1:4]] == ["0.01", "0.1", "1"]
    wait_over(page, 1)
    assert "512" in sentence(page, 1)


def test_stop(page, server):
    page.goto(server[0] + "?rate.size=1&rate.epochs=20&rate.count=8")
    page.wait_for_function(
        "() => document.querySelector('.lab .lab-state b')?.innerText === 'Training'", timeout=60_000
    )
    assert "left" in page.locator(FIRST + ".lab-state").inner_text()
    page.locator(FIRST + "button", has_text="Stop").click()
    wait_over(page, timeout=10_000)
    assert "Stopped" in page.locator(FIRST + ".lab-state").inner_text()
    assert "Stopped:" in sentence(page)


def test_a_bad_text_is_answered_where_the_person_looks(page, server):
    open_page(page, server)
    wait_over(page)
    field = page.locator(FIRST + "input[type=text]").first
    field.fill("128, many")
    page.wait_for_selector(FIRST + "p.lab-failed", timeout=10_000)
    assert "“many”" in page.locator(FIRST + "p.lab-failed").inner_text()
    field.fill("64")
    page.wait_for_selector(FIRST + ".lab-sentence", timeout=30_000)


def test_a_killed_worker_is_a_message_and_run_again_works(page, server):
    page.goto(server[0] + "?rate.size=1&rate.epochs=6&rate.count=4")
    page.wait_for_function(
        "() => document.querySelector('.lab .lab-state b')?.innerText === 'Training'", timeout=60_000
    )
    workers = [
        child
        for child in psutil.Process(server[1].pid).children(recursive=True)
        if "popen_loky" in " ".join(child.cmdline())
    ]
    for worker in workers:
        worker.kill()
    page.wait_for_function("() => document.querySelector('.lab .lab-state b')?.innerText === 'Failed'", timeout=10_000)
    assert "killed from outside" in sentence(page)
    thumb(page, "Batch size").focus()
    for _ in range(8):
        page.keyboard.press("ArrowRight")
    page.wait_for_function("() => document.querySelector('.lab .lab-state b')?.innerText === 'Done'", timeout=60_000)
    assert "was best" in sentence(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_does_not_scroll_sideways(server, chromium, scheme):
    context = chromium.new_context(viewport={"width": 390, "height": 844}, color_scheme=scheme)
    page = context.new_page()
    open_page(page, server)
    wait_over(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    wide = page.evaluate(
        "[...document.querySelectorAll('.lab, .lab-figure, .lab-title')].map(e => e.getBoundingClientRect().right)"
    )
    assert max(wide) <= 390
    context.close()


def test_drawing_changes_the_probabilities_and_agrees_with_numpy(page, server):
    open_page(page, server)
    page.wait_for_selector(".draw canvas", timeout=60_000)
    page.get_by_text("Draw a digit with the mouse").wait_for(timeout=60_000)  # the network has come
    page.locator(".draw canvas").scroll_into_view_if_needed()
    read = "() => { const e = [...document.querySelectorAll('*')].map(e => e.shadowRoot?.querySelector('.draw') ?? e.querySelector?.(':scope > .draw')).find(Boolean); return e.parentElement.dataset.probabilities }"
    page.locator(".draw button", has_text="Show a test digit").click()
    shown = json.loads(page.evaluate(read))
    assert sum(shown) == pytest.approx(1, abs=1e-4)
    assert int(np.argmax(shown)) == 0, "the first sample is a 0, and the best network knows it"
    page.locator(".draw button", has_text="Clear").click()
    box = page.locator(".draw canvas").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 150, box["y"] + 40)
    page.mouse.down()
    seen = []
    for step in range(10):
        page.mouse.move(box["x"] + 150 - step, box["y"] + 40 + 20 * step)
        seen.append(page.evaluate(read))
    page.mouse.up()
    assert len(set(seen)) > 3, "they change while drawing"
    assert int(np.argmax(json.loads(seen[-1]))) in (1, 7), "a vertical stroke"


def measured(page):
    """How many visits the race's line tells of."""
    return int(page.locator(".lab-state span").inner_text().split()[0])


def test_the_race_fills_cell_by_cell_stops_and_resumes(page, race_server):
    page.goto(race_server[0])
    page.wait_for_selector("button:has-text('Race')", timeout=60_000)
    assert "6.26 s" in page.locator(".race-published").first.inner_text(), (
        "the published figures are there from the start"
    )
    assert measured(page) == 0
    page.get_by_role("button", name="Race", exact=True).click()
    page.wait_for_function("() => document.querySelector('.lab-state span')?.innerText.match(/^[2-9]/)", timeout=90_000)
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
    page.locator(".race-published").first.wait_for(state="detached", timeout=10_000)
    assert "×" in page.locator("button.race-cell").first.inner_text() or page.locator(".race-waiting").count() > 0
    page.reload()
    page.wait_for_selector(".lab-state span", timeout=60_000)
    assert measured(page) == kept, "what was measured is kept"
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.fixture(scope="module")
def measured_step(tmp_path_factory):
    """A cache folder in which one step was taken apart, by the notebook as a script."""
    folder = tmp_path_factory.mktemp("anatomy")
    answer = subprocess.run(
        [sys.executable, "notebooks/anatomy_of_a_step.py", "--", "--step.size", "256", "--step.width", "16", "--step.by", "numpy/cpu,jax-epoch/cpu"],
        cwd=ROOT, capture_output=True, text=True, timeout=200, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT), "MNIST_CACHE_DIR": str(folder)},
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    assert "A step on 256 images takes" in answer.stdout
    return folder


@pytest.fixture
def opened():
    """Start a server on a notebook and a cache folder; its address. It ends with the test."""
    with ExitStack() as stack:
        yield lambda cache, notebook: stack.enter_context(serving(cache, notebook))[0]


def test_the_anatomy_is_served_from_the_store_and_measured_for_a_moved_slider(opened, page, measured_step):
    base = opened(measured_step, "notebooks/anatomy_of_a_step.py")
    page.goto(f"{base}/?step.size=256&step.width=16&step.by=numpy/cpu,jax-epoch/cpu")
    state = "() => document.querySelector('.lab-state b')?.innerText"
    page.wait_for_function(f"() => ({state})() === 'From store'", timeout=60_000)
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
    page.wait_for_function(f"() => ({state})() === 'Measuring'", timeout=20_000)
    page.wait_for_function(
        "() => /[1-9] of \\d+ exam|μs/.test(document.querySelector('table.anatomy')?.innerText)", timeout=60_000
    )
    page.wait_for_function("() => location.search.includes('step.size=')", timeout=10_000)
    page.get_by_role("button", name="Stop", exact=True).click()
    page.wait_for_function(f"() => ({state})() === 'Stopped'", timeout=20_000)
    slider.focus()
    page.keyboard.press("ArrowLeft")
    page.wait_for_function(f"() => ({state})() === 'From store'", timeout=20_000)
    assert page.locator(".lab-sentence").inner_text() == before, "a position seen before is not measured again"
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_traps_are_measured_and_told(opened, page, measured_step):
    base = opened(measured_step, "notebooks/traps.py")
    page.goto(f"{base}/?traps.size=512")
    page.wait_for_function("() => document.querySelector('.lab-state b')?.innerText === 'Done'", timeout=90_000)
    assert page.locator("table.claims tr").count() == 1 + 6
    assert "Largest mistake here" in page.locator(".lab-sentence").inner_text()
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_claims_stand_at_once_and_are_measured_on_request(opened, page, measured_step):
    base = opened(measured_step, "notebooks/claims.py")
    page.goto(base)
    page.wait_for_selector("table.claims", timeout=60_000)
    assert page.locator(".claim-wrong").count() >= 10, "corrections are arithmetic, and need no measurement"
    assert page.locator(".claim", has_text="not measured yet").count() >= 4
    page.get_by_role("button", name="Measure what is missing").click()
    page.wait_for_function("() => document.querySelector('.lab-state b')?.innerText === 'Measuring'", timeout=20_000)
    page.wait_for_function("() => document.querySelector('.lab-state progress')?.value > 0.1", timeout=90_000)
    page.get_by_role("button", name="Stop", exact=True).click()
    page.wait_for_function("() => document.querySelector('.lab-state b')?.innerText === 'Stopped'", timeout=20_000)
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
