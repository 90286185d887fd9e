"""Navigation between notebooks in a real browser: on the class site, and in the password-protected editor."""

from contextlib import suppress
from urllib.parse import unquote

import psutil
import pytest

from lib.sweeps.experiments.published import ADDRESSES
from lib.sweeps.workers.queue import MachineLock
from lib.ui.notebooks import NOTEBOOKS, SERVED
from tests.browser import DESK, FIRST, MARKS, PHONE, found_by_axe
from tests.site.test_server import started

pytestmark = [*MARKS, pytest.mark.release]
HERE = "title => document.querySelector('.lab-nav [aria-current=page]')?.innerText === title"


@pytest.fixture(scope="module")
def base(site):
    return site.base


def follow(page, title):
    page.get_by_role("navigation", name="Notebooks").get_by_role("link", name=title, exact=True).click()
    page.wait_for_function(HERE, arg=title, timeout=60_000)


WITHOUT_SECTIONS = ("claims",)
SEEN = "() => [...document.querySelectorAll('#App h1, #App h2')].filter(e => e.checkVisibility()).map(e => e.innerText)"
DRAWN = "() => document.querySelector('#App :is(.lab, .race-head, .lab-failed, table.claims, table.compare)')"


@pytest.mark.timeout(900)
def test_a_class_can_go_through_all_notebooks(page, base):
    page.goto(base)
    assert_touch_targets_are_large_enough(page, "/")
    page.get_by_role("link", name=NOTEBOOKS[-1].title).click()
    page.wait_for_selector(".lab-nav", timeout=60_000)
    for notebook in (NOTEBOOKS[-1], *NOTEBOOKS[:-1]):
        if notebook is not NOTEBOOKS[-1]:
            follow(page, notebook.title)
        assert page.url == base + notebook.path
        page.wait_for_selector("h1", timeout=20_000)
        for address in filter(None, map(ADDRESSES.get, notebook.articles)):
            assert page.locator(f".lab-note a[href='{address}']").first.get_attribute("target") == "_blank"
        assert_presents_one_section_a_screen(page, notebook)
        assert_touch_targets_are_large_enough(page, notebook.path)
    follow(page, NOTEBOOKS[-1].title)
    page.locator("span, p, div", has_text="Try next.").last.get_by_role("link", name="Inside a step").click()
    page.wait_for_function(HERE, arg="Inside a step", timeout=60_000)
    page.get_by_role("button", name="Stop", exact=True).first.click()
    page.set_viewport_size(PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.goto(base + NOTEBOOKS[0].path)
    page.get_by_role("link", name="JAX, one call a step").click(timeout=60_000)
    page.wait_for_function("document.getElementById('6-what-would-help')?.getBoundingClientRect().top < 300")


def assert_presents_one_section_a_screen(page, notebook):
    page.set_viewport_size({"width": 1920, "height": 1080})
    page.wait_for_function(DRAWN, timeout=60_000)
    start, bar = (
        page.get_by_role("button", name="Present", exact=True),
        page.get_by_role("navigation", name="Presentation"),
    )
    if notebook.name in WITHOUT_SECTIONS:
        page.wait_for_timeout(2000)
        assert start.count() == 0, notebook.name
        return
    start.click(timeout=60_000)
    page.wait_for_timeout(3000)  # its last sections are drawn
    every, seen = page.evaluate("document.querySelectorAll('#App h2').length"), []
    while True:
        shown = page.evaluate(SEEN)
        assert len(shown) == 1, (notebook.name, shown)
        assert shown[0] in bar.get_by_role("status").inner_text()
        assert page.evaluate("document.documentElement.scrollWidth") <= 1920
        assert page.locator(".lab-nav").is_hidden()
        seen += shown
        if bar.get_by_role("button", name="Next screen").is_disabled():
            break
        page.keyboard.press("PageDown")
    assert len(set(seen)) == len(seen) >= every, (notebook.name, seen)
    page.keyboard.press("Escape")
    page.locator(".lab-nav").wait_for()


def assert_touch_targets_are_large_enough(page, path):
    """Check a phone with all closed parts opened; most are closed in the tests of each page."""
    page.set_viewport_size(PHONE)
    page.locator("main, [role=main]").wait_for(timeout=60_000)
    page.wait_for_timeout(2000)  # controls and closed parts come with the first frames
    page.evaluate("() => document.querySelectorAll('details').forEach(one => { one.open = true })")
    page.wait_for_timeout(300)
    assert not [one for one in found_by_axe(page) if one[0] == "target-size"], path
    page.set_viewport_size(DESK)


def test_problems_of_an_address_are_shown_with_the_title(page, base):
    page.add_init_script("""new MutationObserver(() => {
        const title = document.querySelector('.lab-title');
        if (title && window.firstSaid === undefined)
            window.firstSaid = [...document.querySelectorAll('.lab-problem')].map(e => e.innerText).join();
    }).observe(document, {childList: true, subtree: true})""")
    page.goto(f"{base}/?search.seed=-1&rate.epochs=1&rate.size=4096&rate.count=2")
    page.wait_for_function("() => window.firstSaid !== undefined", timeout=60_000)
    assert "search.seed=-1: expected a whole number from 0 to 9999" in page.evaluate("window.firstSaid")
    page.get_by_label("Drawn with seed").first.wait_for(timeout=60_000)
    assert page.get_by_text("internal error").count() == 0
    page.get_by_role("button", name="Reset", exact=True).click()
    # Without MNIST, the note about the images rightly stays.
    page.wait_for_function(
        "() => !document.querySelector('.lab-problem:not(.lab-images)') && !location.search", timeout=20_000
    )


def test_the_editor_navigates_between_notebooks(page, tmp_path):
    with started("edit", tmp_path, "notebooks/which_library.py") as (_, base, opener):
        page.context.add_cookies(
            [{"name": one.name, "value": one.value, "url": base, "httpOnly": True} for one in opener.jar]
        )
        page.goto(base)
        page.wait_for_function(HERE, arg="Which library?", timeout=90_000)
        follow(page, "Claims")
        assert unquote(page.url) == f"{base}/?file=notebooks/claims.py&view-as=present"
        page.wait_for_selector("table.claims", timeout=90_000)
        page.goto("about:blank")


def workers_of(server):
    return [
        one
        for one in psutil.Process(server.pid).children(recursive=True)
        if "lib.sweeps.workers" in " ".join(cmdline(one))
    ]


def cmdline(process):
    with suppress(psutil.Error):
        return process.cmdline()
    return []


@pytest.mark.parametrize("left_for", ["about:blank", "/?file=notebooks/which_library.py&view-as=present"])
def test_a_page_left_in_the_editor_yields_its_turn_until_shown(page, tmp_path, monkeypatch, left_for):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv(SERVED, "edit")
    with started("edit", tmp_path, "mnist_training.py") as (server, base, opener):
        page.context.add_cookies(
            [{"name": one.name, "value": one.value, "url": base, "httpOnly": True} for one in opener.jar]
        )
        here, turn = f"{base}/?file=mnist_training.py&view-as=present&rate.epochs=100&rate.size=1", MachineLock()
        page.goto(here)
        page.wait_for_selector(".lab-training", timeout=120_000)
        before = workers_of(server)
        assert before
        assert turn.holder() is not None
        page.goto(left_for if left_for == "about:blank" else base + left_for)
        page.wait_for_timeout(1000 * (5 + 3))  # 3 s more than promised, because this machine may be busy
        for _ in range(20):
            assert turn.holder() is None
            page.wait_for_timeout(50)
        assert turn.take()
        page.goto(here)
        page.wait_for_selector(".lab-end", timeout=60_000)
        assert not turn.is_to_end()
        page.locator(".lab-end").first.click()
        page.wait_for_timeout(500)
        assert turn.is_to_end()
        turn.release()
        page.wait_for_selector(".lab-training", timeout=60_000)
        assert workers_of(server) == before, "they go on"
        page.goto(here.replace("epochs=100&rate.size=1", "epochs=1&rate.size=4096"))
        page.wait_for_selector(f"{FIRST}.lab-done", timeout=60_000)  # not the hundred epochs of before
        page.goto("about:blank")
