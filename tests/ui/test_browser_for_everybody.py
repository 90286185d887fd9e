"""Accessibility of the first notebook: charts in words and as sound, presentation mode, and reduced motion."""

import pytest

from tests.browser import FIRST, MARKS, assert_accessible, move, open_menu, slider, tab, wait_over, wait_until

pytestmark = [*MARKS, pytest.mark.release]
# Quick settings, and the smallest ones for the experiments below.
QUICK = (
    "?rate.count=3&rate.size=4096&rate.epochs=2&size.sizes=4096&size.epochs=1&depth.networks=128&depth.size=4096"
    "&depth.epochs=1&backend.hidden=16&backend.size=4096&backend.epochs=2"
)
LONG = 90_000
# The first chart's text for screen readers.
LABEL = "() => document.querySelector('.lab-figure [role=img]')?.ariaLabel ?? ''"
# A silent AudioContext that records its calls and ends each tone at once.
DUMB = """() => { window.tones = []; window.contexts = 0;
    const track = () => { const values = [], keep = value => values.push(value);
        return {values, setValueAtTime: keep, linearRampToValueAtTime: keep, exponentialRampToValueAtTime: keep} };
    window.AudioContext = class { constructor() { window.contexts++ } currentTime = 0; destination = {};
        createGain() { const gain = track(); window.tones.at(-1).gain = gain.values; return {gain, connect: to => to} }
        createOscillator() { const frequency = track(), tone = {frequency: frequency.values, started: false};
            window.tones.push(tone);
            return {frequency, connect: to => to,
                    start() { tone.started = true; if (!window.hold) setTimeout(() => this.onended()) },
                    stop() {}} }
        close() { window.shut = (window.shut ?? 0) + 1 } } }"""


@pytest.fixture(scope="module")
def page(browser, server):
    with tab(browser) as opened:
        opened.goto(server + QUICK)
        wait_over(opened, 0, LONG)
        wait_until(opened, f"() => ({LABEL})().includes('3 lines')", None, LONG)
        yield opened


def test_chart_descriptions_follow_the_run(page):
    label = page.evaluate(LABEL)
    assert label.startswith("training loss by step. Across: step, 0 to 22. Up: loss, 0.02 to 8, logarithmic. 3 lines:")
    assert "Last loss: lowest" in label
    values = open_menu(page).locator(".lab-text").first
    values.locator("summary").focus()
    page.keyboard.press("Enter")
    names = values.locator("th[scope=row]").all_inner_texts()
    assert names == ["0.001", "0.032", "1"]
    move(page, "How many rates")
    wait_until(page, f"() => ({LABEL})().includes('4 lines')", None, LONG)
    wait_until(page, "n => document.querySelector('.lab-text').querySelectorAll('th[scope=row]').length === n", 4, LONG)
    wait_over(page, 0, LONG)
    wait_until(page, f"() => !({LABEL})().includes('Training:')", None, LONG)  # no run is described as running any more
    live = page.locator(FIRST + ".lab-result [aria-live]")
    assert [one.get_attribute("class") for one in live.all()] == ["lab-sentence"], "only the end of a run is announced"


def test_curves_are_played_in_turn_on_request(page):
    page.evaluate(DUMB)
    button = open_menu(page).get_by_role("button", name="Hear the curves")
    button.focus()
    assert page.evaluate("contexts") == 0, "nothing sounds by itself"
    page.keyboard.press("Enter")
    page.locator(FIRST + ".lab-menu").get_by_role("status").filter(has_text="Played: training loss").wait_for(
        timeout=LONG
    )
    tones = page.evaluate("tones")
    losses = page.locator(FIRST + ".lab-text >> nth=0 >> tr:has(td)").all_inner_texts()
    assert len(tones) == len(losses) == 4
    assert all(tone["started"] and 0 < max(tone["gain"]) <= 0.1 for tone in tones), "softly"
    assert all(220 <= frequency <= 1760 for tone in tones for frequency in tone["frequency"])
    for tone, text in zip(tones, losses, strict=True):
        _, first, _, _, last = text.split("\t")
        rises = tone["frequency"][-1] > tone["frequency"][0]
        assert rises == (float(last) > float(first)), "the tone falls as the loss falls"
    assert min(tone["frequency"][-1] / tone["frequency"][0] for tone in tones) < 0.95, (
        "of the best rate it falls clearly"
    )
    assert page.evaluate("shut") == 1


