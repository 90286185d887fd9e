"""The static site from a plain file server, below a prefix, with every other host out of reach."""

import functools
import re
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lib.cli.site import write_site
from lib.pages.in_your_browser.runtime import NoRuntime, runtime_files
from lib.pages.notebooks import notebook_of
from lib.pages.where_computed import where_and_when
from tests.browser import MARKS, PHONE, assert_accessible

pytestmark = MARKS
TABLE = ".lab-table:not(.lab-machine):visible"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def no_runtime():
    """Why Python for a browser is not to be had, as without a network; empty where it is."""
    try:
        runtime_files()
    except NoRuntime as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def site(tmp_path_factory, no_runtime):
    """The address of the folder; it has the front page, one notebook's, and the page that trains, if that can be."""
    folder = tmp_path_factory.mktemp("host")
    notebooks = [notebook_of("compare_machines")]
    assert write_site(folder / "some" / "where", notebooks=notebooks, in_browser=not no_runtime)
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/some/where/"
        server.shutdown()


@pytest.fixture
def offline(page, site):
    """A tab that reaches the file server alone; what it asks of another host is on its list, and fails the test."""
    elsewhere = []

    def refuse(route):
        elsewhere.append(route.request.url)
        route.abort()

    page.route(lambda url: not url.startswith((site, "data:", "blob:")), refuse)
    yield page
    assert elsewhere == []


def test_from_the_front_page_to_a_notebook_and_back(offline, site):
    offline.goto(site)
    assert where_and_when() in offline.locator(".lead").inner_text()
    assert_accessible(offline)
    offline.get_by_role("link", name="Machines compared").click()
    offline.locator(".lab-static").wait_for(timeout=60_000)
    assert offline.locator(".lab-static").inner_text().startswith(f"Computed on {where_and_when()}")
    offline.locator(TABLE).first.wait_for(timeout=60_000)
    offline.get_by_role("link", name="All notebooks").click()
    offline.wait_for_url(f"{site}index.html", timeout=60_000)


def test_a_notebook_s_page_is_for_everybody_too(offline, site):
    offline.goto(f"{site}compare_machines.html")
    offline.locator(TABLE).first.wait_for(timeout=60_000)
    assert not offline.get_by_role("button", name="Reset").is_visible()
    assert_accessible(offline)
    offline.set_viewport_size(PHONE)
    assert offline.locator(".lab-static").is_visible()


def wait_done(tab):
    tab.wait_for_function("document.querySelector('#state').innerText === 'Done'", timeout=120_000)
    return tab.locator("#sentence").inner_text()


def test_it_trains_in_the_reader_s_browser_alone(offline, site, no_runtime):
    """NumPy there comes to the accuracy of NumPy here, and to another one when a slider has moved."""
    if no_runtime:
        pytest.skip(no_runtime)
    offline.goto(site)
    offline.get_by_role("link", name="train in your browser").click()
    first = wait_done(offline)
    accuracy = re.match(r"([\d.]+) % of the validation images are right after 5 epochs", first)
    assert accuracy is not None, first
    assert "Computed in your browser" in first
    here = offline.get_by_text("For comparison, the same code").inner_text()
    said = re.search(r"with: ([\d.]+)\s?% .* Computed on (.+)\.$", here)
    assert said is not None, here
    assert said[2] == where_and_when()
    assert abs(float(said[1]) - float(accuracy[1])) <= 1, "the same mathematics, up to rounding"
    assert "NumPy 2.2.5" in offline.locator("#doing").inner_text()
    assert_accessible(offline)
    label = offline.locator("#accuracy").get_attribute("aria-label") or ""
    assert label.startswith("Validation accuracy by epoch. Across: epoch, 0 to 5. Up: accuracy, 0 to 100 %. 1 line:")
    assert f"Last accuracy: {accuracy[1]} %" in label, "the text follows the run"
    loss = offline.locator("figure", has=offline.locator("#loss"))
    loss.locator("summary").click()
    assert loss.locator("th").all_inner_texts() == [
        *("line", "first loss", "lowest", "highest", "last"),
        "NumPy in your browser",
    ]
    assert (loss.locator("svg").get_attribute("aria-label") or "").endswith(
        f"Last loss: {loss.locator('td').last.inner_text()} (NumPy in your browser)."
    )
    rate = offline.get_by_label("Learning rate")
    rate.press("Home")
    offline.wait_for_function("document.querySelector('output[for=rate]').innerText === '0.001'")
    offline.wait_for_function(
        "first => !['', first].includes(document.querySelector('#sentence').innerText)", arg=first, timeout=120_000
    )
    assert rate.get_attribute("aria-valuetext") == "0.001"
    assert "learning rate 0.001" in wait_done(offline)
    assert offline.locator("#accuracy").get_attribute("aria-label") != label
    assert wait_done(offline).partition(" ")[0] != accuracy[1]
