"""The “Export” menu and the examples in a real browser: by keyboard, on a phone, and the saved files."""

import io
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from lib.ui.presets import PRESETS
from tests.browser import ACTIVE, FIRST, MARKS, PHONE, assert_accessible, move, open_menu, open_page, wait_over

pytestmark = [*MARKS, pytest.mark.release]
QUICK = (
    "?rate.count=2&rate.size=4096&rate.epochs=2&size.sizes=4096&size.epochs=1&depth.networks=128&depth.size=4096"
    "&depth.epochs=1&backend.hidden=16&backend.size=4096&backend.epochs=2"
)
MENU = FIRST + ".lab-menu >> "
LONG = 60_000


@pytest.fixture
def menu(page, server):
    open_page(page, server, QUICK)
    wait_over(page)
    open_menu(page).locator(".lab-export > summary").click()
    page.locator(MENU + "select").first.wait_for(timeout=LONG)
    return page.locator(FIRST + ".lab-menu")


def saved(page, act) -> tuple[str, bytes]:
    with page.expect_download(timeout=LONG) as download:
        act()
    return download.value.suggested_filename, Path(download.value.path()).read_bytes()


def press(page, menu, name):
    button = menu.get_by_role("button", name=name, exact=True)
    button.focus()
    return saved(page, lambda: page.keyboard.press("Enter"))


def test_a_script_can_be_exported_by_keyboard(page, server):
    open_page(page, server, QUICK)
    wait_over(page)
    page.locator(FIRST + ".lab-more > summary").focus()
    page.keyboard.press("Enter")
    page.locator(MENU + ".lab-export > summary").focus()
    page.keyboard.press("Enter")
    page.locator(MENU + "select").first.wait_for(timeout=LONG)
    page.keyboard.press("Tab")
    assert page.evaluate(f"{ACTIVE}.tagName") == "SELECT"
    offered = page.locator(MENU + "select >> nth=0 >> option").all_inner_texts()
    assert all(text.endswith(" per epoch") for text in offered)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Tab")
    name, content = saved(page, lambda: page.keyboard.press("Enter"))
    assert name.endswith("_numpy.py")
    text = content.decode()
    assert text.startswith("# /// script\n")
    assert f"\nLEARNING_RATE = {float(offered[1].split(':')[0])}\n" in text
    page.get_by_role("status").filter(has_text=f"{name} is saved.").wait_for(timeout=LONG)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_exported_pictures_are_light_and_self_contained(scheme, page, menu):
    page.emulate_media(color_scheme=scheme)
    name, content = press(page, menu, "SVG")
    assert name == "learning_rate.svg"
    text = content.decode()
    drawing = ElementTree.fromstring(text)
    words = " ".join(drawing.itertext())
    assert "was best" in words
    assert "“Why is my GPU slower?”" in words
    assert "batch size" in words
    assert "Training loss by step" in words
    assert "@font-face" in text
    assert not re.search(r"currentColor|color-mix|https?://(?!www\.w3\.org)", text), "other programs know none of these"
    name, content = press(page, menu, "PNG")
    assert name == "learning_rate.png"
    pixels = np.asarray(Image.open(io.BytesIO(content))) / 255
    width = float(drawing.attrib["width"])
    assert pixels.shape[1] == pytest.approx(2 * width, abs=2), "twice as sharp as on the page"
    assert (pixels[0] == 1).all(), "white up to its edge"
    assert pixels[..., :3].min() < 0.3, "with dark text on it"


def test_the_menu_stays_open_while_a_control_moves(page, menu):
    move(page, "Epochs")
    page.wait_for_function(
        "() => document.querySelector('.lab .lab-sentence')?.innerText.includes('after 3 epochs')", timeout=LONG
    )
    assert menu.locator(".lab-export").evaluate("element => element.open")
    _, content = press(page, menu, "CSV")
    assert len(content.decode().splitlines()) == 1 + 2 * 3, "of what is shown now"


def test_the_menu_and_the_examples_are_accessible(page, menu):
    page.locator(".lab-asides summary", has_text="examples").click()
    assert_accessible(page)
    page.set_viewport_size(PHONE)
    name, _ = press(page, menu, "JAX")
    assert name.endswith("_jax.py")


def test_an_example_opens_its_settings(page, server):
    open_page(page, server, QUICK)
    page.locator(".lab-asides summary", has_text="examples").click()
    links = page.locator(".lab-presets a")
    assert links.count() == len(PRESETS)
    links.first.click()
    page.wait_for_url(lambda url: PRESETS[0][2].split("&")[0] in url.replace("%2C", ","), timeout=LONG)
    wait_over(page, timeout=120_000)
    assert "diverged" in page.locator(FIRST + ".lab-sentence").inner_text()
