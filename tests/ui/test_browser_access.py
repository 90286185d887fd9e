"""The door and the full page in a real browser: readable, by keyboard, and in by itself when a place is free."""

from contextlib import ExitStack, suppress

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.browser import MARKS, VIEWERS, assert_accessible

pytestmark = MARKS


@pytest.fixture
def closed(page, closed_site):
    """The address of a site that this browser has not entered."""
    page.context.clear_cookies()
    return closed_site.base


def test_the_door_opens_with_the_password_alone(page, closed, closed_site):
    page.goto(f"{closed}/?rate.epochs=1")
    assert page.url == f"{closed}/enter?next=/%3Frate.epochs%3D1"
    assert page.get_by_label("Password of the class").is_visible()
    assert_accessible(page)
    page.get_by_label("Password of the class").focus()
    page.keyboard.type(closed_site.password)
    page.keyboard.press("Enter")
    page.wait_for_url(f"{closed}/mnist_training/?rate.epochs=1", timeout=60_000)
    assert closed_site.password not in page.evaluate("document.cookie"), "no script sees the cookie"
    page.goto("about:blank")


def test_a_link_lets_in_and_leaves_no_token_behind(page, closed, closed_site):
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
            with suppress(InvalidStatus):  # a viewer of another test may still have a place
                inside.enter_context(connect(address, additional_headers={"Cookie": cookie}, max_size=None))
        outside = context.new_page()
        full = outside.goto(f"{base}/claims/")
        assert full.status == 503
        page.set_content(full.text())  # a copy does not reload while axe looks at it
        assert page.get_by_text(f"Places for viewers: {VIEWERS}. All are taken.").is_visible()
        assert_accessible(page)
        inside.close()
        outside.wait_for_selector(".lab-nav", timeout=60_000)
        assert outside.url == f"{base}/claims/"
