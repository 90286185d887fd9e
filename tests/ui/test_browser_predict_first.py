"""A class on one server: the teacher's page, a pupil's and a phone, at once and without a reload."""

import pytest

from benchmarks.browser import begin_all
from tests.browser import DESK, FIRST, MARKS, PHONE, assert_accessible, begin, move, tab

pytestmark = [*MARKS, pytest.mark.release, pytest.mark.timeout(900)]
QUICK = (
    "rate.size=1024&rate.epochs=2&size.sizes=256,1024&size.epochs=2&depth.networks=128,256&depth.size=512&depth.epochs=2"
    "&backend.hidden=16&backend.size=4096&backend.epochs=3"
)
LIMIT_MS = 180_000


@pytest.fixture
def base(closed_site):
    return closed_site.base


@pytest.fixture
def new_page(browser, closed_site):
    """`new_page(is_teacher, size)` opens a separate browser context; its tab fails the test on console messages."""
    contexts, tabs = [], []

    def open_context(is_teacher, size):
        context = browser.browser.new_context(viewport=size)
        context.set_default_timeout(LIMIT_MS)  # of all waits below
        contexts.append(context)
        tabs.append(tab(context))
        page = tabs[-1].__enter__()
        if is_teacher:
            page.goto(f"{closed_site.base}/?teacher={closed_site.keys.token('teacher')}")
        else:
            name, value = closed_site.cookie(f"pupil {len(tabs)}")
            context.add_cookies([{"name": name, "value": value, "url": closed_site.base}])
        return page

    yield open_context
    for one in reversed(tabs):
        one.__exit__(None, None, None)
    for context in contexts:
        context.close()


def count(page, question, option):
    bars = page.locator(".guess-counts", has=page.locator("figcaption", has_text=question)).first
    return bars.locator("li", has=page.get_by_text(option, exact=True)).locator("em")


def waits_for(page, words, within="body"):
    page.locator(within).get_by_text(words).first.wait_for()


def test_a_class_predicts_sees_guesses_and_pauses(new_page, base):
    teacher, pupil, phone = new_page(True, DESK), new_page(False, DESK), new_page(False, PHONE)
    teacher.goto(f"{base}/teacher/")
    teacher.get_by_text("Ask the class to predict first", exact=True).wait_for()
    for page in (pupil, phone):
        page.goto(f"{base}/?{QUICK}")
        page.locator(".lab-sentence").first.wait_for()
        begin_all(page, 6)
        assert page.locator(".guess, .class-note").count() == 0, "as without a class"

    teacher.get_by_text("Ask the class to predict first", exact=True).click()
    for page in (pupil, phone):
        page.locator(".lab .guess").nth(3).wait_for()
        asked = page.locator(".lab", has=page.locator(".guess"))
        assert asked.count() == 4
        assert asked.locator(".lab-figure, .lab-state b, .lab-details").count() == 0, "all is held"
    option = pupil.locator(FIRST + ".guess-options").get_by_role("button", name="1", exact=True)
    option.focus()
    pupil.keyboard.press("Enter")
    waits_for(pupil, "You said 1", ".lab-sentence")
    assert pupil.locator(FIRST + ".lab-figure").count() == 2
    best = "Which learning rate will be the most accurate?"
    count(teacher, best, "1").get_by_text("1", exact=True).wait_for()

    teacher.get_by_text("Show the guesses to the class").click()
    count(phone, best, "1").get_by_text("1", exact=True).wait_for()
    waits_for(pupil, "(yours)", ".class-guesses")
    assert phone.locator(FIRST + ".guess").count() == 1, "who has not guessed is still asked"
    phone.locator(FIRST + ".guess").get_by_role("button", name="Show me without guessing").click()
    phone.locator(FIRST + ".lab-figure").first.wait_for()

    teacher.get_by_text("Pause: pupils start no new runs").click()
    pupil.locator(".class-note", has_text="Your teacher has paused").wait_for()
    move(pupil, "Epochs")
    waits_for(pupil, "no new runs start. This one starts", ".lab-result")
    search = pupil.locator(".lab", has=pupil.get_by_role("button", name="Search", exact=True))
    search.get_by_role("button", name="Search", exact=True).click()
    search.locator(".lab-state", has_text="Your teacher has paused").wait_for()
    phone.goto(f"{base}/inside_a_step/?traps.size=4096")
    phone.locator(".lab-state", has_text="Your teacher has paused").first.wait_for()
    assert_accessible(phone)
    phone.set_viewport_size(PHONE)
    teacher.get_by_text("Pause: pupils start no new runs").click()
    pupil.locator(FIRST + ".lab-figure").first.wait_for()
    pupil.locator(".class-note").wait_for(state="detached")
    for page in (pupil, phone):
        page.locator(".lab-state", has_text="Your teacher has paused").wait_for(state="detached")
    phone.get_by_role("button", name="Stop", exact=True).last.click()
    search.get_by_role("button", name="Stop", exact=True).click()
    phone.goto(f"{base}/?{QUICK}")
    phone.locator(FIRST + ".guess").wait_for()


def test_the_pages_of_a_class_are_accessible(new_page, base):
    teacher, pupil = new_page(True, DESK), new_page(False, DESK)
    teacher.goto(f"{base}/teacher/")
    teacher.get_by_text("Forget all guesses").wait_for()
    pupil.goto(f"{base}/?predict=1&{QUICK}")
    pupil.locator(FIRST + ".guess").wait_for()
    pupil.locator(FIRST + ".guess-options").get_by_role("button", name="0.1", exact=True).click()
    waits_for(pupil, "You said 0.1", ".lab-sentence")
    begin(pupil, 1)
    sizes = pupil.locator(".lab >> nth=1 >> .guess")
    sizes.get_by_role("slider").focus()
    for _ in range(3):
        pupil.keyboard.press("ArrowRight")
    sizes.locator(".guess-options").get_by_role("button", name="1024", exact=True).click()
    waits_for(pupil, "You said the slowest would take 3 times as long per epoch; it took", ".lab-sentence")
    epoch = "How many times as long as the fastest will the slowest take per epoch"
    count(teacher, epoch, "3").get_by_text("1", exact=True).wait_for()
    assert_accessible(pupil)
    assert_accessible(teacher)
    teacher.get_by_role("button", name="Forget all guesses").click()
    waits_for(teacher, "No guesses yet")
    pupil.goto(f"{base}/teacher/")
    waits_for(pupil, "This page is for the teacher.")
    assert pupil.get_by_text("Ask the class to predict first").count() == 0
