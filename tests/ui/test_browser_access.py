"""The class site's own pages in a real browser: front page, password form, and the full-site page, which retries."""

from contextlib import ExitStack, suppress

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from lib.ui.notebooks import NOTEBOOKS
from tests.browser import MARKS, PHONE, VIEWERS, assert_accessible

pytestmark = MARKS


@pytest.fixture
def closed(page, closed_site):
    page.context.clear_cookies()
    return closed_site.base


def test_the_password_form_gives_access(page, closed, closed_site):
    page.goto(f"{closed}/?rate.epochs=1")
    assert page.url == f"{closed}/enter?next=/%3Frate.epochs%3D1"
    assert page.get_by_label("Class password").is_visible()
    assert_accessible(page)
    page.get_by_label("Class password").focus()
    page.keyboard.type(closed_site.password)
    page.keyboard.press("Enter")
    page.wait_for_url(f"{closed}/mnist_training/?rate.epochs=1", timeout=60_000)
    assert closed_site.password not in page.evaluate("document.cookie"), "no script sees the cookie"
    page.goto("about:blank")


def test_a_link_gives_access_and_its_token_leaves_the_history(page, closed, closed_site):
    page.goto(f"{closed}/?teacher={closed_site.keys.token('teacher')}")
    assert page.url == f"{closed}/"
    page.get_by_role("heading", name="Why is my GPU slower?").wait_for()
    page.go_back()
    page.go_forward()
    assert page.url == f"{closed}/"


@pytest.mark.release
def test_the_full_page_opens_the_notebook_once_there_is_room(browser, page, closed_site):
    base = closed_site.base
    with browser.browser.new_context() as context, ExitStack() as inside:
        name, value = closed_site.cookie("outside")
        context.add_cookies([{"name": name, "value": value, "url": base}])
        for number in range(VIEWERS):
            cookie = "=".join(closed_site.cookie(str(number)))
            address = f"{base.replace('http', 'ws', 1)}/claims/ws?session_id=s_{number}"
            with suppress(InvalidStatus):  # a viewer of another test may still hold a place
                inside.enter_context(connect(address, additional_headers={"Cookie": cookie}, max_size=None))
        outside = context.new_page()
        full = outside.goto(f"{base}/claims/")
        assert full.status == 503
        page.set_content(full.text())  # a copy does not reload while axe checks it
        assert page.get_by_text(f"Places for viewers: {VIEWERS}. All are taken.").is_visible()
        assert_accessible(page)
        inside.close()
        outside.wait_for_selector(".lab-nav", timeout=60_000)
        assert outside.url == f"{base}/claims/"


def test_the_front_page_is_accessible(page, site):
    page.goto(site.base)
    assert page.get_by_role("heading", level=1).inner_text() == "Why is my GPU slower?"
    assert page.locator(".notebooks h2").all_inner_texts() == [one.title for one in NOTEBOOKS]
    assert_accessible(page)


def test_cards_can_be_reached_and_opened_by_keyboard(page, site):
    page.set_viewport_size(PHONE)
    page.goto(site.base)
    page.keyboard.press("Tab")  # the link from the answer to its notebook
    for notebook in NOTEBOOKS[:3]:
        page.keyboard.press("Tab")
        focused = page.evaluate("[document.activeElement.innerText, document.activeElement.matches(':focus-visible')]")
        assert focused == [notebook.title, True]
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    page.wait_for_url(f"{site.base}{NOTEBOOKS[1].path}", timeout=60_000)


def test_a_whole_card_is_a_link(page, site):
    page.goto(site.base)
    page.locator(".picture").nth(len(NOTEBOOKS) - 1).click(force=True)
    page.wait_for_url(f"{site.base}{NOTEBOOKS[-1].path}", timeout=60_000)
    page.wait_for_selector(".lab-nav", timeout=60_000)
    page.get_by_role("link", name="All notebooks").click()
    page.wait_for_url(f"{site.base}/", timeout=60_000)
