"""The front page in a real browser: by mouse, by keyboard, on a phone, light and dark; old links."""

from lib.ui.notebooks import NOTEBOOKS
from tests.browser import MARKS, PHONE, assert_accessible

pytestmark = MARKS


def test_everybody_can_read_it(page, site):
    page.goto(site.base)
    assert page.get_by_role("heading", level=1).inner_text() == "Why is my GPU slower?"
    assert page.locator(".notebooks h2").all_inner_texts() == [one.title for one in NOTEBOOKS]
    assert_accessible(page)


def test_the_keyboard_goes_from_card_to_card_and_opens_one(page, site):
    page.set_viewport_size(PHONE)
    page.goto(site.base)
    for notebook in NOTEBOOKS[:3]:
        page.keyboard.press("Tab")
        focused = page.evaluate("[document.activeElement.innerText, document.activeElement.matches(':focus-visible')]")
        assert focused == [notebook.title, True]
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    page.wait_for_url(f"{site.base}{NOTEBOOKS[1].path}", timeout=60_000)


def test_a_card_is_a_link_as_a_whole(page, site):
    page.goto(site.base)
    page.locator(".picture").nth(len(NOTEBOOKS) - 1).click(force=True)
    page.wait_for_url(f"{site.base}{NOTEBOOKS[-1].path}", timeout=60_000)
    page.wait_for_selector(".lab-nav", timeout=60_000)
    page.get_by_role("link", name="All notebooks").click()
    page.wait_for_url(f"{site.base}/", timeout=60_000)
