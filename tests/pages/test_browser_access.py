"""The door and the full page in a real browser: readable, by keyboard, and in by itself when a place is free."""

import pytest

from lib.pages.access import Card, Keys, kept_secret
from tests.browser import MARKS, assert_accessible, serving

pytestmark = MARKS
PASSWORD = "correct horse"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    (cache / "password").write_text(PASSWORD)
    options = ("--password-file", str(cache / "password"), "--viewers", "1")
    with serving(cache, None, options=options) as (base, _):
        yield base, Keys(kept_secret(cache / "class-secret"), PASSWORD)


@pytest.fixture
def closed(page, site):
    """The address of a site that this browser has not entered."""
    page.context.clear_cookies()
    return site[0]


def test_the_door_opens_with_the_password_alone(page, closed):
    page.goto(f"{closed}/?rate.epochs=1")
    assert page.url == f"{closed}/enter?next=/%3Frate.epochs%3D1"
    page.wait_for_function("document.activeElement.id === 'password'")  # autofocus comes with the first frame
    page.keyboard.type(PASSWORD)
    page.keyboard.press("Enter")
    page.wait_for_url(f"{closed}/mnist_training/?rate.epochs=1", timeout=60_000)
    assert PASSWORD not in page.evaluate("document.cookie"), "no script sees the cookie"
    page.goto("about:blank")


def test_everybody_can_read_the_door(page, closed):
    page.goto(closed)
    assert page.get_by_label("Password of the class").is_visible()
    assert_accessible(page)


def test_a_link_lets_in_and_leaves_no_token_behind(page, site, closed):
    page.goto(f"{closed}/?teacher={site[1].token('teacher')}")
    assert page.url == f"{closed}/"
    page.get_by_role("heading", name="Why is my GPU slower?").wait_for()
    page.go_back()
    page.go_forward()
    assert page.url == f"{closed}/"


def test_the_full_page_opens_the_notebook_once_there_is_room(browser, page, site):
    base, keys = site
    contexts = [browser.browser.new_context() for _ in range(2)]
    try:
        for number, context in enumerate(contexts):
            cookie = keys.cookie(Card("pupil", str(number)))
            context.add_cookies([{"name": f"class-{base.rpartition(':')[2]}", "value": cookie, "url": base}])
        inside, outside = (context.new_page() for context in contexts)
        inside.goto(f"{base}/claims/")
        inside.wait_for_selector(".lab-nav", timeout=60_000)
        full = outside.goto(f"{base}/traps/")
        assert full.status == 503
        page.set_content(full.text())  # a copy does not reload while axe looks at it
        assert page.get_by_text("Places for viewers: 1. All are taken.").is_visible()
        assert_accessible(page)
        contexts[0].close()
        outside.wait_for_selector(".lab-nav", timeout=60_000)
        assert outside.url == f"{base}/traps/"
    finally:
        for context in contexts:
            context.close()
