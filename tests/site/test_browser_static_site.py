"""The static site on a plain file server, below a prefix, with all other hosts unreachable."""

import functools
import re
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lib.cli.site import write_site
from lib.site.in_your_browser import USUAL, NoRuntime, runtime_files
from lib.ui.heading import where_and_when
from lib.ui.notebooks import notebook_of
from tests.browser import MARKS, PHONE, assert_accessible

pytestmark = [*MARKS, pytest.mark.release]
TABLE = "table.race:visible"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def no_runtime():
    """Why Python for browsers is unavailable, for example without a network; otherwise empty."""
    try:
        runtime_files()
    except NoRuntime as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def site(tmp_path_factory, no_runtime):
    folder = tmp_path_factory.mktemp("host")
    notebooks = [notebook_of("which_library")]
    assert write_site(folder / "some" / "where", notebooks=notebooks, in_browser=not no_runtime)
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/some/where/"
        server.shutdown()


@pytest.fixture
def offline(page, site):
    elsewhere = []

    def refuse(route):
        elsewhere.append(route.request.url)
        route.abort()

    page.route(lambda url: not url.startswith((site, "data:", "blob:")), refuse)
    yield page
    assert elsewhere == []


def test_links_lead_from_the_front_page_to_a_notebook_and_back(offline, site):
    offline.goto(site)
    assert where_and_when() in offline.locator(".lead").inner_text()
    assert_accessible(offline)
    offline.get_by_role("link", name="Which library?").click()
    offline.locator(".lab-static").wait_for(timeout=60_000)
    assert offline.locator(".lab-static").inner_text().startswith(f"Computed on {where_and_when()}")
    offline.locator(TABLE).first.wait_for(timeout=60_000)
    offline.get_by_role("link", name="All notebooks").click()
    offline.wait_for_url(f"{site}index.html", timeout=60_000)


def test_a_notebooks_page_is_accessible(offline, site):
    offline.goto(f"{site}which_library.html")
    offline.locator(TABLE).first.wait_for(timeout=60_000)
    assert not offline.get_by_role("button", name="Reset").is_visible()
    assert_accessible(offline)
    offline.set_viewport_size(PHONE)
    assert offline.locator(".lab-static").is_visible()


def section(tab, experiment):
    return tab.locator(f"#{experiment}")


def wait_done(tab, experiment):
    tab.wait_for_function(
        "name => document.querySelector(`#${name} .state b`).innerText === 'Done'", arg=experiment, timeout=120_000
    )
    return section(tab, experiment).locator(".sentence").inner_text()


@pytest.fixture
def computing(offline, site, no_runtime):
    if no_runtime:
        pytest.skip(no_runtime)
    offline.goto(site)
    offline.get_by_role("link", name="train in your browser").click()
    offline.locator("#python").wait_for()
    return offline


def test_the_four_experiments_run_in_the_browser_alone(computing):
    """NumPy in the browser reaches the accuracy of NumPy here, and so do the other backends on the page."""
    sentences = {experiment: wait_done(computing, experiment) for experiment in USUAL}
    assert all("Computed in your browser" in sentence for sentence in sentences.values())
    assert re.match(r"Learning rate [\d.]+ was best: ", sentences["learning-rate"])
    assert re.match(r"Batch size \d+ had the fastest epochs", sentences["batch-size"])
    assert "parameters in" in sentences["depth"]
    assert sentences["backend"].startswith("The same training, the same accuracy")
    here = computing.get_by_text("For comparison, NumPy").inner_text()
    said = re.search(r"settings: ([\d.]+)\s?% .* Computed on (.+)\.$", here)
    assert said is not None, here
    assert said[2] == where_and_when()
    legend = section(computing, "backend").locator(".legend li").all_inner_texts()
    reached = [re.match(r"(.+): ([\d.]+) %$", line) for line in legend]
    assert [one[1] for one in reached if one][:3] == ["NumPy", "WebAssembly SIMD on one core", "JavaScript on one core"]
    for one in reached[:3]:
        assert one is not None, legend
        assert abs(float(said[1]) - float(one[2])) <= 1, "the same mathematics, up to rounding"
    assert "NumPy 2.2.5" in computing.locator("#versions").inner_text()
    assert_accessible(computing)
    computing.set_viewport_size(PHONE)
    assert computing.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert_accessible(computing)


