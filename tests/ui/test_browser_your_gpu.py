"""The reader's own devices in a real browser: Chromium's software adapter, and JavaScript on the CPU."""

import base64
import re
import time
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.browser import FLAGS, WITH_WEBGPU
from lib.model.backends import reference, webgpu
from lib.model.backends.base import initial_parameters
from lib.model.data.mnist import batch_starts
from lib.model.spec import N_CLASSES, N_PIXELS, Network, Training
from lib.sweeps.experiments.your_gpu import CPU_WAYS, WAYS
from lib.ui.widgets import worker_scripts
from tests.browser import MARKS, assert_accessible, launching, tab

pytestmark = [*MARKS, pytest.mark.release]
SMALL = "?yours.hidden=16&yours.size=8"

N_IMAGES = 100
RNG = np.random.default_rng(3)
PIXELS = RNG.integers(0, 256, (N_IMAGES, N_PIXELS), np.uint8)
LABELS = RNG.integers(0, N_CLASSES, N_IMAGES).astype(np.uint8)
X, Y = PIXELS * np.float32(1 / 255), LABELS.astype(np.int32)


@pytest.fixture(scope="module")
def launched() -> Iterator:
    with launching() as launch:
        yield launch


@pytest.fixture(scope="module")
def browser(launched):
    """For all other tests: without a WebGPU adapter."""
    return launched(*FLAGS)


@pytest.fixture(scope="module")
def with_webgpu(launched):
    return launched(*(flag for flag in FLAGS if flag != "--disable-gpu"), *WITH_WEBGPU)


@pytest.fixture(scope="module")
def base(site):
    return site.at("notebooks/your_gpu.py")


# The workers alone, on an empty page.

START = """([scripts, name, kernels, before]) => {
    const source = new Blob([before, scripts.worker, scripts[name]], { type: "text/javascript" });
    const worker = new Worker(URL.createObjectURL(source));
    const waiting = [];
    worker.onmessage = ({ data }) => {
        if (data.lost !== undefined) return;
        waiting.shift()(data.failed ? { failed: data.failed } : data.found);
    };
    window.ask = (what, asked = {}) => new Promise((resolve) => {
        waiting.push(resolve);
        worker.postMessage({ id: 0, what, ...asked });
    });
    const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    window.images = ([pixels, labels]) => {
        const images = { pixels: bytes(pixels), labels: bytes(labels) };
        const half = images.labels.length / 2, part = (first, last) => ({
            pixels: images.pixels.subarray(first * 784, last * 784), labels: images.labels.subarray(first, last),
        });
        window.ask("part", { ...images, sample: true });
        window.ask("part", part(0, half));
        window.ask("part", part(half, 2 * half));
        return window.ask("images");
    };
    window.train = async ({ parameters, steps, way, ...job }) => {
        job.parameters = new Float32Array(bytes(parameters).buffer);
        let found;
        for (const [what, asked] of [
            ["train", job], ["block", { task: "train", steps, way }],
        ]) {
            found = await window.ask(what, asked);
            if (found?.failed) return found;
        }
        return {
            way: found.way,
            losses: [...found.losses].map(String),
            parameters: [...(await window.ask("parameters"))].map(String),
            evaluated: await window.ask("evaluate"),
        };
    };
    return window.ask("open", { kernels });
}"""


