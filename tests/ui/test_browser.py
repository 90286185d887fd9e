"""The training notebook in a real browser: results, sliders, Stop, addresses, and a silent console."""

import json
import re
import time
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import pytest
from playwright.sync_api import expect

from lib.sweeps.workers.messages import State
from tests.browser import (
    ACTIVE,
    FIRST,
    GROUND,
    MARKS,
    PHONE,
    STATE,
    assert_accessible,
    begin,
    move,
    open_menu,
    open_page,
    slider,
    tab,
    wait_for_state,
    wait_over,
    wait_until,
)
from tests.contrast import contrast

TABLE = ".lab-table:not(.lab-values)"  # the result's table; those of the charts' values come before it
pytestmark = MARKS


def sentence(page, nth=0):
    return page.locator(f".lab >> nth={nth} >> .lab-sentence").inner_text()


# Small settings, so that each move trains quickly; two lines per experiment are enough.
QUICK_BACKENDS = "backend.hidden=16&backend.size=2048&backend.epochs=2"
QUICK_OTHERS = (
    f"size.sizes=512,4096&size.epochs=2&depth.networks=128,256&depth.size=512&depth.epochs=2&{QUICK_BACKENDS}"
)
QUICK = f"rate.count=2&rate.size=512&rate.epochs=2&{QUICK_OTHERS}"
# The first test's results are reused by the others that open this page. Its networks recognize drawn digits. At batch
# size 32 Keras alone takes half a minute. The sliders' test starts with the same settings of the backends.
FILLED = f"?size.sizes=32,256&size.epochs=1&depth.networks=128,256&depth.size=128&depth.epochs=2&{QUICK_BACKENDS}"


# For each chart of the first experiment: whether it is still the marked drawing, and all that it shows.
DRAWINGS = """() => [...document.querySelectorAll('.lab')[0].querySelectorAll('.lab-figure marimo-mime-renderer')]
    .map(e => e.shadowRoot?.querySelector('svg.marks')).map(svg => ({ kept: svg?.classList.contains('before') ?? false,
        shown: [...svg?.querySelectorAll('text, path, line') ?? []].map(e => [e.textContent, ...['d', 'transform', 'x2',
            'y2', 'stroke', 'fill', 'opacity'].map(name => e.getAttribute(name))].join(' ')).sort().join('; ') }))"""
MARK = """() => [...document.querySelectorAll('.lab')[0].querySelectorAll('.lab-figure marimo-mime-renderer')]
    .forEach(e => e.shadowRoot.querySelector('svg.marks').classList.add('before'))"""


def shown(page):
    return [one["shown"] for one in page.evaluate(DRAWINGS)]


@pytest.mark.release
def test_a_moved_slider_updates_the_drawn_charts(page, server, browser):
    open_page(page, server, "?" + QUICK)
    wait_over(page)
    page.evaluate(MARK)
    for label, setting in (("Epochs", "rate.epochs=3"), ("How many rates", "rate.count=3")):
        move(page, label)
        wait_until(page, "setting => location.search.includes(setting)", setting, 20_000)
        with tab(browser) as other:
            open_page(other, server, "?" + urlsplit(page.url).query)
            wait_over(other)
            wait_over(page)
            limit = time.monotonic() + 60  # the last rows are drawn some time after the run is reported as over
            while not all(fresh := shown(other)) or shown(page) != fresh:
                assert time.monotonic() < limit, "\n".join([*shown(page), "is not", *fresh])
                page.wait_for_timeout(200)
        assert [one["kept"] for one in page.evaluate(DRAWINGS)] == [True] * 2
    page.evaluate(  # marimo then draws the rows that it first received
        "() => { const drawn = document.querySelector('.lab marimo-mime-renderer'), at = drawn.parentElement;"
        " drawn.remove(); at.append(drawn) }"
    )
    wait_until(page, f"() => {{ const [one] = ({DRAWINGS})(); return one.shown && !one.kept }}", None, 10_000)
    wait_until(page, f"fresh => ({DRAWINGS})()[0].shown === fresh[0]", fresh, 10_000)