def test_chart_descriptions_follow_the_run(computing):
    rates = section(computing, "learning-rate")
    accuracy = rates.locator("svg[data-kind=accuracy]")
    wait_done(computing, "learning-rate")
    label = accuracy.get_attribute("aria-label") or ""
    assert label.startswith("Validation accuracy by epoch. Across: epoch, 0 to 3. Up: accuracy, 0 to 100 %. 3 lines:")
    loss = rates.locator("figure", has=computing.locator("svg[data-kind=loss]"))
    loss.locator("summary").click()
    assert loss.locator("th").all_inner_texts() == [
        *("line", "first loss", "lowest", "highest", "last"),
        "0.01",
        "0.1",
        "1",
    ]
    size = rates.get_by_label("Batch size")
    size.press("End")
    assert size.get_attribute("aria-valuetext") == "1024"
    assert rates.locator(".state b").inner_text() in ("Waiting", "Training", "Done")
    wait_done(computing, "learning-rate")
    assert accuracy.get_attribute("aria-label") != label


def test_a_link_restores_controls_and_invalid_text_is_reported(computing):
    rates = section(computing, "learning-rate")
    rates.get_by_label("Hidden layers").fill("many")
    rates.locator(".problem").wait_for()
    assert "got “many”" in rates.locator(".problem").inner_text()
    rates.get_by_label("Hidden layers").fill("16")
    rates.get_by_label("Epochs").press("Home")
    section(computing, "batch-size").get_by_role("checkbox", name="256").uncheck()
    wait_done(computing, "learning-rate")
    said = computing.url.partition("?")[2]
    assert sorted(said.split("&")) == ["rate.epochs=1", "rate.hidden=16", "size.sizes=8%2C32"]
    computing.reload()
    assert section(computing, "learning-rate").get_by_label("Hidden layers").input_value() == "16"
    assert section(computing, "learning-rate").locator("output").nth(3).inner_text() == "1"
    assert not section(computing, "batch-size").get_by_role("checkbox", name="256").is_checked()
    assert "after 1 epoch;" in wait_done(computing, "learning-rate")


def test_unusable_settings_of_an_address_are_left_out_and_reported(computing):
    computing.goto(f"{computing.url.partition('?')[0]}?rate.epochs=99&size.sizes=8,9&depth.size=128&nothing=at+all")
    told = computing.locator("#address")
    told.get_by_text("Ignored in the address").wait_for()
    assert "rate.epochs: expected one of 1, 2, 3" in told.inner_text()
    assert "got “99”" in told.inner_text()
    assert "size.sizes: expected some of" in told.inner_text()
    assert "nothing: expected no such setting, got “at all”" in told.inner_text()
    assert "depth.size" not in told.inner_text(), "it could be used"
    assert section(computing, "learning-rate").locator("output").nth(3).inner_text() == "3"
    assert section(computing, "depth").get_by_label("Batch size").get_attribute("aria-valuetext") == "128"
    assert section(computing, "batch-size").get_by_role("checkbox", name="256").is_checked()


def test_stop_ends_a_training_and_run_again_restarts_it(computing):
    sizes = section(computing, "batch-size")
    sizes.get_by_label("Epochs").press("End")
    sizes.get_by_role("button", name="Stop").click()
    assert sizes.locator(".state b").inner_text() == "Stopped"
    sizes.get_by_label("Epochs").press("Home")
    sizes.get_by_role("button", name="Run again").click()
    assert "after 1 epoch)" in wait_done(computing, "batch-size")