def test_a_pinned_run_stays_beside_the_next_with_the_same_axes(page):
    pin = open_menu(page).get_by_role("button", name="Pin this run")
    pin.focus()
    page.keyboard.press("Enter")
    said = page.locator(FIRST + ".lab-difference")
    said.filter(has_text="This run is pinned").wait_for(timeout=LONG)
    pinned = page.locator(FIRST + ".lab-menu").get_by_role("button", name="Unpin this run")
    pinned.wait_for(timeout=LONG)
    assert pinned.evaluate("e => e.getRootNode().activeElement === e"), (
        "the button says what it does next, in its place"
    )
    move(page, "Epochs")
    said.filter(has_text="Epochs 2 pinned, 3 now. Best pinned:").wait_for(timeout=LONG)
    ticks = """() => [...document.querySelectorAll('.lab-figure')].slice(0, 2).map(figure =>
        [...figure.querySelector('marimo-mime-renderer').shadowRoot?.querySelectorAll('g.role-axis-label text') ?? []]
            .map(text => text.textContent).join())"""
    wait_until(page, f"() => {{ const [one, other] = ({ticks})(); return one && one === other }}", None, LONG)
    page.reload()
    said.filter(has_text="Epochs 2 pinned, 3 now. Best pinned:").wait_for(timeout=LONG)
    assert page.locator(FIRST + ".lab-kept").count() == 2
    open_menu(page)
    pinned.click()
    pin.wait_for(timeout=LONG)
    page.locator(FIRST + ".lab-kept").first.wait_for(state="detached", timeout=LONG)
    wait_until(page, "() => new URL(location).searchParams.get('rate.pin') === ''", None, LONG)


SEEN = "() => [...document.querySelectorAll('#App h1, #App h2')].filter(e => e.checkVisibility()).map(e => e.innerText)"


def test_a_presentation_shows_one_section_a_screen(page):
    page.set_viewport_size({"width": 1920, "height": 1080})
    page.get_by_role("button", name="Present", exact=True).click()
    bar = page.get_by_role("navigation", name="Presentation")
    bar.get_by_text("Why is my GPU slower").wait_for(timeout=LONG)
    page.keyboard.press("PageDown")
    bar.get_by_text("1 · How large a step?").wait_for(timeout=LONG)
    assert page.evaluate(SEEN) == ["1 · How large a step?"]
    low = page.locator(FIRST + ".lab-sentence").bounding_box()
    assert low is not None
    assert low["y"] + low["height"] < 1080, "charts and sentence have room on one screen"
    size = page.evaluate(
        "() => document.querySelector('.lab-figure marimo-mime-renderer').shadowRoot.querySelector('text')"
        ".getBoundingClientRect().height"
    )
    assert size > 15, "as large as a wall is far away"
    slider(page, "Epochs").focus()
    before = page.url
    page.keyboard.press("PageDown")  # as a remote does; a focused slider would move
    wait_until(page, f"() => ({SEEN})()[0] === '2 · How many images a step?'", None, LONG)
    assert page.url == before.replace("present=1", "present=2")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("PageUp")
    wait_until(page, f"() => ({SEEN})()[0].startsWith('Why is my GPU slower')", None, LONG)
    assert bar.get_by_role("button", name="Previous screen").is_disabled()
    page.keyboard.press("Escape")
    bar.wait_for(state="detached", timeout=LONG)
    assert "present=" not in page.url
    assert len(page.evaluate(SEEN)) > 5, "all of the page is there again"


def test_a_link_opens_an_accessible_presentation(page, server):
    page.goto(server + QUICK + "&present=2&rate.pin=usual")
    page.get_by_role("navigation", name="Presentation").get_by_text("2 · How many images").wait_for(timeout=LONG)
    wait_over(page, 1, LONG)
    assert_accessible(page)
    page.keyboard.press("Escape")


def test_nothing_of_a_result_is_revealed_before_predicting(page, server):
    held = FIRST + ":is(.lab-figure, [role=img], .lab-difference, .lab-menu, .lab-details)"
    page.goto(server + QUICK + "&predict=1&present=1&rate.pin=count%3D2%26size%3D4096%26epochs%3D1")
    page.locator(FIRST + ".guess").get_by_role("button", name="1", exact=True).wait_for(timeout=LONG)
    assert page.locator(held).count() == 0
    assert page.evaluate(SEEN) == ["1 · How large a step?"]
    page.locator(FIRST + ".guess").get_by_role("button", name="1", exact=True).click()
    page.locator(FIRST + ".lab-sentence", has_text="You said 1").wait_for(timeout=LONG)
    page.locator(FIRST + ".lab-difference", has_text="stays hidden").wait_for(timeout=LONG)
    assert page.locator(FIRST + ".lab-kept").count() == 0
    page.keyboard.press("Escape")


def test_nothing_is_animated_with_reduced_motion(page):
    page.emulate_media(reduced_motion="reduce")
    moving = """() => { const roots = root => [root, ...[...root.querySelectorAll('*')].filter(e => e.shadowRoot)
            .flatMap(e => roots(e.shadowRoot))];
        return roots(document).flatMap(root => root.getAnimations()).map(one => one.effect.target.className) }"""
    for _ in range(3):
        move(page, "Epochs")
        assert page.evaluate(moving) == []
    wait_over(page, 0, LONG)
    page.emulate_media(reduced_motion="no-preference")


def test_without_javascript_the_page_says_what_it_needs(page, server):
    context = page.context.browser.new_context(java_script_enabled=False)
    bare = context.new_page()
    bare.goto(server)
    said = bare.evaluate("getComputedStyle(document.body, '::before').content")
    context.close()
    assert "needs JavaScript" in said