# Backends first: their workers are still running, and the other experiments' results are all in the store.
SLIDERS = (
    (3, "backend", ("Batch size", "Epochs", "Learning rate")),
    (0, "rate", ("Learning rates", "How many rates", "Epochs", "Batch size")),
    (1, "size", ("Epochs", "Learning rate", "Target accuracy")),
    (2, "depth", ("Epochs", "Learning rate", "Batch size")),
)

LOOK = """nth => { const lab = document.querySelectorAll('.lab')[nth];
    const charts = [...lab.querySelectorAll('marimo-mime-renderer')]
        .map(e => e.shadowRoot?.querySelector('svg')?.innerHTML);
    return {state: lab.querySelector('.lab-state b')?.innerText, text: lab.querySelector('.lab-result').innerText,
            sentence: lab.querySelector('.lab-sentence')?.innerText, charts: charts.join('')} }"""

MOVED = f"""([nth, old]) => {{ const now = ({LOOK})(nth); return ['Done', 'Saved result'].includes(now.state)
    && now.sentence && now.text !== old.text && now.charts !== old.charts }}"""  # charts follow their frame


@pytest.fixture(scope="module")
def quick_page(browser, server):
    """One page for all slider tests: its sliders are independent, and opening it takes seconds."""
    with tab(browser) as opened:
        open_page(opened, server, "?" + QUICK)
        yield opened


@pytest.mark.parametrize(
    ("nth", "name", "labels"),
    [pytest.param(*one, id=one[1], marks=[pytest.mark.release] if one[1] == "backend" else []) for one in SLIDERS],
)
def test_every_slider_changes_chart_sentence_and_address(quick_page, nth, name, labels):
    page = quick_page
    wait_over(page, nth, 90_000)
    for label in labels:
        address, before = page.url, look(page, nth)
        move(page, label, nth)  # for a range, the upper end: this page's best rate
        page.wait_for_function("old => location.href !== old", arg=address, timeout=10_000)
        changed = settings_of(page.url) - settings_of(address)
        assert all(key.startswith(f"{name}.") for key, _ in changed), "of this experiment and of no other"
        wait_until(page, MOVED, [nth, before], 90_000)
        kept = "element => element.getRootNode().activeElement === element"
        assert slider(page, label, nth).last.evaluate(kept), "the slider keeps the focus"
        after = look(page, nth)
        assert after["charts"] != before["charts"], label
        assert after["sentence"] != before["sentence"], label


def settings_of(address: str) -> set[tuple[str, str]]:
    return set(parse_qsl(urlsplit(address).query))


def look(page, nth):
    return page.evaluate(LOOK, nth)


def test_a_moved_slider_does_not_wait_for_the_experiments_below(page, server):
    open_page(page, server, "?" + QUICK.replace(QUICK_BACKENDS, "backend.hidden=16&backend.size=32&backend.epochs=12"))
    begin(page, 3)
    wait_for_state(page, "Training", 3, 120_000)
    before = sentence(page)
    move(page, "Batch size", key="ArrowLeft")
    page.wait_for_function(
        "old => ![old, '', undefined].includes(document.querySelector('.lab .lab-sentence')?.innerText)",
        arg=before,
        timeout=60_000,
    )
    assert State(page.evaluate(f"n => {STATE}", 3)).under_way, "the fourth is not over yet"
    wait_for_state(page, "Training", 3, 10_000)
    page.locator(".lab >> nth=3 >> button", has_text="Stop").click()
    wait_over(page, 3, 10_000)


def test_a_link_restores_the_state(page, server):
    open_page(page, server, f"?rate.count=3&rate.size=512&rate.range=0.01,1&rate.hidden=64&{QUICK_OTHERS}")
    wait_over(page)
    open_menu(page).locator("summary", has_text="Table").click()
    table = page.locator(FIRST + TABLE).inner_text()
    assert [line.split()[0] for line in table.splitlines()[1:4]] == ["0.01", "0.1", "1"]
    wait_over(page, 1)
    assert "512" in sentence(page, 1)