def base64_of(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


class Worker:
    """A worker for one device, on a page of its own; `before` is code to run first in the worker."""

    def __init__(self, page, device: str, kernels: dict, before: str = "") -> None:
        page.route("http://localhost/", lambda route: route.fulfill(body="<!doctype html>", content_type="text/html"))
        page.goto("http://localhost/")
        self.page, self.device = page, device
        self.opened = page.evaluate(START, [worker_scripts(), device, kernels, before])
        self.failed = page.evaluate("images => window.images(images)", [base64_of(PIXELS), base64_of(LABELS)])

    def train(self, training: Training, steps: int, way: str, **changed: object) -> dict:
        """Return the losses, parameters and evaluation after `steps` steps, or the failure."""
        slice_size = N_IMAGES // 2
        network = training.network
        flat = [part.ravel() for layer in initial_parameters(network, training.seed) for part in layer]
        job = {
            "program": webgpu.as_json(webgpu.step(network, training.batch_size)),
            "evaluation": webgpu.as_json(webgpu.evaluation(network, slice_size)),
            "slice": slice_size,
            "rate": training.learning_rate,
            "starts": batch_starts(N_IMAGES, training.batch_size, training.seed, 0).tolist(),
            "parameters": base64_of(np.concatenate(flat)),
        }
        return self.page.evaluate("job => window.train(job)", job | {"steps": steps, "way": way} | changed)


@pytest.fixture(scope="module", params=["cpu", "gpu"])
def worker(with_webgpu, request):
    page = with_webgpu.new_page()
    yield Worker(page, request.param, webgpu.kernels())
    page.close()


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(hidden=st.lists(st.integers(1, 40), max_size=3), batch_size=st.integers(1, 40), data=st.data())
def test_steps_agree_with_float64(worker, hidden, batch_size, data):
    way = data.draw(st.sampled_from(list(CPU_WAYS if worker.device == "cpu" else WAYS)))
    training = Training(Network(tuple(hidden)), 0.1, batch_size, 1)
    steps = min(4, N_IMAGES // batch_size)
    found = worker.train(training, steps, way)
    images = SimpleNamespace(x_train=X, y_train=Y)
    losses, parameters = reference.train(training, images, steps)  # type: ignore[arg-type]
    assert found["way"] == way
    np.testing.assert_allclose(np.float64(found["losses"]), losses, rtol=2e-5)
    flat = np.concatenate([part.ravel() for layer in parameters for part in layer])
    np.testing.assert_allclose(np.float64(found["parameters"]), flat, rtol=2e-4, atol=2e-6)
    loss, _ = reference.loss_and_gradients(parameters, X, Y)
    assert found["evaluated"]["loss"] == pytest.approx(loss, rel=1e-4)
    assert found["evaluated"]["accuracy"] == pytest.approx(round(100 * found["evaluated"]["accuracy"]) / 100)


def test_a_browser_without_webassembly_trains_with_javascript(browser):
    page = browser.new_page()
    on = Worker(page, "cpu", webgpu.kernels(), "delete self.WebAssembly;")
    small = Training(Network((8,)), 0.1, 32, 1)
    assert on.train(small, 1, "simd")["failed"]["kind"] == "no WebAssembly"
    assert "losses" in on.train(small, 1, "javascript")
    page.close()


def test_a_shader_that_does_not_compile_disables_only_its_way(with_webgpu):
    kernels = webgpu.kernels()
    sources = kernels["sources"] | {
        "whole_steps": kernels["sources"]["whole_steps"].replace("fn end_step", "fn no_step")
    }
    page = with_webgpu.new_page()
    on = Worker(page, "gpu", kernels | {"sources": sources})
    small = Training(Network((8,)), 0.1, 32, 1)
    for _ in range(2):  # the second request fails the same way
        failed = on.train(small, 1, "one_kernel")["failed"]
        assert failed["kind"] == "shader"
        assert "whole_steps.wgsl" in failed["message"]
    assert "losses" in on.train(small, 1, "one_submission_a_step")
    page.close()


def test_memory_is_freed_after_a_failed_allocation(with_webgpu):
    """Otherwise no memory would be left for a smaller training; without images, each training says why."""
    before = """
        let [alive, limit] = [0, Infinity];
        const [create, destroy] = [GPUDevice.prototype.createBuffer, GPUBuffer.prototype.destroy];
        GPUDevice.prototype.createBuffer = function (asked) {
            if (asked.size === limit) return create.call(this, { ...asked, size: 2 ** 50 });
            alive += 1;
            return create.call(this, asked);
        };
        GPUBuffer.prototype.destroy = function () { alive -= 1; destroy.call(this); };
        setTimeout(() => Object.assign(asks, {
            alive: async () => alive,
            limit: async ({ bytes }) => { limit = bytes; },
        }));"""
    page = with_webgpu.new_page()
    on = Worker(page, "gpu", webgpu.kernels(), before)
    small = Training(Network((8,)), 0.1, 32, 1)
    assert "losses" in on.train(small, 1, "one_submission")
    page.evaluate("() => ask('limit', { bytes: 8 * 4096 })")  # fails at the losses, after parameters and gradients
    assert on.train(small, 1, "one_submission")["failed"]["kind"] == "memory"
    alive = page.evaluate("() => ask('alive')")
    assert on.train(small, 1, "one_submission")["failed"]["kind"] == "memory"
    assert page.evaluate("() => ask('alive')") == alive
    page.evaluate("() => ask('limit', { bytes: Infinity })")
    assert "losses" in on.train(small, 1, "one_submission")
    assert page.evaluate("() => ask('alive')") > alive
    page.evaluate("bytes => ask('limit', { bytes })", N_IMAGES // 2 * N_PIXELS * 4)
    images = "images => window.images(images)"
    assert page.evaluate(images, [base64_of(PIXELS), base64_of(LABELS)])["failed"]["kind"] == "memory"
    assert on.train(small, 1, "one_submission")["failed"]["kind"] == "memory"
    page.close()


def texts(page, selector: str) -> list[str]:
    return page.locator(selector).all_inner_texts()


def wait_done(page, timeout=120_000) -> None:
    page.locator(".webgpu .lab-state b", has_text="Done").wait_for(timeout=timeout)


def test_both_devices_are_measured_and_a_software_adapter_is_named_as_such(with_webgpu, base):
    with tab(with_webgpu) as page:
        page.goto(base + SMALL)
        wait_done(page)
        assert "says nothing about a GPU's speed" in texts(page, ".lab-problem")[0]
        said = " ".join(texts(page, ".webgpu .lab-sentence"))
        assert "(software, no GPU)" in said
        assert "your GPU" not in said
        assert "an epoch" in said
        table = page.locator("table.webgpu-ways").inner_text()
        for words in (*WAYS.values(), *CPU_WAYS.values()):
            assert words in table
        assert "–" not in re.split(r"[\t\n]", table), "each way was measured"
        assert "images that reached your browser" in " ".join(texts(page, ".lab-note"))
        page.get_by_role("button", name="Keep as a machine").click()
        page.locator(".lab-note", has_text="Kept on this notebook's server").wait_for(timeout=10_000)
        page.get_by_role("slider").nth(0).focus()
        page.keyboard.press("ArrowLeft")
        page.wait_for_function("() => location.search.includes('yours.size=1')", timeout=10_000)
        page.locator(".webgpu .lab-state b", has_text="Measuring").wait_for(timeout=60_000)
        page.get_by_role("button", name="Stop", exact=True).first.click()
        page.locator(".webgpu .lab-state b", has_text="Stopped").wait_for(timeout=20_000)
        assert_accessible(page)
        page.goto(base.replace("your_gpu", "which_library"))
        page.locator(".machines li", has_text="google swiftshader").first.wait_for(timeout=60_000)
        keys = page.locator(".compare-key", has_text="JavaScript on one core")
        keys.first.wait_for(timeout=60_000)  # charts are drawn below the tables
        assert keys.count() == 1


def test_two_readers_see_each_others_machines_without_a_reload(with_webgpu, base):
    other_context = with_webgpu.browser.new_context()
    query = "?yours.hidden=8&yours.size=64"
    with tab(with_webgpu) as one, tab(other_context) as other:
        for page in (one, other):
            page.goto(base + query)
        other.locator(".webgpu-kept", has_text="No machine is kept for this network").wait_for(timeout=60_000)
        rows = [page.locator(".webgpu-kept table.lab-values tr") for page in (one, other)]
        for count, page in ((3, one), (5, other)):  # with the header, a row per device
            both = page.locator(".webgpu .lab-sentence", has_text=re.compile("beats|indistinguishable|equally fast"))
            both.wait_for(timeout=60_000)
            page.get_by_role("button", name="Keep as a machine").click()
            for seen in rows:
                seen.nth(count - 1).wait_for(state="attached", timeout=20_000)
                assert seen.count() == count
        for page, seen in zip((one, other), rows, strict=True):
            yours = {name for name in seen.locator("th[scope=row]").all_text_contents() if name.startswith("yours: ")}
            assert len(yours) == 1
            assert page.locator(".webgpu-kept figure svg").count() == 1
            said = page.locator(".webgpu-kept .lab-sentence").inner_text()
            assert said == "2 machines offered software instead of a GPU, which says nothing about a GPU."
        one.reload()
        rows[0].locator("th[scope=row]", has_text="yours: ").first.wait_for(state="attached", timeout=60_000)
        assert_accessible(one)
        for page in (one, other):
            page.get_by_role("button", name="Stop", exact=True).first.click()
    other_context.close()


def in_workers(code: str) -> str:
    """Return a script for a page that prepends this code to its workers."""
    return f"""
    const whole = window.whole = Blob;
    window.Blob = function (parts, options) {{ return new whole([`{code}`, ...parts], options); }};"""


LOST_WHEN = """
    if (self.GPUAdapter) {
        let blocks = 0;
        const request = GPUAdapter.prototype.requestDevice;
        GPUAdapter.prototype.requestDevice = async function (asked) {
            return (self.made = await request.call(this, asked));
        };
        self.addEventListener("message", ({ data }) => {
            if (data.what === "block" && data.task === "train") blocks++;
            if (CONDITION) self.made?.destroy();
        });
    }"""


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ('data.task === "train" && data.way === "one_kernel"', "beats"),  # earlier measurements stay
        ("blocks === 2", "on one core takes"),
    ],
    ids=["between two ways", "in the middle of a training"],
)
def test_the_processor_continues_after_a_lost_device_that_can_be_reopened(with_webgpu, base, condition, words):
    with tab(with_webgpu) as page:
        page.add_init_script(in_workers(LOST_WHEN.replace("CONDITION", condition)))
        page.goto(base + SMALL)
        wait_done(page)
        lost = page.locator(".lab-problem", has_text="was lost")
        assert lost.count() == 1
        assert words in texts(page, ".webgpu .lab-sentence")[0]
        page.evaluate("() => { Blob = window.whole; }")  # the reopened device is not lost again
        page.get_by_role("button", name="Measure again").click()
        page.locator(".webgpu .lab-state b", has_text="Measuring").wait_for(timeout=60_000)
        assert lost.count() == 0
        page.get_by_role("button", name="Stop", exact=True).first.click()


NO_NUMBER = """
    self.addEventListener("message", ({ data }) => { if (data.what === "train") data.rate = 1e38; });"""
# A driver with little memory left: larger requests are raised beyond any memory, so the driver refuses them itself.
LITTLE_MEMORY = """
    if (self.GPUDevice) {
        const create = GPUDevice.prototype.createBuffer;
        GPUDevice.prototype.createBuffer = function (asked) {
            return create.call(this, asked.size > LIMIT ? { ...asked, size: 2 ** 50 } : asked);
        };
    }"""
# An adapter that allows 2 MiB; larger allocations are logged as errors. Few images, with their labels.
SMALL_ADAPTER = """
    if (self.GPUDevice) {
        Object.defineProperty(GPUAdapter.prototype, "limits", {
            get() { return { maxStorageBufferBindingSize: 2 ** 21, maxBufferSize: 2 ** 28 }; },
        });
        const create = GPUDevice.prototype.createBuffer;
        GPUDevice.prototype.createBuffer = function (asked) {
            if (asked.size > 2 ** 21) console.error("allocated " + asked.size);
            return create.call(this, asked);
        };
    }
    let left = 512;
    self.addEventListener("message", ({ data }) => {
        if (data.what === "train") data.starts = data.starts.map((start) => start % 256);
        if (data.what !== "part") return;
        const n = Math.min(left, data.labels.length);
        [data.pixels, data.labels] = [data.pixels.subarray(0, 784 * n), data.labels.subarray(0, n)];
        if (!data.sample) left -= n;
    });"""


TAKES = "on one core takes"  # JavaScript or WebAssembly, whichever was faster


@pytest.mark.parametrize(
    ("code", "query", "problems", "sentence"),
    [
        (NO_NUMBER, SMALL, ["many steps ended with a loss that is not a number", "one core ended with"], ""),
        (
            SMALL_ADAPTER,
            "?yours.hidden=1024&yours.size=8",
            ["but the adapter allows 2 MiB, so nothing was allocated"],
            TAKES,
        ),
        (LITTLE_MEMORY.replace("LIMIT", "1e6"), "?yours.hidden=16&yours.size=8", ["ran out of memory"], TAKES),
    ],
    ids=["no number", "too large", "out of memory"],
)
def test_a_fault_is_reported_once_and_the_rest_continues(with_webgpu, base, code, query, problems, sentence):
    with tab(with_webgpu) as page:
        page.add_init_script(in_workers(code))
        page.goto(base + query)
        for words in problems:
            page.locator(".lab-problem", has_text=words).wait_for(timeout=60_000)
        page.locator(".webgpu .lab-state span", has_text="products of growing size").wait_for(timeout=60_000)
        told = [one for one in texts(page, ".lab-problem") if "says nothing about a GPU's speed" not in one]
        assert len(told) == len(problems), "not once for each way of launching"
        assert sentence in texts(page, ".webgpu .lab-sentence")[0]
        page.get_by_role("button", name="Stop", exact=True).first.click()
        page.locator(".webgpu .lab-state b", has_text="Stopped").wait_for(timeout=20_000)


def test_of_two_tabs_one_waits_for_the_other(browser, base):
    with tab(browser) as one, tab(browser) as other:
        for opened in (one, other):  # together: on a busy machine one could finish before the other opens
            opened.goto(base + SMALL)
        waits = ".webgpu .lab-state span:text('another tab')"
        ends = time.monotonic() + 60
        while not (one.locator(waits).count() or other.locator(waits).count()):
            assert time.monotonic() < ends, "none waits for the other"
            one.wait_for_timeout(50)
        first, second = (one, other) if other.locator(waits).count() else (other, one)
        first.get_by_role("button", name="Stop", exact=True).first.click()
        second.locator(".webgpu .lab-state b", has_text="Measuring").wait_for(timeout=20_000)
        second.get_by_role("button", name="Stop", exact=True).first.click()


HOLDS_THE_LOCK = "navigator.locks.request('your_gpu', () => new Promise((resolve) => { window.letGo = resolve; }))"
# The tab goes to the background during the first block of a training.
HIDDEN_IN_A_BLOCK = """
    window.show = (shown) => {
        Object.defineProperty(document, "hidden", { value: !shown, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    };
    const post = Worker.prototype.postMessage;
    let blocks = 0;
    Worker.prototype.postMessage = function (message) {
        post.call(this, message);
        if (message.what === "block" && message.task === "train" && !blocks++) window.show(false);
    };"""


def test_without_webgpu_the_page_says_why_and_measures_the_processor(page, base):
    page.add_init_script(HOLDS_THE_LOCK)
    page.add_init_script(HIDDEN_IN_A_BLOCK)
    page.goto(base + SMALL)
    words = page.locator(".webgpu .lab-state span")
    words.filter(has_text="another tab").wait_for(timeout=60_000)
    page.evaluate("() => letGo()")
    words.filter(has_text="in the background").wait_for(timeout=60_000)
    page.evaluate("() => show(true)")
    page.locator(".webgpu .lab-state b", has_text="Measuring").wait_for(timeout=20_000)
    wait_done(page)
    why = texts(page, ".lab-problem")
    assert len(why) == 1
    assert "no adapter" in why[0]
    assert "--enable-unsafe-webgpu" in why[0]
    assert "on one core takes" in texts(page, ".webgpu .lab-sentence")[0]
    assert "submission" not in page.locator("table.webgpu-ways").inner_text()
    label = page.locator(".webgpu canvas").first.get_attribute("aria-label") or ""
    assert label.startswith("loss by seconds of training; the devices take turns. Across: seconds of training.")
    assert "1 line: " in label, "the text follows what is drawn"
    values = page.locator(".webgpu figure").first.locator("details")
    values.locator("summary").click()
    assert values.locator("tr").count() == 2
    assert f"Last loss: {values.locator('td').last.inner_text()} (" in values.locator("p").inner_text()
    assert "1 block discarded and measured again" in " ".join(texts(page, ".webgpu .lab-note"))
    assert_accessible(page)
