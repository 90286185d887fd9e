"""The reader's own data in a real browser: a chosen set, dropped tables, an unusable one."""

import re

import pytest

from tests.browser import DESK, FIRST, MARKS, PHONE, assert_accessible, wait_over, wait_until

pytestmark = [*MARKS, pytest.mark.release]
QUICK = (
    "rate.epochs=1&rate.count=2&rate.hidden=24&size.epochs=1&size.sizes=8,512&depth.epochs=1&depth.networks=128"
    "&backend.epochs=2"
)


def wait_for_text(page, words, timeout=120_000):
    wait_until(page, "words => document.body.innerText.includes(words)", words, timeout)


def test_data_sets_can_be_chosen_dropped_and_reset_to_mnist(page, server, tmp_path):
    good, broken = tmp_path / "pets.csv", tmp_path / "broken.csv"
    good.write_text("width,height,label\n" + "".join(f"{n % 7},{n % 5},{'cd'[n % 2]}\n" for n in range(200)))
    broken.write_text("width,height,label\n" + "1,2,x\n2,red,y\n" * 9)
    page.goto(f"{server}/?data.set=iris&{QUICK}")
    wait_for_text(page, "scikit-learn’s iris: 150 rows, 4 inputs scaled to [0, 1], 3 classes")
    wait_for_text(page, "On scikit-learn’s iris: 96 training and 24 validation rows.")
    wait_for_text(page, "Data: scikit-learn’s iris, not MNIST")
    wait_over(page, 0, 120_000)
    wait_for_text(page, "no MNIST results for these settings are stored")
    wait_for_text(page, "Left out, for lack of training rows: batch size 512")
    compare = page.locator(FIRST.removesuffix(" >> ")).get_by_role("button", name="Train on MNIST for comparison")
    compare.press("Enter")
    told = page.locator(
        FIRST + ".lab-sentence", has_text=re.compile("(changes|does not change) the winner|No change of winner")
    )
    told.wait_for(timeout=120_000)
    compare.wait_for(state="detached", timeout=20_000)
    assert page.get_by_role("button", name="Train on MNIST for comparison").count() >= 1, (
        "of the other sections it is missing"
    )
    assert_accessible(page)
    page.locator("input[type=file]").first.set_input_files(str(good))
    wait_for_text(page, "pets.csv: 200 rows, 2 inputs")
    wait_for_text(page, "On pets.csv: 128 training and 32 validation rows.")
    page.locator("input[type=file]").first.set_input_files(str(broken))
    wait_for_text(page, "broken.csv cannot be trained on: expected numbers in column “height”, got “red” in row 2")
    wait_for_text(page, "On pets.csv: 128 training and 32 validation rows.")
    assert "pets" not in page.evaluate("location.search"), "a dropped file is no part of the address"
    wait_over(page, 0, 120_000)
    for size in (DESK, PHONE):
        page.set_viewport_size(size)
        assert_accessible(page)
    page.set_viewport_size(DESK)
    page.get_by_label("Train on").select_option(label="MNIST")
    wait_until(page, "() => !document.body.innerText.includes('On pets.csv')", None, 120_000)
    wait_for_text(page, "Images: ")