def test_a_link_with_all_settings_or_the_answer_as_text_is_copied(page, server):
    """The editor's address may carry a token; an app's page drops it."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    open_page(page, server, f"?{QUICK}")
    page.evaluate("() => history.replaceState(null, '', `${location.href}&access_token=secret`)")
    page.locator(".answer [role=slider]").focus()
    page.keyboard.press("ArrowRight")
    page.locator(".lab-nav a[href*='net.size=64']").first.wait_for(timeout=10_000)
    assert page.get_by_label("Batch size of your network").input_value() == "64"
    page.get_by_label("Hidden layers of your network").fill("64, 32")
    page.get_by_label("You train with").select_option("Keras on TensorFlow")
    page.locator(".lab-nav a[href*='net.today=keras-tensorflow']").first.wait_for(timeout=10_000)
    page.get_by_role("button", name="Copy link").click()
    page.get_by_text("Copied").wait_for(timeout=10_000)
    copied = settings_of(page.evaluate("navigator.clipboard.readText()"))
    assert copied >= {*parse_qsl(QUICK), ("net.size", "64"), ("net.hidden", "64, 32")}
    assert "access_token" not in dict(copied)
    page.get_by_role("button", name="Copy answer").click()
    page.get_by_text("Copied as text").wait_for(timeout=10_000)
    title, said, gpu, change, rows, network, _ = page.evaluate("navigator.clipboard.readText()").split("\n\n")
    assert (title, network) == ("Why is my GPU slower?", "Network: 784→128→10, batch size 64"), "as shown"
    assert said == page.locator(".answer .lab-sentence").inner_text()
    assert gpu.startswith("Would a GPU help? Published with Keras on TensorFlow")
    assert change.startswith("One line to change\nKeras on TensorFlow → Keras on JAX")
    assert re.search(r"^- .*H100, (recorded|predicted): [\d.]+", rows, re.MULTILINE)
    page.get_by_role("button", name="Use on all pages").click()
    page.wait_for_url(lambda url: "net.today=keras-tensorflow" in url, timeout=10_000)


def test_stop_ends_a_run_and_run_again_restarts_it(page, server):
    page.goto(f"{server}?rate.size=1&rate.epochs=20&rate.count=8&{QUICK_OTHERS}")
    wait_for_state(page, "Training")
    page.wait_for_function(
        "() => document.querySelector('.lab .lab-state')?.innerText.includes('left')", timeout=20_000
    )
    page.locator(FIRST + "button", has_text="Stop").click()
    wait_over(page, timeout=10_000)
    assert "Stopped" in page.locator(FIRST + ".lab-state").inner_text()
    assert "Stopped:" in sentence(page)
    page.locator(FIRST + "button", has_text="Run again").click()  # it keeps the focus, and must not move “Stop”
    wait_for_state(page, "Training")
    page.locator(FIRST + "button", has_text="Stop").click()
    wait_over(page, timeout=10_000)


def test_invalid_text_is_reported_in_its_section(page, server):
    open_page(page, server, "?" + QUICK)
    wait_over(page)
    field = page.locator(FIRST + "input[type=text]").first
    field.fill("128, many")
    page.wait_for_selector(FIRST + "p.lab-failed", timeout=10_000)
    assert "“many”" in page.locator(FIRST + "p.lab-failed").inner_text()
    field.fill("64")
    page.wait_for_selector(FIRST + ".lab-sentence", timeout=30_000)


@pytest.mark.images
def test_all_experiments_fill_in_turn_and_are_accessible(page, server):
    page.set_viewport_size(PHONE)
    open_page(page, server, FILLED)
    for nth, words in enumerate(("was best", "fastest epochs", "parameters", "times as long")):
        wait_over(page, nth, 120_000)
        assert words in sentence(page, nth)
        page.locator(f".lab >> nth={nth} >> .lab-figure svg").first.wait_for(timeout=20_000)
    page.locator(".draw canvas").scroll_into_view_if_needed()
    page.wait_for_selector(".lab-confusion", timeout=60_000)
    assert_accessible(page)


def test_controls_have_accessible_names_and_values(page, server):
    """Screen readers get the text next to a slider, not the position of its thumb."""
    open_page(page, server, "?" + QUICK)
    first = page.locator(".lab >> nth=0")
    size = first.get_by_role("slider", name="Batch size")
    expect(size).to_have_attribute("aria-valuetext", "512", timeout=20_000)  # once marimo has drawn the control
    size.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => location.search.includes('rate.size=1024')", timeout=10_000)
    expect(size).to_have_attribute("aria-valuetext", "1024")
    ends = [first.get_by_role("slider", name=f"Learning rates, {end}") for end in ("lowest", "highest")]
    assert [one.get_attribute("aria-valuetext") for one in ends] == ["0.001", "1"]
    seed = page.get_by_role("textbox", name="Drawn with seed", exact=True)
    assert seed.get_attribute("value") == "0"
    assert page.get_by_role("button", name="Increase Drawn with seed", exact=True).count() == 1


FOCUSED = f"""() => {{ const e = {ACTIVE}, of = getComputedStyle(e), role = e.getAttribute('role') ?? e.localName;
    return [role, of.outlineStyle, parseFloat(of.outlineWidth), of.outlineColor] }}"""


def test_focus_is_visible(page, server):
    open_page(page, server, FILLED)
    page.locator(".lab >> nth=0").get_by_role("combobox").first.wait_for(timeout=20_000)  # the last control to visit
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.get_by_role("button", name="Reset", exact=True).focus()
        seen = []
        for _ in range(30):
            page.keyboard.press("Tab")
            seen.append(page.evaluate(FOCUSED))
        assert {"slider", "button", "input", "select"} <= {kind for kind, *_ in seen}
        assert {(style, width) for _, style, width, _ in seen} == {("solid", 2)}
        ground = page.evaluate(GROUND)
        assert all(contrast(color, ground) >= 4.5 for *_, color in seen), seen


@pytest.mark.release
@pytest.mark.images
def test_drawing_changes_the_probabilities_and_agrees_with_numpy(page, server):
    open_page(page, server, FILLED)
    for nth in range(4):
        wait_over(page, nth, 120_000)
    # The drawing uses the best network of the last run to finish: after four saved results that is any of them, and the
    # fourth's networks recognize no digit.
    page.reload()
    for nth in range(4):
        begin(page, nth)
        page.locator(f".lab >> nth={nth} >> .lab-state b", has_text="Saved result").wait_for(timeout=60_000)
    page.locator(".lab >> nth=0").get_by_role("button", name="Run again").click()
    page.locator(".lab >> nth=0 >> .lab-state b", has_text="Done").wait_for(timeout=120_000)
    page.locator(".draw canvas").scroll_into_view_if_needed()
    page.get_by_text("Draw a digit with the mouse").wait_for(timeout=60_000)  # the network has arrived
    read = (
        "() => { const e = [...document.querySelectorAll('*')].map(e => e.shadowRoot?.querySelector('.draw') ??"
        " e.querySelector?.(':scope > .draw')).find(Boolean); return e.parentElement.dataset.probabilities }"
    )
    page.locator(".draw button", has_text="Show a test digit").click()
    shown = json.loads(page.evaluate(read))
    assert sum(shown) == pytest.approx(1, abs=1e-4)
    # The first sample is a 0, and the last run's network, which may only now replace another, recognizes it.
    page.wait_for_function(
        f"() => {{ const p = JSON.parse(({read})()); return p.indexOf(Math.max(...p)) === 0 }}", timeout=30_000
    )
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


@pytest.mark.release
@pytest.mark.images
def test_a_search_runs_on_request_and_is_saved(page, server):
    query = FILLED + "&search.count=16&search.epochs=1&search.sizes=4096&search.widths=16,32&search.depths=1"
    open_page(page, server, query)
    page.get_by_role("button", name="Stop all").click()  # other tests cover the experiments above
    begin(page, 4)
    line = page.locator(".lab >> nth=4 >> .lab-state")
    line.wait_for(timeout=60_000)
    assert "press “Search”" in line.inner_text()
    page.get_by_role("button", name="Search", exact=True).click()
    wait_over(page, 4, 60_000)
    wait_for_state(page, "Done", 4)
    told = sentence(page, 4)
    assert "Best of 16" in told
    assert page.locator(".lab >> nth=4 >> .lab-figure svg").count() == 1
    page.reload()
    begin(page, 4)
    wait_for_state(page, "Saved result", 4)
    assert sentence(page, 4) == told
